package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/yamlfile"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Repeats makes timers of a schedule repeat as a file says.
type Repeats struct {
	schedule *schedule.Schedule
	client   *client.Timers
}

// NewRepeats returns the Repeats of a schedule.
func NewRepeats(s *schedule.Schedule) *Repeats {
	return &Repeats{schedule: s, client: client.New(s.Client())}
}

// ChangeKind is what is to be done about a key.
type ChangeKind string

// The kinds, as they are printed before the keys.
const (
	ToAdd    ChangeKind = "+"
	ToChange ChangeKind = "~"
	ToRemove ChangeKind = "-"
	ToLeave  ChangeKind = "="
	ToForget ChangeKind = "over" // its Until has passed, and it does not repeat
)

// Change is what makes a key repeat as a file says.
type Change struct {
	Kind   ChangeKind
	Key    string
	Has    query.KeyState // before
	Wanted *Repetition    // nil for what is not in the file
	// Fields are those of an entry that change, by their names in a file but for the first: repeat, payload, from, until, times,
	// catchup, late.
	Fields []string
	Next   time.Time // when it is due first then; of what is added or changed

	grid time.Time // where the interval counts from as it did before; the zero Time where the file says that, or it begins anew
}

// Plan is all that a file asks for.
type Plan struct {
	Changes []Change // in the order of the file, then what is to be removed
	Now     time.Time
}

// Count returns how many changes there are of a kind.
func (p *Plan) Count(kind ChangeKind) (n int) {
	for i := range p.Changes {
		if p.Changes[i].Kind == kind {
			n++
		}
	}
	return n
}

// repetitionsAtOnce is how many keys are looked at together, with their payloads.
const repetitionsAtOnce = 500

// Plan compares what a file asks for with what there is, and returns what is to change, and what is wrong with the file at this
// time. Where prune is not nil, what repeats in that namespace and is not in the file is to be removed. It changes nothing.
func (r *Repeats) Plan(ctx context.Context, wanted []Repetition, prune *keys.Namespace) (*Plan, yamlfile.Faults, error) {
	now, err := r.schedule.Clock(ctx)
	if err != nil {
		return nil, nil, err
	}
	plan := &Plan{Now: now}
	var faults yamlfile.Faults
	for some := range slices.Chunk(wanted, repetitionsAtOnce) {
		names := make([]string, len(some))
		for i := range some {
			names[i] = some[i].Key
		}
		states, err := r.states(ctx, names)
		if err != nil {
			return nil, nil, err
		}
		for i := range some {
			c, err := some[i].Change(states[i], now)
			if err != nil {
				faults = append(faults, yamlfile.Fault{Line: some[i].Line, Text: err.Error()})
			}
			plan.Changes = append(plan.Changes, c)
		}
	}
	if prune != nil && len(faults) == 0 {
		err = r.surplus(ctx, *prune, plan)
	}
	return plan, faults, err
}

// states returns the keys' repetitions, or an error if one of them is not known.
func (r *Repeats) states(ctx context.Context, names []string) ([]query.KeyState, error) {
	states, err := query.Repetitions(ctx, r.schedule, names)
	if err != nil {
		return nil, err
	}
	for i := range states {
		if err := states[i].Err; err != nil {
			return nil, fmt.Errorf("read the repetition of %s: %w", keys.Abbreviate(names[i]), err)
		}
	}
	return states, nil
}

// surplus adds the removal of what repeats in a namespace and is not in the file.
func (r *Repeats) surplus(ctx context.Context, n keys.Namespace, plan *Plan) error {
	known := map[string]bool{}
	for i := range plan.Changes {
		known[plan.Changes[i].Key] = true
	}
	var names []string
	err := query.Repeating(ctx, r.schedule, n, func(found []keys.Key) bool {
		for _, key := range found {
			if name := key.String(); !known[name] {
				known[name] = true // it may come twice
				names = append(names, name)
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	for some := range slices.Chunk(names, repetitionsAtOnce) {
		states, err := r.states(ctx, some)
		if err != nil {
			return err
		}
		for i, state := range states {
			if state.Repetition != nil {
				plan.Changes = append(plan.Changes, Change{Kind: ToRemove, Key: some[i], Has: state, Fields: []string{"repeat"}})
			}
		}
	}
	return nil
}

// Change compares what the file says of a key with what the index has, at a time of Redis. It returns an error if the
// repetition cannot be set then.
func (w *Repetition) Change(has query.KeyState, now time.Time) (Change, error) {
	c := Change{Kind: ToAdd, Key: w.Key, Has: has, Wanted: w}
	was := has.Repetition
	if was != nil && w.From.IsZero() && was.Text == w.Spec.String() && !was.From.After(now) {
		c.grid = was.From
	}
	if w.From.Sub(now) > cron.MaxInterval {
		return c, errors.New("from: is over 10 years ahead")
	}
	next, over, err := w.next(c.grid, now)
	if err != nil {
		return c, err
	}
	c.Next = next
	switch {
	case was != nil:
		c.Kind, c.Fields = ToChange, w.differences(was, now)
		if len(c.Fields) == 0 {
			c.Kind = ToLeave
		} else if over {
			c.Kind, c.Fields = ToRemove, []string{"until"}
		}
	case over:
		c.Kind = ToForget
	default:
		c.Fields = w.differences(&query.Repetition{Payload: []byte{}}, now)
		if !has.Due.IsZero() {
			c.Kind = ToChange
		}
	}
	return c, nil
}

// next returns the first occurrence after a time, or that there is none until its end. Without a from of its own it counts from
// the grid that it had, or else from now on.
func (w *Repetition) next(grid, now time.Time) (next time.Time, over bool, err error) {
	r := cron.Repetition{Spec: w.Spec, From: w.From}
	if w.From.IsZero() {
		r.From = grid
	}
	if r.From.IsZero() {
		r.From = now
	}
	if _, ok := r.Next(now); !ok {
		return next, false, fmt.Errorf("cron: no such time in the eight years after %s", now.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
	}
	r.Until = w.Until
	next, ok := r.Next(now)
	return next, !ok, nil
}

// differences returns the names of the fields of a repetition that are to change.
func (w *Repetition) differences(was *query.Repetition, now time.Time) (fields []string) {
	for _, f := range []struct {
		name    string
		changes bool
	}{
		{"repeat", was.Text != w.Spec.String()},
		{"payload", was.Payload == nil || !bytes.Equal(was.Payload, w.Payload)},
		{"from", (!w.From.IsZero() || was.From.After(now)) && msOf(was.From) != msOf(w.From)},
		{"until", msOf(was.Until) != msOf(w.Until)},
		{"times", was.Times != w.Times},
		{"catchup", was.CatchUp != w.CatchUp},
		{"late", limitOf(was.Late) != limitOf(w.Late)},
	} {
		if f.changes {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// msOf returns a time in unix ms; 0 for the zero Time, as for the beginning of 1970, from which all counts that has no from.
func msOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// limitOf returns a limit, without what says nothing in one that is not given.
func limitOf(l policy.Limit) policy.Limit {
	if !l.Given {
		return policy.Limit{}
	}
	return l
}
