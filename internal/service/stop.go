package service

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// stopWithin bounds the whole stop, however the servers behave. Parts that have not ended by then are left behind: the
// leases of their claims run out, and their firings are published again under the same ids. docs/reference.md promises
// the end of the process within 10 s; the difference is for a slow machine.
const stopWithin = 9 * time.Second

// part is a part of the service.
type part struct {
	name string
	// run runs the part until ctx ends, and then stops it in order. An earlier error ends the service.
	run func(ctx context.Context) error
}

// step is a group of parts that stop at the same time.
type step []part

// running is a started part.
type running struct {
	part
	stop func()        // tells it to end
	done chan struct{} // closed when it has ended
	err  error         // its result; set before done is closed
}

// runAll runs the parts of all steps until ctx ends or one of them returns an error. Then it stops the steps in order,
// each after the end of the one before, within one limit for all. A part that has not ended by then is logged and left
// behind. The parts get the values of ctx, but not its end. runAll returns the errors of all ended parts.
func runAll(ctx context.Context, log *slog.Logger, within time.Duration, steps ...step) error {
	var failOnce sync.Once
	failed := make(chan struct{})
	started := make([][]*running, len(steps))
	for i, parts := range slices.Backward(steps) { // a part starts after the parts it needs
		for _, p := range parts {
			own, stop := context.WithCancel(context.WithoutCancel(ctx))
			r := &running{part: p, stop: stop, done: make(chan struct{})}
			started[i] = append(started[i], r)
			go func() {
				defer close(r.done)
				if r.err = r.run(own); r.err != nil {
					failOnce.Do(func() { close(failed) })
				}
			}()
		}
	}
	select {
	case <-ctx.Done():
	case <-failed:
	}

	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), within)
	defer cancel()
	var errs []error
	for _, parts := range started {
		for _, r := range parts {
			r.stop()
		}
		for _, r := range parts {
			if r.ended(stopping) {
				errs = append(errs, r.err)
			} else {
				log.Warn("did not stop in time and is left behind", "part", r.name, "limit", within)
			}
		}
	}
	return errors.Join(errs...)
}

// ended waits for the end of a part, or of ctx. It reports whether the part has ended.
func (r *running) ended(ctx context.Context) bool {
	select {
	case <-r.done:
		return true
	case <-ctx.Done():
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}
