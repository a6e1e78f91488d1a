// Package peer has the systems under measurement, timerd and those that people use for timers otherwise, one file
// each: how it is started, how timers are set, and the worker process that sees them fire.
package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

// System is something that delivers timers.
type System interface {
	// Start starts the servers and the worker on a rig, and returns once firings would be seen. fired is called
	// for each of them, from one goroutine. The rig's Close ends everything.
	Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error
	// Arm sets timers and returns once the system has acknowledged all of them.
	Arm(ctx context.Context, timers []firing.Timer) error
}

// Spec is a System in one configuration.
type Spec struct {
	Name     string                  // as on the command line
	Title    string                  // as in tables
	Settings string                  // what it was given, other than defaults
	Redis    []devserver.RedisOption // settings of its Redis besides deploy/redis.conf; none where it has no Redis
	OnRedis  bool                    // foreign keys can be in its way
	// Preload says that it can hold timers that are due much later without these delaying the others by design.
	Preload bool
	// Variant says that it differs from another in what a crowd of other timers or keys does not touch.
	Variant bool
	ArmRate int // timers per second that it can be set at least, to allow for
	Missing func() error
	New     func(s Spec) System
}

// Specs returns all systems, timerd first.
func Specs() []Spec {
	return slices.Concat(timerdSpecs(), eventsSpecs(), pollerSpecs(), asynqSpecs(), bullmqSpecs(), natsSpecs(), rabbitmqSpecs(), riverSpecs())
}

// Named returns the system of a name.
func Named(name string) (Spec, error) {
	for _, s := range Specs() {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, fmt.Errorf("no system %q", name)
}

// available says that nothing has to be installed.
func available() error { return nil }

// Worker runs the worker process of a kind until ctx ends. It is the other end of startWorker.
func Worker(ctx context.Context, kind string, args []string, report *firing.Reporter) error {
	workers := map[string]func(context.Context, []string, *firing.Reporter) error{
		workerEvents: eventsWorker,
		workerPoller: pollerWorker,
		workerAsynq:  asynqWorker,
		workerStream: streamWorker,
		workerNak:    nakWorker,
		workerRetry:  retryWorker,
		workerRabbit: rabbitmqWorker,
		workerRiver:  riverWorker,
	}
	work, ok := workers[kind]
	if !ok {
		return fmt.Errorf("no worker of kind %q", kind)
	}
	return work(ctx, args, report)
}

const workerStart = 60 * time.Second

// startWorker runs this program as a worker of a kind.
func startWorker(ctx context.Context, r *rig.Rig, role string, fired func(firing.Firing), kind string, args ...string) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), r.Self, append([]string{"worker", kind}, args...)...)
	return startReporting(ctx, r, role, cmd, fired)
}

// startReporting starts a process that reports what it sees on its stdout, and waits until it is ready.
func startReporting(ctx context.Context, r *rig.Rig, role string, cmd *exec.Cmd, fired func(firing.Firing)) error {
	out, in, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout = in
	p, err := r.Start(role, cmd)
	if err := errors.Join(err, in.Close()); err != nil {
		return errors.Join(err, out.Close())
	}
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- errors.Join(firing.Read(out, func() { close(ready) }, fired), out.Close())
	}()
	select {
	case <-ready:
		return nil
	case err := <-ended:
		<-p.Done()
		return errors.Join(fmt.Errorf("%s ended before it was ready", role), err, r.Died())
	case <-time.After(workerStart):
		return fmt.Errorf("%s was not ready within %v", role, workerStart)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// armBatch is how many timers are set by one call where a system takes many.
const armBatch = 500

// armWorkers is how many goroutines set timers one by one where a system takes no batches.
const armWorkers = 32

// inParallel calls f for parts of timers, of armBatch at most, from n goroutines.
func inParallel(ctx context.Context, timers []firing.Timer, n int, f func(ctx context.Context, part []firing.Timer) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(n)
	for part := range slices.Chunk(timers, armBatch) {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error { return f(ctx, part) })
	}
	return group.Wait()
}

// sorted returns timers in the order of their due times.
func sorted(timers []firing.Timer) []firing.Timer {
	timers = slices.Clone(timers)
	slices.SortStableFunc(timers, func(a, b firing.Timer) int { return a.Due.Compare(b.Due) })
	return timers
}

// delay returns how long it is until t, in whole milliseconds, never too short.
func delay(t time.Time) time.Duration {
	return max(0, (time.Until(t) + time.Millisecond - 1).Truncate(time.Millisecond))
}
