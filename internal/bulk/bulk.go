// Package bulk counts and cancels the timers of a namespace, however many there are, in steps that are short for Redis and
// for others who use it.
package bulk

import (
	"context"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// batch is how many timers are cancelled in one round trip: a ms or two of Redis's time in as many calls. After each, others
// have as long for themselves: Redis, and the timerds, which hear of every key that is deleted.
const batch = 64

// Selection says which timers are meant: those of a namespace that are not settled.
type Selection struct {
	Namespace keys.Namespace
	Before    time.Time // only those that are due before; the zero Time: whenever they are
}

// has tells whether a timer is due early enough.
func (s Selection) has(due time.Time) bool { return s.Before.IsZero() || due.Before(s.Before) }

// Timers works on the timers of a schedule. Its methods may be called concurrently.
type Timers struct {
	schedule *schedule.Schedule
	client   *client.Timers
}

// New returns Timers that finds them by one and cancels them by the other, both on the same Redis.
func New(s *schedule.Schedule, c *client.Timers) *Timers { return &Timers{schedule: s, client: c} }

// Found is how many timers a selection has.
type Found struct {
	Timers int64     // all of them
	Late   int64     // those of them that are due already: owed, or firing and so too late to be cancelled
	Last   time.Time // when the last one is due
	Looked int64     // entries of the schedule that were looked at, of every namespace
	Total  int64     // entries that there were when the search began
	Cut    bool      // so many are owed or firing that not all of these were looked at

	// Counted is the selection without what is due later than all that was found. Of timers that are set afterwards it
	// does not have those that are due later still.
	Counted Selection
}

// Count counts the timers of a selection. It calls progress now and then with what is known so far. With an error it returns
// that too.
func (t *Timers) Count(ctx context.Context, sel Selection, progress func(Found)) (Found, error) {
	found := Found{Counted: sel}
	var now time.Time
	err := t.schedule.Names(ctx, schedule.Query{Namespace: sel.Namespace}, func(p schedule.Page) bool {
		for _, timer := range p.Timers {
			if !sel.has(timer.Due) {
				continue
			}
			found.Timers++
			found.Last = timer.Due // they come in the order of their due times
			if timer.State != schedule.StatePending && timer.State != schedule.StateHeld {
				found.Late++
			}
		}
		found.Looked, found.Total, found.Cut, now = p.Looked, p.Total, p.Cut, p.Now
		progress(found)
		return sel.has(p.Until)
	})
	if err != nil {
		return found, fmt.Errorf("count the timers: %w", err)
	}
	last := found.Last
	if found.Cut && last.Before(now) { // those that were not looked at are due by now
		last = now
	}
	if end := last.Add(time.Millisecond); sel.has(end) {
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
// stays, unless the search comes to it again. So with Before all that is due later stays in any case.
//
// It calls progress after each batch. It ends between two batches when ctx does, and at the first error that is not that of
// one timer; what it returns beside the error is true in any case. Called again, it goes on with what is left.
func (t *Timers) Cancel(ctx context.Context, sel Selection, progress func(Cancelled)) (Cancelled, error) {
	c := cancelling{timers: t.client, progress: progress}
	for {
		before := c.done.Cancelled
		if err := t.pass(ctx, sel, &c); err != nil {
			return c.done, fmt.Errorf("cancel timers: %w", err)
		}
		// What is owed beyond what one search looks at comes with the next one.
		if !c.done.Cut || c.done.Cancelled == before {
			return c.done, nil
		}
	}
}

// pass looks at all timers of the selection once.
func (t *Timers) pass(ctx context.Context, sel Selection, c *cancelling) error {
	var failed error
	err := t.schedule.Names(ctx, schedule.Query{Namespace: sel.Namespace}, func(p schedule.Page) bool {
		c.done.Cut = p.Cut
		for _, timer := range p.Timers {
			if sel.has(timer.Due) {
				c.found = append(c.found, timer)
			}
		}
		for failed == nil && ctx.Err() == nil && len(c.found) >= batch {
			began := time.Now()
			failed = c.flush(ctx, batch)
			backoff.Sleep(ctx, time.Since(began))
		}
		return failed == nil && ctx.Err() == nil && sel.has(p.Until)
	})
	if failed == nil {
		failed = err
	}
	if failed == nil {
		failed = ctx.Err()
	}
	if failed == nil {
		failed = c.flush(ctx, len(c.found))
	}
	return failed
}

// cancelling is a cancellation of many timers.
type cancelling struct {
	timers   *client.Timers
	progress func(Cancelled)

	found []schedule.Timer // that are to be cancelled
	done  Cancelled
}

// flush cancels the first n of the timers that were found. It goes on when ctx ends, so that what came of them is known.
func (c *cancelling) flush(ctx context.Context, n int) error {
	if n == 0 {
		return nil
	}
	some := make([]client.Due, n)
	for i, timer := range c.found[:n] {
		some[i] = client.Due{Key: timer.Key.String(), Due: timer.Due}
	}
	results, err := c.timers.CancelDue(context.WithoutCancel(ctx), some)
	for i, r := range results {
		switch {
		case r.Err != nil: // err tells
		case r.Outcome == client.Cancelled:
			c.done.Cancelled++
		case r.Outcome == client.Fired, c.found[i].State != schedule.StatePending:
			c.done.TooLate++
		default:
			c.done.Gone++
		}
	}
	if err == nil {
		c.done.Until = some[n-1].Due
		c.progress(c.done)
	}
	c.found = c.found[n:]
	return err
}
