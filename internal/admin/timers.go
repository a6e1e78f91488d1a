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

// batch limits the timers that one round trip cancels or moves. These take Redis 1 to 2 ms in as many calls, and some
// 30 ms if each call reads a record of 256 KB. After each batch there is a pause of the same length. It leaves time to
// Redis, and to the timerds, which receive an event for every deleted key.
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

// Selection selects the timers of an action: by a query, or one by one.
type Selection struct {
	query.Query
	Chosen []schedule.Which // if not empty, Query is ignored
}

// TimerCount counts the timers of a selection.
type TimerCount struct {
	Timers int64     // all of them
	Late   int64     // due already: owed, or firing and so too late to be cancelled
	Last   time.Time // when the last one is due
	Looked int64     // entries of the schedule searched so far, of every namespace
	Total  int64     // entries at the start of the search
	Cut    bool      // not all were searched: too many are owed or firing, or slots of a cluster are moving

	// Counted is the selection bounded by the due time of the last timer found, and by the end of the count. It leaves
	// out timers set afterwards that are due later. While slots are moving, it is the whole selection.
	Counted Selection
}

// Count counts the timers of a selection. It calls progress now and then with the counts so far, and returns them
// beside an error too.
func (t *Timers) Count(ctx context.Context, sel Selection, progress func(TimerCount)) (TimerCount, error) {
	found := TimerCount{Counted: sel}
	err := t.pages(ctx, sel, func(p query.Page) bool {
		for _, timer := range p.Timers {
			found.Timers++
			found.Last = timer.Due // they come by due time
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
	if last.Before(now) { // all unsearched timers are due by now: too many are owed, or they became owed meanwhile
		last = now
	}
	if end := last.Add(time.Millisecond); sel.Before.IsZero() || end.Before(sel.Before) {
		found.Counted.Before = end
	}
	return found, nil
}

// Cancelled is the result of cancelling a selection.
type Cancelled struct {
	Cancelled int64
	TooLate   int64     // firing, or fired lately
	Gone      int64     // gone by their turn: cancelled by somebody else, or set to a later time
	Until     time.Time // the due time reached; the zero Time: none was tried
	Cut       bool      // too many are owed or firing to search all
}

// Cancel cancels the timers of a selection, one by one by due time: pending, held and owed ones, and retries. It is not
// atomic. Each timer is cancelled as it was found, by its key and due time: a timer set to a later time meanwhile
// stays, unless the search reaches it again. So with Before, all later timers stay in any case. Then Cancel looks again
// for timers that became due meanwhile, until it cancels no more.
//
// It calls progress after each batch. It stops between two batches when ctx ends, and at the first error that is not
// about one timer; the result is valid beside an error too. Called again, it goes on with the rest. An error that wraps
// a *query.MovingError means that slots of a cluster are moving, and that only their timers were left out.
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
		// During the search timers became owed, and so moved behind it. And one search reads only a limited number of
		// owed timers.
		if sel.States = dueOf(sel.States); len(sel.States) == 0 {
			return c.done, nil
		}
	}
}

// dueOf returns the states among some states that a due timer can have. An empty list stands for all states.
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
	alone    bool // only some timers of a key may be meant
	progress func(Cancelled)
	done     Cancelled
	left     map[client.Due]*int64 // timers not cancelled, with their counters: a firing timer is found again
}

// cancel cancels some timers and counts the results.
func (c *cancellation) cancel(ctx context.Context, some []query.Timer, left leftOut) error {
	dues := make([]client.Due, len(some))
	for i, timer := range some {
		dues[i] = client.Due{Key: timer.Key.String(), Due: timer.Due, Alone: c.alone}
	}
	results, err := c.timers.cancelDue(ctx, dues)
	for i, r := range results {
		counter := &c.done.Gone
		switch {
		case left.takes(keys.PartitionOf(dues[i].Key), r.Err), r.Err != nil: // err covers it
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

// cancelDue is [client.Timers.CancelDue] for a batch of timers of any keys. A key with many timers takes Redis some ms,
// so each of these gets its own round trip. It stops at the first failure, unless the slot is moving: later timers have
// no result.
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
		if slices.ContainsFunc(some, func(r client.CancelResult) bool {
			return r.Err != nil &&
				!schedule.IsMoving(r.Err)
		}) {
			return results, err
		}
	}
	return results, nil
}

// Moved is the result of moving a selection.
type Moved struct {
	Moved   int64
	TooLate int64 // owed or firing, or fired lately
	Held    int64 // due and held: they fire when they are resumed
	Changed int64 // set again, cancelled or moved by somebody else before their turn
	Denied  int64 // timerd may not write their keys
}

// Move makes the pending timers of a selection due at a time, or now if that time has passed, like
// [schedule.Schedule.Move]. It goes through them one by one, by due time, and moves each only if it is still as it was
// found. The zero Time means fire now. Timers found by a query that are already due stay as they are, so that none is
// moved twice. Progress, the end of ctx and errors are as in Cancel.
func (t *Timers) Move(ctx context.Context, sel Selection, to time.Time, progress func(Moved)) (Moved, error) {
	var done Moved
	// Timers whose new due time is a little later than asked for: the search may reach them again.
	further := map[schedule.Which]bool{}
	to = to.Add(time.Millisecond - time.Nanosecond).Truncate(time.Millisecond) // due times are whole ms
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

// MoveKey is Move for the pending timer of a key, and a retry beside it. Other timers of the key are counted and stay
// as they are.
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
		case query.StatePending: // among the timers found
		}
	}
	return done, err
}

// CancelKey cancels the timers of a key that are due until a time. A timer that was set since and is due later stays.
// The zero Time means all timers of the key, and the pending occurrence of a repetition, whatever its number is by now.
func (t *Timers) CancelKey(ctx context.Context, key string, until time.Time) (client.Outcome, error) {
	if until.IsZero() {
		return t.client.Cancel(ctx, key)
	}
	results, err := t.client.CancelDue(ctx, []client.Due{{Key: key, Due: until}})
	return results[0].Outcome, err
}

// pages calls yield with one page of a selection after the other.
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

// leftOut has the partitions with timers that were found but not changed, because their slots began to move.
type leftOut map[keys.Partition]bool

// takes reports whether an error about a timer means that its slot is moving, and notes the partition.
func (l leftOut) takes(p keys.Partition, err error) bool {
	if !schedule.IsMoving(err) {
		return false
	}
	l[p] = true
	return true
}

// error returns the search's error, or a MovingError for the partitions left out. The search may have reached some of
// them before their slots moved.
func (l leftOut) error(searched error) error {
	slots := len(l)
	if moving, is := errors.AsType[*query.MovingError](searched); is {
		slots = max(slots, moving.Slots)
	} else if searched != nil || slots == 0 {
		return searched
	}
	return &query.MovingError{Slots: slots}
}

// pass searches the timers of the selection once and calls act with a batch of them at a time. It reports whether there
// may be more.
func (t *Timers) pass(ctx context.Context, sel Selection, act func(context.Context, []query.Timer,
	leftOut) error) (cut bool, err error) {
	var found []query.Timer
	var failed error
	left := leftOut{}
	// It finishes a batch after ctx ends, so that its results are known.
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
	if failed == nil { // only timers of moving slots are left
		failed = left.error(err)
	}
	return cut, failed
}
