package client

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// settleTimeout bounds the tries to publish a handler's verdict and to acknowledge
// its event. It outlasts a restart of NATS; after it the event is delivered again.
const settleTimeout = time.Minute

// extensions is how many times within AckWait the deadline of an event is moved
// on, so that one or two lost messages do no harm.
const extensions = 3

// work attends to one message, unless it is a second delivery of one that is being
// attended to or is settled already.
func (r *run) work(handlers, settle context.Context, msg *nats.Msg) {
	p, err := placeOf(msg)
	if err != nil {
		r.Logger.Error("timerd client: message passed over, it is not one of a stream", "subject", msg.Subject, "err", err)
		return
	}
	fresh, settled := r.ledger.begin(p)
	switch {
	case fresh:
		r.ledger.end(p, r.attend(handlers, settle, msg))
	case settled:
		if err := r.settle(settle, msg, nil); err != nil {
			r.Logger.Warn("timerd client: second delivery not acknowledged", "subject", msg.Subject, "err", err)
		}
	}
}

// attend has one event handled and settles it, and tells whether it could. Where
// settle ends first, the event is left to be delivered again.
func (r *run) attend(handlers, settle context.Context, msg *nats.Msg) (settled bool) {
	e, err := r.parse(msg)
	if err != nil {
		return r.bury(settle, msg, err)
	}
	result := make(chan outcome, 1)
	go func() {
		o := exited()
		defer func() {
			if p := recover(); p != nil {
				o = panicked(p)
			}
			result <- o
		}()
		err := r.handler(handlers, e)
		o = judge(err, handlers.Err() != nil)
	}()

	extend := time.NewTicker(r.AckWait / extensions)
	defer extend.Stop()
	for {
		select {
		case o := <-result:
			return r.conclude(settle, msg, e, o)
		case <-extend.C:
			r.source.extend(msg)
		case <-settle.Done():
			r.unfinished.Add(1)
			return false
		}
	}
}

// parse reads the event of a message and checks that it belongs to its subject.
func (r *run) parse(msg *nats.Msg) (Event, error) {
	e, err := event.Parse(msg.Data)
	switch {
	case err != nil:
		return Event{}, err
	case e.Type != event.TypeFired:
		return Event{}, fmt.Errorf("event: type %q, want %q", e.Type, event.TypeFired)
	case e.Key.Subject(r.Prefix, keys.Fired) != msg.Subject:
		return Event{}, fmt.Errorf("event: of the timer %q, which is not one of its NATS subject", e.Key)
	}
	return e, nil
}

// conclude does what a handler's outcome asks for, and tells whether the event is
// settled.
func (r *run) conclude(settle context.Context, msg *nats.Msg, e Event, o outcome) bool {
	log := r.Logger.With("key", e.Key.String(), "due_at", e.Due, "attempt", e.Attempt)
	var next *letter
	switch {
	case o.verdict == verdictReturn:
		log.Info("timerd client: handler was cut short, giving its event back", "err", o.err)
		r.source.giveBack(msg)
		return false
	case o.verdict == verdictDead:
		log.Warn("timerd client: event given up, sending it to the dead letters", "err", o.err)
		next = r.deadLetter(e, reasonGivenUp, o.err)
	case o.verdict == verdictRetryAfter:
		log.Warn("timerd client: attempt failed, asking for a retry", "err", o.err, "delay", o.delay)
		next = r.retryRequest(msg, e, o)
	case o.stack != nil:
		log.Error("timerd client: handler panicked, asking for a retry", "err", o.err, "stack", string(o.stack))
		next = r.retryRequest(msg, e, o)
	case o.verdict == verdictRetry:
		log.Warn("timerd client: attempt failed, asking for a retry", "err", o.err)
		next = r.retryRequest(msg, e, o)
	}
	err := r.settle(settle, msg, next)
	if err != nil {
		log.Error("timerd client: event not settled, it is delivered again", "err", err)
	}
	return err == nil
}

// bury sends a message that is no event to the dead letters, and tells whether it
// could.
func (r *run) bury(settle context.Context, msg *nats.Msg, cause error) bool {
	r.Logger.Error("timerd client: malformed event, sending it to the dead letters", "subject", msg.Subject, "err", cause)
	e, err := r.malformed(msg)
	if err == nil {
		err = r.settle(settle, msg, r.deadLetter(e, clip(reasonMalformed+cause.Error()), ""))
	}
	if err != nil {
		r.Logger.Error("timerd client: malformed event not settled, it is delivered again", "subject", msg.Subject, "err", err)
	}
	return err == nil
}

// settle publishes what is to come of an event, if anything, and then acknowledges
// the event; each durably, and tried again until settle ends or settleTimeout is
// over. After an error the event is delivered again.
func (r *run) settle(settle context.Context, msg *nats.Msg, next *letter) error {
	ctx, cancel := context.WithTimeout(settle, settleTimeout)
	defer cancel()
	if next != nil {
		if err := r.persist(ctx, msg, func(ctx context.Context) error { return r.publish(ctx, next) }); err != nil {
			return fmt.Errorf("publish to %s: %w", next.subject, err)
		}
	}
	if err := r.persist(ctx, msg, func(ctx context.Context) error { return r.source.acknowledge(ctx, msg) }); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// persist tries do until it succeeds, ctx ends or the connection is closed, and
// moves the deadline of msg on meanwhile.
func (r *run) persist(ctx context.Context, msg *nats.Msg, do func(context.Context) error) error {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		call, cancel := context.WithTimeout(ctx, min(callTimeout, r.AckWait/extensions))
		err := do(call)
		cancel()
		if err == nil {
			return nil
		}
		if r.js.Conn().IsClosed() || !wait(ctx, min(pause, r.AckWait/extensions)) {
			return err
		}
		r.source.extend(msg)
	}
}
