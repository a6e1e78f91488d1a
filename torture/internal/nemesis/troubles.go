package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/torture/internal/history"
	"github.com/timerd-io/timerd/torture/internal/servers"
)

// The kinds of troubles: faults of timerd deliver, and of the hosts it calls.
const (
	DeliverKilled    = "deliver killed"
	DeliversKilled   = "delivers killed"
	DeliverPaused    = "deliver paused"
	DeliverFrozen    = "deliver frozen"
	DeliverRestarted = "deliver restarted"
	DeliverCut       = "deliver cut"
	DeliverSilent    = "deliver silent"
	FileChanged      = "file changed"
	HostDead         = "host dead"
	HostSilent       = "host silent"
)

// Trouble is a fault of webhooks only.
type Trouble struct {
	Kind  string
	Wait  time.Duration // before it
	For   time.Duration
	Pick  int  // picks a timerd deliver
	Crowd bool // many events wait when it begins
	kind  trouble
}

// trouble is a kind of trouble.
type trouble struct {
	name     string
	host     bool // concerns a host, and no timerd deliver
	effect   history.Effect
	min, max time.Duration
	inject   func(n *Nemesis, t Trouble) (heal func() error, err error)
}

// ackWait is the time for which JetStream waits for an acknowledgement before it delivers an event to another process.
const ackWait = 30 * time.Second

// circuitTime is the time for which an absent host is left alone. The next absence comes after a call, because
// otherwise the time would double.
const circuitTime = 36 * time.Second

func troubles() []trouble {
	const ms = time.Millisecond
	return []trouble{
		{name: DeliverKilled, effect: history.Forgets, min: 1 * ms, max: 3000 * ms, inject: killDeliverer},
		{name: DeliversKilled, effect: history.Forgets, min: 1 * ms, max: 3000 * ms, inject: killDeliverers},
		{name: DeliverPaused, effect: history.Delays, min: 500 * ms, max: 6000 * ms, inject: pauseDeliverer},
		{name: DeliverFrozen, effect: history.Delays, min: ackWait + 1000*ms, max: ackWait + 4000*ms,
			inject: pauseDeliverer},
		{name: DeliverRestarted, effect: history.Hurries, min: 1 * ms, max: 1500 * ms, inject: restartDeliverer},
		{name: DeliverCut, effect: history.Delays, min: 300 * ms, max: 5000 * ms, inject: onItsNATS((*lab.Proxy).Cut)},
		{name: DeliverSilent, effect: history.Delays, min: 1000 * ms, max: 8000 * ms,
			inject: onItsNATS((*lab.Proxy).Blackhole)},
		{name: FileChanged, effect: history.Changes, min: 1 * ms, max: 5000 * ms, inject: changeFile},
		{name: HostDead, host: true, min: 8000 * ms, max: 20_000 * ms, inject: onHost((*lab.Proxy).Cut)},
		{name: HostSilent, host: true, min: 5000 * ms, max: 12_000 * ms, inject: onHost((*lab.Proxy).Blackhole)},
	}
}

// TroublePlans returns the troubles of a run of some length, without the excluded kinds: one plan for timerd deliver
// and one for hosts, to be carried out at the same time. The same arguments give the same plans. Each kind comes once
// before any kind comes a second time.
func TroublePlans(seed uint64, length time.Duration, without []string) [][]Trouble {
	var plans [][]Trouble
	for _, host := range []bool{false, true} {
		random := rand.New(rand.NewPCG(seed, 1<<62+uint64(len(plans))))
		kinds := slices.DeleteFunc(troubles(), func(k trouble) bool {
			return k.host != host ||
				slices.Contains(without, k.name)
		})
		plans = append(plans, troublePlan(random, length, kinds))
	}
	return plans
}

func troublePlan(random *rand.Rand, length time.Duration, kinds []trouble) (plan []Trouble) {
	for at := time.Duration(0); len(kinds) > 0; {
		random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, k := range kinds {
			t := Trouble{
				Kind: k.name, Wait: between(random, 3*time.Second, 6*time.Second), For: between(random, k.min, k.max),
				Pick: random.IntN(1 << 16), Crowd: random.IntN(2) == 0, kind: k,
			}
			if k.host && len(plan) > 0 {
				t.Wait += circuitTime
			}
			if at += t.Wait + t.For + recovery; at > length {
				return plan
			}
			plan = append(plan, t)
		}
	}
	return plan
}

// Trouble carries out a plan of troubles. An error means that a trouble could not be made or healed; then the run has
// no verdict.
func (n *Nemesis) Trouble(ctx context.Context, plan []Trouble) error {
	for i, t := range plan {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(t.Wait):
		}
		if err := n.trouble(ctx, t); err != nil {
			return fmt.Errorf("trouble %d, %s: %w", i+1, t.Kind, err)
		}
	}
	return nil
}

// trouble makes a trouble, heals it, and waits until timerd deliver is ready.
func (n *Nemesis) trouble(ctx context.Context, t Trouble) error {
	r := history.Fault{Kind: t.Kind, Effect: t.kind.effect, Apps: []string{history.HookApp}}
	switch {
	case t.kind.host:
		r.Host = n.Frail.Addr()
	case t.Kind == FileChanged: // it excuses nothing
	case t.Kind == DeliversKilled:
		r.Deliverers = n.deliverers()
	default:
		r.Deliverers = []int{t.Pick % len(n.System.Deliverers)}
	}
	if t.Crowd {
		n.Crowds.Crowd(ctx, history.HookApp)
	}
	r.From = time.Now().UnixMilli()
	n.Log.Info("trouble", "kind", t.Kind, "deliverers", r.Deliverers, "for", t.For, "crowd", t.Crowd)
	heal, err := t.kind.inject(n, t)
	if err != nil {
		return err
	}
	<-time.After(t.For)
	if err := heal(); err != nil {
		return fmt.Errorf("healing: %w", err)
	}
	r.Healed = time.Now().UnixMilli()
	r.Ready = r.Healed
	if !t.kind.host {
		err := n.System.AwaitDeliverers(ctx, recoveryTimeout)
		r.Ready = time.Now().UnixMilli()
		if err != nil {
			n.Log.Error("timerd deliver has not recovered", "err", err)
			r.Ready = 0
		}
	}
	r.Hearing = r.Healed
	n.History.Write(history.Record{Fault: &r})
	return nil
}

// deliverers returns the numbers of all timerd deliver processes.
func (n *Nemesis) deliverers() (all []int) {
	for i := range n.System.Deliverers {
		all = append(all, i)
	}
	return all
}

func (n *Nemesis) deliverer(t Trouble) *servers.Deliverer {
	return n.System.Deliverers[t.Pick%len(n.System.Deliverers)]
}

func killDeliverer(n *Nemesis, t Trouble) (func() error, error) {
	d := n.deliverer(t)
	return d.Start, d.Kill()
}

func killDeliverers(n *Nemesis, _ Trouble) (func() error, error) {
	var errs []error
	for _, d := range n.System.Deliverers {
		errs = append(errs, d.Kill())
	}
	return func() error {
		var errs []error
		for _, d := range n.System.Deliverers {
			errs = append(errs, d.Start())
		}
		return errors.Join(errs...)
	}, errors.Join(errs...)
}

func pauseDeliverer(n *Nemesis, t Trouble) (func() error, error) {
	d := n.deliverer(t)
	return d.Resume, d.Pause()
}

func restartDeliverer(n *Nemesis, t Trouble) (func() error, error) {
	d := n.deliverer(t)
	return d.Start, d.Stop()
}

// changeFile gives another file to one timerd deliver, while the others keep the old file. It heals the trouble by
// giving the new file to all of them.
func changeFile(n *Nemesis, t Trouble) (func() error, error) {
	if err := n.System.WriteEndpoints(n.Endpoints(t.Pick)); err != nil {
		return nil, err
	}
	return func() error {
		var errs []error
		for _, d := range n.System.Deliverers {
			errs = append(errs, d.Reload())
		}
		return errors.Join(errs...)
	}, n.deliverer(t).Reload()
}

func onItsNATS(breaks func(*lab.Proxy)) func(*Nemesis, Trouble) (func() error, error) {
	return func(n *Nemesis, t Trouble) (func() error, error) { return broken(breaks, n.deliverer(t).ToNATS) }
}

func onHost(breaks func(*lab.Proxy)) func(*Nemesis, Trouble) (func() error, error) {
	return func(n *Nemesis, _ Trouble) (func() error, error) { return broken(breaks, n.Frail) }
}
