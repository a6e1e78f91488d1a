package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/clockstep"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/nemesis"
	"github.com/timerd-io/timerd/torture/internal/producers"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

const (
	// warmUp is how long everything is calm at first, and how long at last.
	warmUp = 3 * time.Second
	// drainTime is how long the schedule may take to become empty after the last key's life: the
	// longest delay comes on top.
	drainTime = 90 * time.Second
	// sweep is the TIMERD_SWEEP_INTERVAL.
	sweep = time.Second
)

// config says what to run.
type config struct {
	seed     uint64
	shape    servers.Shape
	length   time.Duration // of the faults
	timerd   string        // the program; empty for one that is built, with a clock that can be stepped
	race     bool          // build it with the race detector
	rate     float64       // keys per second
	maxDelay time.Duration
	without  []string // kinds of faults that are not wanted
	dir      string   // for the history and the logs
	log      *slog.Logger
}

// run carries out a run, and returns the verdict and its history's file. Its error says that the run
// itself did not work, so that there is no verdict.
func run(ctx context.Context, c config) (r *checker.Report, file string, err error) {
	file = filepath.Join(c.dir, "history.jsonl")
	w, err := history.Create(file)
	if err != nil {
		return nil, "", err
	}
	err = errors.Join(record(ctx, c, w), w.Close())
	if err != nil {
		return nil, "", err
	}
	r, err = judgeCommand([]string{file})
	return r, file, err
}

// record runs everything and writes the history.
func record(ctx context.Context, c config, w *history.Writer) (err error) {
	redis.SetLogger(silence{}) // what fails is in the history
	leftOut := slices.Clone(c.without)
	if c.timerd == "" {
		c.timerd = filepath.Join(c.dir, "timerd")
		c.log.Info("building timerd", "race", c.race)
		if err := clockstep.Build(ctx, c.timerd, c.race); err != nil {
			return err
		}
	} else {
		leftOut = append(leftOut, nemesis.ClockStepped)
	}
	clock, err := redisserver.NewClock(ctx, c.dir)
	switch {
	case errors.Is(err, redisserver.ErrNoClock):
		leftOut = append(leftOut, nemesis.RedisAhead)
	case err != nil:
		return err
	}
	c.log.Info("starting", "seed", c.seed, "shape", c.shape, "dir", c.dir)
	s, err := servers.Start(ctx, servers.Config{
		Shape: c.shape, Timerd: c.timerd, Dir: c.dir, Clock: clock,
		Env: map[string]string{
			"TIMERD_NAMESPACES":     strings.Join(history.Namespaces(), ","),
			"TIMERD_RETRY":          producers.Policies(),
			"TIMERD_LATE":           producers.Limits(),
			"TIMERD_LEASE":          nemesis.Lease.String(),
			"TIMERD_SWEEP_INTERVAL": sweep.String(),
		},
	}, func(err error) { c.log.Error("proxy", "err", err) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	w.Write(history.Record{Run: &history.Run{
		Seed: c.seed, Shape: string(c.shape), Timerds: len(s.Timerds), Began: time.Now().UnixMilli(),
		Lease: nemesis.Lease.Milliseconds(), LeftOut: leftOut,
	}})
	if err := torture(ctx, c, leftOut, s, w); err != nil {
		return err
	}
	c.log.Info("all faults are healed, waiting for the last timers")
	drained := drain(ctx, c, s)
	if err := readStreams(ctx, s.NATS.URL(), w); err != nil {
		return err
	}
	if err := complaints(c.dir); err != nil {
		return err
	}
	w.Write(history.Record{End: &history.End{At: time.Now().UnixMilli(), Drained: drained}})
	return nil
}

// torture has the producers and the nemesis at work, and returns when both are done.
func torture(ctx context.Context, c config, leftOut []string, s *servers.System, w *history.Writer) error {
	p := &producers.Producers{
		Redis: s.Redis, Replicated: c.shape.Replicated(), NATSURL: s.NATS.URL(), History: w,
		Seed: c.seed, Rate: c.rate, MaxDelay: c.maxDelay,
	}
	if err := p.Open(ctx); err != nil {
		return err
	}
	defer p.Close()
	n := nemesis.Nemesis{System: s, Crowds: p, History: w, Log: c.log}
	ctx, cancel := context.WithCancel(ctx)
	var watching, producing sync.WaitGroup
	var pulseErr error
	watching.Go(func() { n.Watch(ctx) })
	watching.Go(func() { pulseErr = pulse(ctx, c.dir, w) })
	until, stop := context.WithCancel(ctx)
	producing.Go(func() { p.Run(until) })
	calm(ctx)
	err := breakThings(ctx, c, leftOut, n)
	calm(ctx)
	stop()
	producing.Wait()
	cancel()
	watching.Wait()
	return errors.Join(err, pulseErr)
}

// breakThings injects the faults of a run, and holds namespaces at the same time. It returns when all is healed and resumed.
func breakThings(ctx context.Context, c config, leftOut []string, n nemesis.Nemesis) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var holding sync.WaitGroup
	var holdErr error
	holding.Go(func() {
		if holdErr = n.Hold(ctx, nemesis.HoldPlan(c.seed, c.length, leftOut)); holdErr != nil {
			cancel()
		}
	})
	err := n.Run(ctx, nemesis.Plan(c.seed, c.shape, c.length, leftOut))
	if err != nil {
		cancel()
	}
	holding.Wait()
	return errors.Join(err, holdErr)
}

func calm(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(warmUp):
	}
}

// drain waits until the schedule is empty, and stays so while a retry request could still be on its
// way, and tells whether it is.
func drain(ctx context.Context, c config, s *servers.System) bool {
	empty := 0
	for deadline := time.Now().Add(c.maxDelay + drainTime); time.Now().Before(deadline); calm(ctx) {
		pending, err := servers.Pending(ctx, s.Redis)
		switch {
		case err != nil:
			c.log.Error("reading the schedule", "err", err)
		case pending == 0:
			if empty++; empty == 2 {
				return true
			}
		default:
			empty = 0
			c.log.Info("waiting", "pending", pending)
		}
		if ctx.Err() != nil {
			break
		}
	}
	return false
}

// silence is a logger of go-redis that says nothing.
type silence struct{}

// Printf implements the interface.
func (silence) Printf(context.Context, string, ...any) {}
