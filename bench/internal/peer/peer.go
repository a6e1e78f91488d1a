// Package peer has the measured systems, timerd and its alternatives, in one file each: the start of the system, the
// setting of timers, and the worker process that receives firings.
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

// System is a system that delivers timers.
type System interface {
	// Start starts the servers and the worker on a rig, and returns once the worker can receive firings. It calls fired
	// for each firing, from one goroutine. The rig's Close ends everything.
	Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error
	// Arm sets timers and returns once the system has acknowledged all of them.
	Arm(ctx context.Context, timers []firing.Timer) error
}

// Spec is a system in one configuration.
type Spec struct {
	Name     string                  // as on the command line
	Title    string                  // as in tables
	Settings string                  // its settings that are not defaults
	Redis    []devserver.RedisOption // settings of its Redis on top of deploy/redis.conf; none without a Redis
	OnRedis  bool                    // foreign keys in Redis may slow it down
	// Preload means that, by design, timers due much later do not delay the others.
	Preload bool
	// Variant means that the system differs from another one only in points that a crowd of other timers or keys does
	// not affect.
	Variant bool
	ArmRate int // timers per second that it can set at least; a workload allows for that rate
	Missing func() error
	New     func(s Spec) System
}

// Specs returns all systems, timerd first.
func Specs() []Spec {
	return slices.Concat(timerdSpecs(), eventsSpecs(), pollerSpecs(), asynqSpecs(), bullmqSpecs(), natsSpecs(),
		rabbitmqSpecs(), riverSpecs())
}

// Named returns the system with a name.
func Named(name string) (Spec, error) {
	for _, s := range Specs() {
		if s.Name == name {
			return s, nil
		}
	}
	return Spec{}, fmt.Errorf("no system %q", name)
}

// available returns nil, and is for systems that need no installation.
func available() error { return nil }

// Worker runs the worker process of a kind until ctx ends. startWorker starts such processes.
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
func startWorker(ctx context.Context, r *rig.Rig, role string, fired func(firing.Firing), kind string,
	args ...string) error {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), r.Self, append([]string{"worker", kind}, args...)...)
	return startReporting(ctx, r, role, cmd, fired)
}

// startReporting starts a process that reports firings on its stdout, and waits until it is ready.
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

// armBatch is the number of timers set in one call, if a system takes several in one call.
const armBatch = 500

// armWorkers is the number of goroutines that set timers one by one, if a system takes only one in a call.
const armWorkers = 32

// inParallel splits timers into parts of at most armBatch, and calls f for each part, in up to n goroutines at a time.
func inParallel(ctx context.Context, timers []firing.Timer, n int,
	f func(ctx context.Context, part []firing.Timer) error) error {
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

// delay returns the time until t in whole milliseconds, rounded up.
func delay(t time.Time) time.Duration {
	return max(0, (time.Until(t) + time.Millisecond - 1).Truncate(time.Millisecond))
}
