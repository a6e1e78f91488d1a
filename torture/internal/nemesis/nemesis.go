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
	// recovers is how long timerd has to recover from a fault: it promises 10 s. A loaded
	// machine needs more; one that takes longer than this has not recovered.
	recovers = 60 * time.Second
	// notices is how long timerd may say that it is ready though it is not: it promises 5 s.
	notices = 6 * time.Second
	// audits is how long an audit may take after that.
	audits = 1500 * time.Millisecond
)

// Nemesis carries out a plan.
type Nemesis struct {
	System *servers.System
	Crowds Crowds
	// Endpoints returns the n-th of several files for timerd deliver, which all call the same.
	Endpoints func(n int) string
	Frail     *lab.Proxy // before the host that timerd deliver calls, and that dies now and then
	History   *history.Writer
	Log       *slog.Logger
}

// Run carries out a plan, step by step. It returns an error where a fault could not be injected
// or healed: then the run says nothing.
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
	err := n.System.AwaitReady(ctx, recovers)
	ready := time.Now().UnixMilli()
	if err != nil {
		n.Log.Error("timerd has not recovered", "err", err)
	}
	for i, f := range step.Faults {
		r := records[i]
		r.Hearing = ready
		if !f.kind.restarts {
			r.Hearing = max(ready, r.Healed+notices.Milliseconds())
		}
		r.Hearing += audits.Milliseconds()
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
