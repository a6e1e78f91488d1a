package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/timerd-io/timerd/client"
)

// journal writes down what becomes of each order.
type journal struct {
	sender *sender
	delays []time.Duration // of the policy
	out    io.Writer       // gets a line for each attempt that failed
	done   chan struct{}   // closed when every order is settled, or something is amiss
	byID   map[string]*record

	mu     sync.Mutex // guards the records too
	orders []*record  // in the order of their payments
	open   int        // orders that are not settled
	amiss  error      // why the journal ends early
}

// record is what became of an order.
type record struct {
	order    string
	attempts []attempt
	result   string // "" until it is settled

	since time.Time     // when the timer was set, or the last attempt ended
	next  time.Duration // how long after that the next attempt is due
}

// attempt is one call of a merchant.
type attempt struct {
	number int
	// wanted is the delay that was asked for, after the end of the attempt before or
	// the setting of the timer, and had is how long it was.
	wanted, had time.Duration
	lateness    time.Duration // of the event, as timerd tells
	answer      string
}

// newJournal returns a journal of payments whose timers are about to be set.
func newJournal(s *sender, delays []time.Duration, payments []payment, first time.Duration, out io.Writer) *journal {
	j := &journal{
		sender: s,
		delays: delays,
		out:    out,
		done:   make(chan struct{}),
		byID:   make(map[string]*record, len(payments)),
		open:   len(payments),
	}
	now := time.Now()
	for _, p := range payments {
		r := &record{order: p.Order, since: now, next: first}
		j.orders = append(j.orders, r)
		j.byID[p.Order] = r
	}
	return j
}

// handle is the client.Handler: it calls the merchant and writes down what it had
// to say. Orders that were not paid here are left to the other consumers.
func (j *journal) handle(ctx context.Context, e client.Event) error {
	r, ok := j.byID[e.Key.ID]
	if !ok {
		return nil
	}
	began := time.Now()
	a := j.sender.call(ctx, e)
	if ctx.Err() != nil {
		return ctx.Err() // cut short: that tells nothing about the merchant
	}
	j.note(r, e, began, time.Now(), a)
	return a.err()
}

// note writes down an attempt.
func (j *journal) note(r *record, e client.Event, began, ended time.Time, a answer) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r.attempts = append(r.attempts, attempt{
		number:   e.Attempt,
		wanted:   r.next,
		had:      began.Sub(r.since),
		lateness: e.Time.Sub(e.Due),
		answer:   a.text,
	})
	r.since = ended
	switch {
	case r.result != "":
		j.end(fmt.Errorf("order %s was called again after it was settled", r.order))
	case e.MaxAttempts != len(j.delays)+1:
		j.end(fmt.Errorf("this timerd allows %d attempts, not %d: start it with TIMERD_RETRY='%s'",
			e.MaxAttempts, len(j.delays)+1, retryVariable(j.delays)))
	case a.verdict == delivered:
		j.settle(r, "delivered")
	case a.verdict == hopeless:
		j.settle(r, "dead letter: given up")
	case e.Attempt >= e.MaxAttempts:
		j.settle(r, "dead letter: attempts used up")
	default:
		r.next = a.after
		if a.verdict == failed {
			r.next = j.delays[e.Attempt-1]
		}
		fmt.Fprintf(j.out, "order %s, attempt %d: %s; again in %v\n", r.order, e.Attempt, a.text, r.next)
	}
}

func (j *journal) settle(r *record, result string) {
	r.result = result
	if j.open--; j.open == 0 {
		j.end(nil)
	}
}

// end ends the journal. The first error counts.
func (j *journal) end(err error) {
	if j.amiss == nil {
		j.amiss = err
	}
	select {
	case <-j.done:
	default:
		close(j.done)
	}
}

// err returns why the journal has ended early, nil if it has not.
func (j *journal) err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.amiss
}

// follow sets the timers and handles their events until every order is settled.
func (j *journal) follow(ctx context.Context, timers *client.Timers, consumer *client.Consumer, payments []payment, first time.Duration) error {
	if err := setCallbacks(ctx, timers, payments, first); err != nil {
		return err
	}
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- consumer.Consume(consuming, namespace, j.handle) }()
	select {
	case <-j.done:
		stop() // the last verdict is carried out yet
		return errors.Join(j.err(), <-ended)
	case err := <-ended:
		return errors.Join(err, ctx.Err(), j.err())
	}
}

// table prints what became of each order: what it took, and for each attempt how
// long after the one before it was wanted and had.
func (j *journal) table(w io.Writer) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ORDER\tATTEMPTS\tWANTED\tHAD\tANSWER\tRESULT")
	for _, r := range j.orders {
		order, attempts := r.order, fmt.Sprint(len(r.attempts))
		for i, a := range r.attempts {
			result := ""
			if i == len(r.attempts)-1 {
				result = r.result
			}
			fmt.Fprintf(t, "%s\t%s\t%v\t%v\t%s\t%s\n", order, attempts, a.wanted, a.had.Round(time.Millisecond), a.answer, result)
			order, attempts = "", ""
		}
		if len(r.attempts) == 0 {
			fmt.Fprintf(t, "%s\t0\t%v\t\t\tpending\n", order, r.next)
		}
	}
	return t.Flush()
}
