package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// batch is how many timers are cancelled or moved in one round trip, if not fewer: a ms or two of Redis's time in as many calls,
// and some 30 ms where each reads a record of 256 KB. After each, others have as long for themselves: Redis, and the timerds,
// which hear of every key that is deleted.
const batch = 64

// Timers works on the timers of a schedule. Its methods may be called concurrently.
type Timers struct {
	schedule *schedule.Schedule
	client   *client.Timers
}

// NewTimers returns the Timers of a schedule.
func NewTimers(s *schedule.Schedule) *Timers {
	return &Timers{schedule: s, client: client.New(s.Client())}
}

// Selection is the timers that an action is for: those of a query, or some that were chosen one by one.
type Selection struct {
	query.Query
	Chosen []schedule.Which // where there are some, Query does not count
}

// TimerCount is how many timers a selection has.
type TimerCount struct {
	Timers int64     // all of them
	Late   int64     // those of them that are due already: owed, or firing and so too late to be cancelled
	Last   time.Time // when the last one is due
	Looked int64     // entries of the schedule that were looked at, of every namespace
	Total  int64     // entries that there were when the search began
	Cut    bool      // so many are owed or firing that not all of these were looked at, or slots of a cluster are moving

	// Counted is the selection without what is due later than all that was found, and than the end of the count. Of timers that are
	// set afterwards it does not have those that are due later still. While slots are moving it is the whole selection.
	Counted Selection
}

// Count counts the timers of a selection. It calls progress now and then with what is known so far. With an error it returns
// that too.
func (t *Timers) Count(ctx context.Context, sel Selection, progress func(TimerCount)) (TimerCount, error) {
	found := TimerCount{Counted: sel}
	err := t.pages(ctx, sel, func(p query.Page) bool {
		for _, timer := range p.Timers {
			found.Timers++
			found.Last = timer.Due // they come in the order of their due times
			if timer.State != query.StatePending && timer.State != query.StateHeld {
				found.Late++
			}
		}
		found.Looked, found.Total, found.Cut = p.Looked, p.Total, p.Cut
		progress(found)
		return true
	})
	if _, moving := errors.AsType[*query.MovingError](err); moving {
		found.Cut = true
		return found, nil
	}
	var now time.Time
	if err == nil {
		now, err = t.schedule.Clock(ctx)
	}
	if err != nil {
		return found, fmt.Errorf("count the timers: %w", err)
	}
	last := found.Last
	if last.Before(now) { // by when all are due that were not looked at, as so many are owed or they became owed meanwhile
		last = now
	}
	if end := last.Add(time.Millisecond); sel.Before.IsZero() || end.Before(sel.Before) {
		found.Counted.Before = end
	}
	return found, nil
}

// Cancelled is what came of the timers of a selection.
type Cancelled struct {
	Cancelled int64
	TooLate   int64     // firing, or fired lately
	Gone      int64     // not there any more when their turn came: somebody else has cancelled them, or set them to a later time
	Until     time.Time // the due time that it has come to; the zero Time: none was tried
	Cut       bool      // so many are owed or firing that not all of these were looked at
}

// Cancel cancels the timers of a selection, one by one in the order of their due times: pending, held and owed ones, and retries. It
// is not atomic. Each timer is cancelled as it was found, by its key and due time: one that is set to a later time meanwhile
// stays, unless the search comes to it again. So with Before all that is due later stays in any case. What became due meanwhile is
// looked for once more, until no more of it is cancelled.
//
// It calls progress after each batch. It ends between two batches when ctx does, and at the first error that is not that of
// one timer; what it returns beside the error is true in any case. Called again, it goes on with what is left. An error that
// wraps a *query.MovingError says that slots of a cluster are moving, and that only what is there was left out.
func (t *Timers) Cancel(ctx context.Context, sel Selection, progress func(Cancelled)) (Cancelled, error) {
	c := cancellation{
		timers: t, progress: progress, left: map[client.Due]*int64{},
		alone: len(sel.Chosen) > 0 || !sel.From.IsZero() || len(sel.States) > 0,
	}
	for first := true; ; first = false {
		before := c.done.Cancelled
		cut, err := t.pass(ctx, sel, c.cancel)
		c.done.Cut = cut
		if err != nil {
			return c.done, fmt.Errorf("cancel timers: %w", err)
		}
		if len(sel.Chosen) > 0 || !first && c.done.Cancelled == before {
			return c.done, nil
		}
		// While the search went on, timers became owed: they moved from where it was still to look to where it had looked. And of what
		// is owed one search looks at so many at most.
		if sel.States = dueOf(sel.States); len(sel.States) == 0 {
			return c.done, nil
		}
	}
}

// dueOf returns those of some states that a timer has once it is due; none stands for all.
func dueOf(states []query.State) []query.State {
	due := []query.State{query.StateOwed, query.StateHeld, query.StateFiring}
	if len(states) == 0 {
		return due
	}
	return slices.DeleteFunc(due, func(s query.State) bool { return !slices.Contains(states, s) })
}

// cancellation is one call of Cancel.
type cancellation struct {
	timers   *Timers
	alone    bool // of a key with several timers only some may be meant
	progress func(Cancelled)
	done     Cancelled
	left     map[client.Due]*int64 // what was not cancelled, and where it is counted: what is firing is found again
}

// cancel cancels some timers and adds what came of them.
func (c *cancellation) cancel(ctx context.Context, some []query.Timer, left leftOut) error {
	dues := make([]client.Due, len(some))
	for i, timer := range some {
		dues[i] = client.Due{Key: timer.Key.String(), Due: timer.Due, Alone: c.alone}
	}
	results, err := c.timers.cancelDue(ctx, dues)
	for i, r := range results {
		counter := &c.done.Gone
		switch {
		case left.takes(keys.PartitionOf(dues[i].Key), r.Err), r.Err != nil: // err tells
			continue
		case r.Outcome == client.Cancelled:
			counter = &c.done.Cancelled
		case r.Outcome == client.Fired, some[i].State != query.StatePending:
			counter = &c.done.TooLate
		}
		*counter++
		if counted := c.left[dues[i]]; counted != nil {
			*counted--
		}
		if counter != &c.done.Cancelled {
			c.left[dues[i]] = counter
		}
	}
	if err == nil {
		if last := some[len(some)-1].Due; last.After(c.done.Until) {
			c.done.Until = last
		}
		c.progress(c.done)
	}
	return err
}

// cancelDue is [client.Timers.CancelDue] for a batch of timers that may be anybody's. A key with many timers takes Redis some ms, so
// each of these has a round trip of its own. It ends with the first one that fails, unless its slot is moving: what came after it has
// no results.
func (t *Timers) cancelDue(ctx context.Context, timers []client.Due) ([]client.CancelResult, error) {
	names := make([]string, len(timers))
	for i := range timers {
		names[i] = timers[i].Key
	}
	crowded, err := query.Crowded(ctx, t.schedule, names)
	if err != nil {
		return nil, err
	}
	results := make([]client.CancelResult, 0, len(timers))
	for len(results) < len(timers) {
		first := len(results)
		end := first + 1
		for end < len(timers) && !crowded[first] && !crowded[end] {
			end++
		}
		some, err := t.client.CancelDue(ctx, timers[first:end])
		results = append(results, some...)
		if slices.ContainsFunc(some, func(r client.CancelResult) bool { return r.Err != nil && !schedule.IsMoving(r.Err) }) {
			return results, err
		}
	}
	return results, nil
}

// Moved is what came of the timers of a selection that were to be moved.
type Moved struct {
	Moved   int64
	TooLate int64 // owed or firing, or fired lately
	Held    int64 // due and held: they fire when they are resumed
	Changed int64 // set anew, cancelled or moved by somebody else before it was their turn
	Denied  int64 // timerd may not write their keys
}

// Move has the timers of a selection be due at a time, or now if that is over, as [schedule.Schedule.Move] does: those that are pending,
// one by one in the order of their due times, each as it was found. To the zero Time they fire now. Those that a query finds and that are due
// then already are left alone, so that none is moved twice. What is said of progress, of the end of ctx and of errors at Cancel holds here too.
func (t *Timers) Move(ctx context.Context, sel Selection, to time.Time, progress func(Moved)) (Moved, error) {
	var done Moved
	// Those that were moved a little further than to, where the search may come to them again.
	further := map[schedule.Which]bool{}
	to = to.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond) // as due times are whole ms
	_, err := t.pass(ctx, sel, func(ctx context.Context, some []query.Timer, left leftOut) error {
		var moves []schedule.Move
		for _, timer := range some {
			if len(sel.Chosen) > 0 || !timer.Due.Equal(to) && !further[timer.Which()] {
				moves = append(moves, schedule.Move{Which: timer.Which(), To: to})
			}
		}
		results, err := t.schedule.Move(ctx, moves)
		failed := false
		for i, r := range results {
			failed = failed || r.Err != nil && !left.takes(keys.PartitionOf(moves[i].Key.String()), r.Err)
			switch r.Outcome {
			case schedule.MoveDone:
				done.Moved++
				if !to.IsZero() && !r.Due.Equal(to) {
					again := moves[i].Which
					again.Due = r.Due
					further[again] = true
				}
			case schedule.MoveTooLate:
				done.TooLate++
			case schedule.MoveHeld:
				done.Held++
			case schedule.MoveChanged:
				done.Changed++
			case schedule.MoveDenied:
				done.Denied++
			}
		}
		if failed {
			return err
		}
		progress(done)
		return nil
	})
	if err != nil {
		return done, fmt.Errorf("move timers: %w", err)
	}
	return done, nil
}

// MoveKey is Move for what is pending of a key, a retry beside it too. What else there is of the key is counted, and left alone.
func (t *Timers) MoveKey(ctx context.Context, key keys.Key, to time.Time) (Moved, error) {
	found, err := query.Inspect(ctx, t.schedule, key, 0)
	if err != nil {
		return Moved{}, fmt.Errorf("look for the timer: %w", err)
	}
	var done Moved
	if some := found.Pending(); len(some) > 0 {
		done, err = t.Move(ctx, Selection{Chosen: some}, to, func(Moved) {})
	}
	for _, timer := range found.Timers {
		switch timer.State {
		case query.StateHeld:
			done.Held++
		case query.StateOwed, query.StateFiring:
			done.TooLate++
		case query.StatePending: // is among those
		}
	}
	return done, err
}

// CancelKey cancels the timers of a key that are due until a time: one that was set since and is due later stays. The zero Time means
// all of them, and of a repetition whichever occurrence is pending by now.
func (t *Timers) CancelKey(ctx context.Context, key string, until time.Time) (client.Outcome, error) {
	if until.IsZero() {
		return t.client.Cancel(ctx, key)
	}
	results, err := t.client.CancelDue(ctx, []client.Due{{Key: key, Due: until}})
	return results[0].Outcome, err
}

// pages calls yield for one stretch of a selection after the other.
func (t *Timers) pages(ctx context.Context, sel Selection, yield func(query.Page) bool) error {
	if len(sel.Chosen) == 0 {
		return query.Names(ctx, t.schedule, sel.Query, yield)
	}
	timers := make([]query.Timer, len(sel.Chosen))
	for i, w := range sel.Chosen {
		timers[i] = query.Timer{Key: w.Key, Due: w.Due, Attempt: w.Attempt, Beside: w.Beside, State: query.StatePending}
	}
	yield(query.Page{Timers: timers})
	return nil
}

// leftOut is the partitions with timers that were found, but could not be worked on as their slots were moving by then.
type leftOut map[keys.Partition]bool

// takes tells whether an error about a timer says that its slot is moving, and if so notes that.
func (l leftOut) takes(p keys.Partition, err error) bool {
	if !schedule.IsMoving(err) {
		return false
	}
	l[p] = true
	return true
}

// error returns what a search has ended with, or that slots were moving. It may have come to some of them that were moving by then.
func (l leftOut) error(searched error) error {
	slots := len(l)
	if moving, is := errors.AsType[*query.MovingError](searched); is {
		slots = max(slots, moving.Slots)
	} else if searched != nil || slots == 0 {
		return searched
	}
	return &query.MovingError{Slots: slots}
}

// pass looks at all timers of the selection once and calls act with a batch of them at a time. It returns whether there may be more.
func (t *Timers) pass(ctx context.Context, sel Selection, act func(context.Context, []query.Timer, leftOut) error) (cut bool, err error) {
	var found []query.Timer
	var failed error
	left := leftOut{}
	// It goes on with a batch when ctx ends, so that what came of that is known.
	flush := func(n int) error {
		some := found[:n]
		found = found[n:]
		return act(context.WithoutCancel(ctx), some, left)
	}
	err = t.pages(ctx, sel, func(p query.Page) bool {
		cut = p.Cut
		found = append(found, p.Timers...)
		for failed == nil && ctx.Err() == nil && len(found) >= batch {
			began := time.Now()
			failed = flush(batch)
			backoff.Sleep(ctx, time.Since(began))
		}
		return failed == nil && ctx.Err() == nil
	})
	_, moving := errors.AsType[*query.MovingError](err)
	if failed == nil && !moving {
		failed = cmp.Or(err, ctx.Err())
	}
	if failed == nil && len(found) > 0 {
		failed = flush(len(found))
	}
	if failed == nil { // what is not on the move is done
		failed = left.error(err)
	}
	return cut, failed
}
