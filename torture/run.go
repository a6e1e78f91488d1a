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

	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/clockstep"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/nemesis"
	"github.com/timerd-io/timerd/torture/internal/producers"
	"github.com/timerd-io/timerd/torture/internal/receiver"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

const (
	// warmUp is the calm time at the beginning and at the end of a run.
	warmUp = 3 * time.Second
	// drainTime bounds the time from the end of the last life until the schedule is empty. The longest delay comes on
	// top.
	drainTime = 90 * time.Second
	// sweep is the TIMERD_SWEEP_INTERVAL.
	sweep = time.Second
)

// config has the settings of a run.
type config struct {
	seed     uint64
	shape    servers.Shape
	length   time.Duration // of the faults
	timerd   string        // the program; empty to build one, with a steppable clock
	race     bool          // build it with the race detector
	rate     float64       // keys per second
	maxDelay time.Duration
	without  []string // the excluded kinds of faults
	dir      string   // for the history and the logs
	messages string   // file for the streams' messages; empty for none
	log      *slog.Logger
}

// run carries out a run, and returns the verdict and the name of the history file. An error means that the run itself
// failed, so that there is no verdict.
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
	redis.SetLogger(silence{}) // failures are in the history
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
	clock, err := lab.NewClock(ctx, c.dir)
	switch {
	case errors.Is(err, lab.ErrNoClock):
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
			"TIMERD_GUARD":          history.GuardRule(),
			"TIMERD_LEASE":          nemesis.Lease.String(),
			"TIMERD_SWEEP_INTERVAL": sweep.String(),
		},
	}, func(err error) { c.log.Error("proxy", "err", err) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	drained, err := torture(ctx, c, leftOut, s, w)
	if err != nil {
		return err
	}
	account := s.Account(ctx)
	if err := readStreams(ctx, s.NATS.URL(), c.messages, w); err != nil {
		return err
	}
	if err := complaints(c.dir); err != nil {
		return err
	}
	w.Write(history.Record{End: &history.End{At: time.Now().UnixMilli(), Drained: drained, Account: account}})
	return nil
}

// torture runs the producers and the nemesis, and returns once both have ended and the schedule has drained. It reports
// whether the schedule is empty.
func torture(ctx context.Context, c config, leftOut []string, s *servers.System,
	w *history.Writer) (drained bool, err error) {
	hooks, err := receiver.New(w, c.seed, func(err error) { c.log.Error("receiver", "err", err) })
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, hooks.Close()) }()
	if err := s.StartDeliverers(ctx, hooks.Endpoints(0), hooks.Environment,
		func(err error) { c.log.Error("proxy", "err", err) }); err != nil {
		return false, err
	}
	w.Write(history.Record{Run: &history.Run{
		Seed: c.seed, Shape: string(c.shape), Timerds: len(s.Timerds), Deliverers: len(s.Deliverers),
		Steady: hooks.Steady(), Fixed: hooks.Fixed(),
		Began: time.Now().UnixMilli(), Lease: nemesis.Lease.Milliseconds(), LeftOut: leftOut,
	}})
	p := &producers.Producers{
		Redis: s.Redis, Replicated: c.shape.Replicated(), NATSURL: s.NATS.URL(), Hooks: hooks.URLs(), History: w,
		Seed: c.seed, Rate: c.rate, MaxDelay: c.maxDelay,
	}
	if err := p.Open(ctx); err != nil {
		return false, err
	}
	defer p.Close()
	n := nemesis.Nemesis{System: s, Crowds: p, Endpoints: hooks.Endpoints, Frail: hooks.Frail(), History: w, Log: c.log}
	if err := work(ctx, c, leftOut, p, n, w); err != nil {
		return false, err
	}
	hooks.Recover()
	c.log.Info("all faults are healed, waiting for the last timers")
	return drain(ctx, c, s), nil
}

// work runs the producers while things are broken.
func work(ctx context.Context, c config, leftOut []string, p *producers.Producers, n nemesis.Nemesis,
	w *history.Writer) error {
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

// breakThings injects the faults of a run. At the same time it holds namespaces and troubles the deliverers. It returns
// when everything is healed and resumed.
func breakThings(ctx context.Context, c config, leftOut []string, n nemesis.Nemesis) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := []func() error{
		func() error { return n.Run(ctx, nemesis.Plan(c.seed, c.shape, c.length, leftOut)) },
		func() error { return n.Hold(ctx, nemesis.HoldPlan(c.seed, c.length, leftOut)) },
	}
	for _, plan := range nemesis.TroublePlans(c.seed, c.length, leftOut) {
		all = append(all, func() error { return n.Trouble(ctx, plan) })
	}
	errs := make([]error, len(all))
	var breaking sync.WaitGroup
	for i, do := range all {
		breaking.Go(func() {
			if errs[i] = do(); errs[i] != nil {
				cancel()
			}
		})
	}
	breaking.Wait()
	return errors.Join(errs...)
}

func calm(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(warmUp):
	}
}

// drain waits until the schedule is empty and all webhooks are delivered, in two checks with a calm time between them:
// a retry request may be on its way at the first one. It reports whether both checks found nothing.
func drain(ctx context.Context, c config, s *servers.System) bool {
	empty := 0
	for deadline := time.Now().Add(c.maxDelay + drainTime); time.Now().Before(deadline); calm(ctx) {
		pending, err := servers.Pending(ctx, s.Redis)
		if err == nil && pending == 0 {
			pending, err = undelivered(ctx, s.NATS.URL())
		}
		switch {
		case err != nil:
			c.log.Error("reading the rest of the schedule", "err", err)
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

// silence is a go-redis logger that discards everything.
type silence struct{}

// Printf implements the interface.
func (silence) Printf(context.Context, string, ...any) {}
