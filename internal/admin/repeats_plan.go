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

// ChangeKind is the change that a key needs.
type ChangeKind string

// The kinds, as they are printed before the keys.
const (
	ToAdd    ChangeKind = "+"
	ToChange ChangeKind = "~"
	ToRemove ChangeKind = "-"
	ToLeave  ChangeKind = "="
	ToForget ChangeKind = "over" // its Until has passed, and it does not repeat
)

// Change makes one key repeat as a file says.
type Change struct {
	Kind   ChangeKind
	Key    string
	Has    query.KeyState // before
	Wanted *Repetition    // nil for a key that is not in the file
	// Fields are the changed fields of the entry, by their names in a file, with the rhythm as "repeat": repeat,
	// payload, from, until, times, catchup, late.
	Fields []string
	Next   time.Time // the first due time after an addition or a change

	grid time.Time // the kept origin of the interval; the zero Time if the file gives one, or it begins again
}

// Plan has all changes that a file asks for.
type Plan struct {
	Changes []Change // in the order of the file, then the removals
	Now     time.Time
}

// Count returns the number of changes of a kind.
func (p *Plan) Count(kind ChangeKind) (n int) {
	for i := range p.Changes {
		if p.Changes[i].Kind == kind {
			n++
		}
	}
	return n
}

// repetitionsAtOnce limits the keys that are read together, with their payloads.
const repetitionsAtOnce = 500

// Plan compares a file with the schedule, and returns the changes and the file's faults at this time. If prune is not
// nil, it also removes the repetitions of that namespace that are not in the file. It changes nothing.
func (r *Repeats) Plan(ctx context.Context, wanted []Repetition,
	prune *keys.Namespace) (*Plan, yamlfile.Faults, error) {
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

// states returns the keys' repetitions, or an error if one cannot be read.
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

// surplus plans the removal of a namespace's repetitions that are not in the file.
func (r *Repeats) surplus(ctx context.Context, n keys.Namespace, plan *Plan) error {
	known := map[string]bool{}
	for i := range plan.Changes {
		known[plan.Changes[i].Key] = true
	}
	var names []string
	err := query.Repeating(ctx, r.schedule, n, func(found []keys.Key) bool {
		for _, key := range found {
			if name := key.String(); !known[name] {
				known[name] = true // a search may find it twice
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
				plan.Changes = append(plan.Changes, Change{Kind: ToRemove, Key: some[i], Has: state,
					Fields: []string{"repeat"}})
			}
		}
	}
	return nil
}

// Change compares an entry with the key's state in the index, at a time of Redis. It returns an error if the repetition
// cannot be set at that time.
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

// next returns the first occurrence after a time, or over if the repetition ends before it. Without From, the interval
// counts from the earlier grid, or else from now.
func (w *Repetition) next(grid, now time.Time) (next time.Time, over bool, err error) {
	r := cron.Repetition{Spec: w.Spec, From: w.From}
	if w.From.IsZero() {
		r.From = grid
	}
	if r.From.IsZero() {
		r.From = now
	}
	if _, ok := r.Next(now); !ok {
		return next, false, fmt.Errorf("cron: no occurrence in the eight years after %s",
			now.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
	}
	r.Until = w.Until
	next, ok := r.Next(now)
	return next, !ok, nil
}

// differences returns the names of the changed fields of a repetition.
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
		{"unless", was.Guards.Unless != w.Guards.Unless},
		{"if", was.Guards.If != w.Guards.If},
	} {
		if f.changes {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// msOf returns a time in unix ms; 0 for the zero Time, because a repetition without from counts from the beginning of
// 1970.
func msOf(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// limitOf returns a limit, with all fields zero if it sets none.
func limitOf(l policy.Limit) policy.Limit {
	if !l.Given {
		return policy.Limit{}
	}
	return l
}
