package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// The kinds of cycles in which a namespace is held and resumed. A cycle counts as a fault only when the checker looks
// for innocent timers.
const (
	HeldNow     = "held"
	HeldRate    = "held, resumed at a rate"
	HeldShift   = "held and shifted"
	HeldDead    = "held and given up"
	HeldFor     = "held for a time"
	HeldOverlap = "held twice"
)

// HoldKinds returns all kinds of cycles.
func HoldKinds() []string {
	return []string{HeldNow, HeldRate, HeldShift, HeldDead, HeldFor, HeldOverlap}
}

// resumes returns the command that ends a hold of a kind; none for a hold that ends by itself.
func resumes(kind string) history.HoldKind {
	return map[string]history.HoldKind{
		HeldNow: history.ResumeNow, HeldRate: history.ResumeRate, HeldShift: history.ResumeShift,
		HeldDead: history.ResumeDead,
		HeldFor:  history.Over,
	}[kind]
}

// Cycle is one hold of a namespace, or two holds that overlap.
type Cycle struct {
	Kind  string
	Wait  time.Duration // before it
	Holds []Held
	Crowd bool // many timers become due during the holds
}

// Held is one hold of a cycle.
type Held struct {
	Namespace string
	How       history.HoldKind // the resume
	For       time.Duration    // its length, or the time until the next hold of the cycle
	Rate      int64            // timers per second
	Kill      time.Duration    // the time after which the resuming command is killed; 0: never
}

// HoldPlan returns the cycles of a run of some length, without the excluded kinds. The same arguments give the same
// plan. Each kind comes once before any kind comes a second time.
func HoldPlan(seed uint64, length time.Duration, without []string) []Cycle {
	random := rand.New(rand.NewPCG(seed, 1<<63))
	kinds := slices.DeleteFunc(HoldKinds(), func(kind string) bool { return slices.Contains(without, kind) })
	if len(kinds) == 0 {
		return nil
	}
	var plan []Cycle
	for at := time.Duration(0); ; {
		random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		for _, kind := range kinds {
			c := cycle(random, kind)
			at += c.Wait + recovery
			for _, h := range c.Holds {
				at += h.For
			}
			if at > length {
				return plan
			}
			plan = append(plan, c)
		}
	}
}

func cycle(random *rand.Rand, kind string) Cycle {
	c := Cycle{Kind: kind, Wait: between(random, 2*time.Second, 4*time.Second), Crowd: random.IntN(3) == 0}
	namespaces := []string{history.HeldApp, history.HeldApp + ":run"}
	random.Shuffle(2, func(i, j int) { namespaces[i], namespaces[j] = namespaces[j], namespaces[i] })
	if kind != HeldOverlap {
		c.Holds = []Held{held(random, namespaces[0], resumes(kind), c.Crowd)}
		return c
	}
	for _, namespace := range namespaces {
		c.Holds = append(c.Holds, held(random, namespace, resumes(HoldKinds()[random.IntN(4)]), c.Crowd))
	}
	return c
}

func held(random *rand.Rand, namespace string, how history.HoldKind, crowd bool) Held {
	h := Held{Namespace: namespace, How: how, For: between(random, 2500*time.Millisecond, 6*time.Second), Rate: 20 +
		random.Int64N(60)}
	if crowd {
		h.Rate *= 5
	}
	if random.IntN(3) == 0 {
		h.Kill = between(random, time.Millisecond, 300*time.Millisecond)
	}
	return h
}

// Hold carries out a plan of cycles. An error means that a hold could not be ended; then the run has no verdict.
func (n *Nemesis) Hold(ctx context.Context, plan []Cycle) error {
	for i, c := range plan {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.Wait):
		}
		if err := n.cycle(ctx, c); err != nil {
			return fmt.Errorf("hold %d: %w", i+1, err)
		}
	}
	return nil
}

// cycle makes the holds of a cycle, one after the other, and then ends them in the same order.
func (n *Nemesis) cycle(ctx context.Context, c Cycle) error {
	r := history.Fault{
		Kind: c.Kind, Effect: history.Delays, Hold: true, Apps: []string{history.HeldApp}, From: time.Now().UnixMilli(),
	}
	for i := range n.System.Timerds {
		r.Timerds = append(r.Timerds, i)
	}
	n.Log.Info("hold", "kind", c.Kind, "holds", c.Holds, "crowd", c.Crowd)
	for i, h := range c.Holds {
		n.hold(ctx, h)
		until := time.Now().Add(h.For)
		if c.Crowd && i == 0 {
			n.Crowds.Crowd(ctx, history.HeldApp)
		}
		<-time.After(time.Until(until))
	}
	for i, h := range c.Holds {
		if i > 0 {
			<-time.After(soloTime)
		}
		if err := n.resume(ctx, h); err != nil {
			return err
		}
	}
	r.Healed = time.Now().UnixMilli()
	r.Hearing, r.Ready = r.Healed, r.Healed
	n.History.Write(history.Record{Fault: &r})
	return nil
}

// hold holds a namespace. The result is in the history.
func (n *Nemesis) hold(ctx context.Context, h Held) {
	op := history.HoldOp{Namespace: h.Namespace, Kind: history.Hold}
	args := []string{"hold", h.Namespace, "--reason", "torture"}
	if h.How == history.Over {
		op.For = h.For.Milliseconds()
		args = append(args, "--for", h.For.String())
	}
	n.run(ctx, &op, 0, args...)
	if list, err := n.System.Holds(ctx); err == nil {
		at, listed := list[h.Namespace]
		op.Since = at
		over := op.For != 0 && time.Now().UnixMilli() >= op.Invoked+op.For
		op.Unlisted = op.Outcome == history.OK && !listed && !over
	}
	n.History.Write(history.Record{Hold: &op})
}

const (
	// soloTime is the time for which the second of two holds lasts alone.
	soloTime = time.Second
	// resumeTimeout bounds the end of a hold, even while Redis fails.
	resumeTimeout = 2 * time.Minute
	// finishTime is the time for timerds to finish an interrupted resume before its command is repeated.
	finishTime = 8 * time.Second
	// listPause is the pause between two reads of the list of holds.
	listPause = 200 * time.Millisecond
	// commandTimeout is the longest time that a command may run.
	commandTimeout = 40 * time.Second
)

// resume ends a hold. It repeats the command after failures and kills, or waits until the hold has ended by itself.
func (n *Nemesis) resume(ctx context.Context, h Held) error {
	args := []string{"resume", h.Namespace}
	switch h.How {
	case history.ResumeRate:
		args = append(args, "--rate", strconv.FormatInt(h.Rate, 10)+"/s")
	case history.ResumeShift:
		args = append(args, "--shift")
	case history.ResumeDead:
		args = append(args, "--dead")
	}
	kill := h.Kill
	for deadline := time.Now().Add(resumeTimeout); time.Now().Before(deadline) && ctx.Err() == nil; {
		if h.How != history.Over {
			op := history.HoldOp{Namespace: h.Namespace, Kind: h.How, Rate: h.Rate}
			n.run(ctx, &op, kill, args...)
			n.History.Write(history.Record{Hold: &op})
			if op.Outcome == history.OK {
				return nil
			}
		}
		patience := listPause
		if kill != 0 || h.How == history.Over {
			patience = finishTime
		}
		if n.ended(ctx, h, patience) {
			return nil
		}
		kill = 0
	}
	return fmt.Errorf("%s is still held after %v", h.Namespace, resumeTimeout)
}

// ended waits a while until a hold is no longer in the list, and reports whether it is gone.
func (n *Nemesis) ended(ctx context.Context, h Held, patience time.Duration) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		op := history.HoldOp{Namespace: h.Namespace, Kind: h.How, Rate: h.Rate, Outcome: history.OK,
			Invoked: time.Now().UnixMilli()}
		list, err := n.System.Holds(ctx)
		if _, listed := list[h.Namespace]; err == nil && !listed {
			op.Ended = time.Now().UnixMilli() + 1
			n.History.Write(history.Record{Hold: &op})
			return true
		}
		<-time.After(listPause)
	}
	return false
}

// run runs a command of timerd and notes the result. It kills the command after kill, or after commandTimeout if kill
// is 0.
func (n *Nemesis) run(ctx context.Context, op *history.HoldOp, kill time.Duration, args ...string) {
	if kill == 0 {
		kill = commandTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, kill)
	defer cancel()
	op.Invoked = time.Now().UnixMilli()
	warning, err := n.System.Command(ctx, args...)
	op.Ended, op.Outcome = time.Now().UnixMilli()+1, history.OK
	op.Unsafe = warning
	if err != nil {
		op.Outcome, op.Error = history.Unknown, err.Error()
	}
	n.Log.Info("timerd", "args", args, "took", op.Ended-op.Invoked, "err", err)
}
