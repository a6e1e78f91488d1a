package peer

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

const workerAsynq = "asynq"

// asynqTask is the type of the tasks.
const asynqTask = "bench:timer"

// asynqSystem is a task queue for Go on Redis: tasks wait in a sorted set scored by unix seconds.
type asynqSystem struct {
	tuned  bool
	client *asynq.Client
}

func asynqSpecs() []Spec {
	spec := func(name, title, settings string, tuned bool) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings, OnRedis: true, Preload: true, ArmRate: 5_000,
			Missing: available,
			New:     func(Spec) System { return &asynqSystem{tuned: tuned} },
		}
	}
	return []Spec{
		spec("asynq", "asynq, defaults", "Concurrency 10 as in its README; scheduled tasks looked for every 5 s",
			false),
		spec("asynq-tuned", "asynq, tuned", "Concurrency 100, DelayedTaskCheckInterval 10 ms, TaskCheckInterval 10 ms",
			true),
	}
}

func (a *asynqSystem) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	rdb, err := r.Redis(ctx, devserver.Directive("notify-keyspace-events", ""))
	if err != nil {
		return err
	}
	a.client = asynq.NewClient(asynq.RedisClientOpt{Addr: rdb.Options().Addr, PoolSize: 2 * armWorkers})
	r.Defer(a.client.Close)
	return startWorker(ctx, r, rig.RoleWorker, fired, workerAsynq, rdb.Options().Addr, fmt.Sprint(a.tuned))
}

func (a *asynqSystem) Arm(ctx context.Context, timers []firing.Timer) error {
	return inParallel(ctx, timers, armWorkers, func(ctx context.Context, part []firing.Timer) error {
		for _, t := range part {
			if _, err := a.client.EnqueueContext(ctx, asynq.NewTask(asynqTask, t.Payload()), asynq.TaskID(t.Key()),
				asynq.ProcessAt(t.Due)); err != nil {
				return err
			}
		}
		return nil
	})
}

// asynqWorker works on tasks. Its arguments are the address of Redis, and the word tuned or nothing.
func asynqWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	cfg := asynq.Config{Concurrency: 10, LogLevel: asynq.WarnLevel}
	if args[1] == fmt.Sprint(true) {
		cfg.Concurrency, cfg.DelayedTaskCheckInterval, cfg.TaskCheckInterval = 100, 10*time.Millisecond,
			10*time.Millisecond
	}
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: args[0]}, cfg)
	mux := asynq.NewServeMux()
	mux.HandleFunc(asynqTask, func(_ context.Context, task *asynq.Task) error {
		received := time.Now()
		n, err := firing.OfPayload(task.Payload())
		if err != nil {
			return err
		}
		return report.Fired(firing.Firing{N: n, Received: received})
	})
	if err := server.Start(mux); err != nil {
		return err
	}
	defer server.Shutdown()
	if err := report.Ready(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
