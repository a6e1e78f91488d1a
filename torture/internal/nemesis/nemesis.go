package nemesis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

const (
	// recoveryTimeout bounds timerd's recovery from a fault. timerd promises 10 s, and a loaded machine needs more.
	recoveryTimeout = 3 * time.Minute
	// noticeTime is the longest time for which timerd may report ready although it is not. timerd promises 5 s.
	noticeTime = 6 * time.Second
	// auditTime is the time for an audit after that.
	auditTime = 1500 * time.Millisecond
)

// Nemesis carries out a plan.
type Nemesis struct {
	System *servers.System
	Crowds Crowds
	// Endpoints returns the n-th of several files for timerd deliver. All of them name the same hosts.
	Endpoints func(n int) string
	Frail     *lab.Proxy // in front of the host that dies now and then
	History   *history.Writer
	Log       *slog.Logger
}

// Run carries out a plan, step by step. An error means that a fault could not be injected or healed; then the run has
// no verdict.
func (n *Nemesis) Run(ctx context.Context, plan []Step) error {
	for i, step := range plan {
		if err := n.step(ctx, step); err != nil {
			return fmt.Errorf("step %d of the faults: %w", i+1, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(step.Calm):
		}
	}
	return nil
}

// step injects the faults of a step, heals them, and waits until all timerds are ready.
func (n *Nemesis) step(ctx context.Context, step Step) error {
	records := make([]history.Fault, len(step.Faults))
	errs := make([]error, len(step.Faults))
	var all sync.WaitGroup
	for i, f := range step.Faults {
		all.Go(func() { records[i], errs[i] = n.fault(ctx, f) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err := n.System.AwaitReady(ctx, recoveryTimeout)
	ready := time.Now().UnixMilli()
	if err != nil {
		n.Log.Error("timerd has not recovered", "err", err)
	}
	for i, f := range step.Faults {
		r := records[i]
		r.Hearing = ready
		if !f.kind.restarts {
			r.Hearing = max(ready, r.Healed+noticeTime.Milliseconds())
		}
		r.Hearing += auditTime.Milliseconds()
		if err == nil {
			r.Ready = ready
		}
		n.History.Write(history.Record{Fault: &r})
	}
	return nil
}

func (n *Nemesis) fault(ctx context.Context, f Fault) (history.Fault, error) {
	r := history.Fault{Kind: f.Kind, Effect: f.kind.effect}
	if f.kind.app != "" {
		r.Apps = []string{f.kind.app}
	}
	for i := range n.System.Timerds {
		if !f.kind.one || i == f.Timerd {
			r.Timerds = append(r.Timerds, i)
		}
	}
	if f.kind.delivers {
		r.Deliverers = n.deliverers()
	}
	<-time.After(f.Delay)
	r.From = time.Now().UnixMilli()
	n.Log.Info("fault", "kind", f.Kind, "timerds", r.Timerds, "hold", f.Hold)
	heal, err := f.kind.inject(ctx, target{n.System, n.Crowds, &r}, f)
	if err != nil {
		return r, fmt.Errorf("%s: %w", f.Kind, err)
	}
	<-time.After(f.Hold)
	if err := heal(); err != nil {
		return r, fmt.Errorf("%s: healing: %w", f.Kind, err)
	}
	r.Healed = time.Now().UnixMilli()
	return r, nil
}
