package client

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/deadletter"
	"github.com/timerd-io/timerd/keys"
)

// settleTimeout bounds the tries to publish a handler's decision and to acknowledge its event. It outlasts a restart of
// NATS. After it the event is delivered again.
const settleTimeout = time.Minute

// extensions is the number of times within AckWait that an event's ack deadline is extended, so that one or two lost
// messages do no harm.
const extensions = 3

// work handles and settles the event of one message. It skips an event that another handler of this process has, and
// one that is settled already.
func (r *run) work(handlers, settle context.Context, msg *nats.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		r.Logger.Error("timerd client: message skipped, it does not come from a stream", "subject", msg.Subject, "err",
			err)
		return
	}
	p := place{seq: meta.Sequence.Stream, stored: meta.Timestamp}
	fresh, settled := r.seen.begin(p)
	switch {
	case fresh:
		r.seen.end(p, r.attend(context.WithValue(handlers, placeKey{}, p), settle, msg, meta))
	case settled:
		if err := r.settle(settle, msg, nil); err != nil {
			r.Logger.Warn("timerd client: second delivery not acknowledged", "subject", msg.Subject, "err", err)
		}
	}
}

// attend calls the handler for one event and settles the event. It reports whether the event is settled. If settle ends
// first, JetStream delivers the event again.
func (r *run) attend(handlers, settle context.Context, msg *nats.Msg, meta *nats.MsgMetadata) (settled bool) {
	e, err := r.parse(msg)
	if err != nil {
		return r.bury(settle, msg, meta, err)
	}
	result := make(chan outcome, 1)
	go func() {
		o := outcome{err: "the handler called runtime.Goexit"} // unless it returns or panics
		defer func() {
			if p := recover(); p != nil {
				o = outcome{err: event.ErrorText(fmt.Sprintf("panic: %v", p)), stack: debug.Stack()}
			}
			result <- o
		}()
		err := r.handler(r.traced(handlers, &e), e)
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
	e, err := event.ParseFired(msg.Data)
	if err != nil {
		return Event{}, err
	}
	if e.Key.Subject(r.Prefix, keys.Fired) != msg.Subject {
		return Event{}, fmt.Errorf("event: its timer %q does not match its NATS subject", e.Key)
	}
	return e, nil
}

// conclude carries out a handler's outcome, and reports whether the event is settled.
func (r *run) conclude(settle context.Context, msg *nats.Msg, e Event, o outcome) bool {
	log := r.Logger.With("key", e.Key.String(), "due_at", e.Due, "attempt", e.Attempt)
	next := r.askAgain(e, msg, event.Again{Error: o.err})
	switch {
	case o.verdict == verdictDone:
		next = nil
	case o.verdict == verdictReturn:
		log.Info("timerd client: giving an event back", "err", o.err)
		r.source.giveBack(msg)
		return false
	case o.verdict == verdictDead:
		log.Warn("timerd client: event given up, sending it to the dead letters", "err", o.err)
		e.DeadReason, e.LastError = event.ReasonGivenUp, o.err
		next = r.giveUp(e)
	case o.verdict == verdictRetryAfter:
		log.Warn("timerd client: attempt failed, asking for a retry", "err", o.err, "delay", o.delay)
		next = r.askAgain(e, msg, event.Again{Error: o.err, Delay: &o.delay})
	case o.verdict == verdictNoSooner:
		log.Warn("timerd client: attempt failed, asking for a retry", "err", o.err, "least_delay", o.delay)
		next = r.askAgain(e, msg, event.Again{Error: o.err, Least: &o.delay})
	case o.verdict == verdictPostpone:
		log.Info("timerd client: event postponed, its attempt is not used up", "err", o.err, "delay", o.delay)
		next = r.askAgain(e, msg, event.Again{Error: o.err, Delay: &o.delay, Postpone: true})
	case o.stack != nil:
		log.Error("timerd client: handler panicked, asking for a retry", "err", o.err, "stack", string(o.stack))
	default:
		log.Warn("timerd client: attempt failed, asking for a retry", "err", o.err)
	}
	err := r.settle(settle, msg, next)
	if err != nil {
		log.Error("timerd client: event not settled, it is delivered again", "err", err)
	}
	return err == nil
}

// bury makes a dead letter of a message without an event, and reports whether it could.
func (r *run) bury(settle context.Context, msg *nats.Msg, meta *nats.MsgMetadata, cause error) bool {
	r.Logger.Error("timerd client: malformed event, sending it to the dead letters", "subject", msg.Subject, "err",
		cause)
	stored := event.Stored{Subject: msg.Subject, Data: msg.Data, Stream: meta.Stream, Seq: meta.Sequence.Stream,
		Time: meta.Timestamp}
	e := stored.StandIn(r.Prefix, keys.Fired)
	e.DeadReason = event.ReasonMalformed + event.ClipText(cause.Error())
	err := r.settle(settle, msg, r.giveUp(e))
	if err != nil {
		r.Logger.Error("timerd client: malformed event not settled, it is delivered again", "subject", msg.Subject,
			"err", err)
	}
	return err == nil
}

// askAgain returns a function that publishes a request to fire an event's timer again.
func (r *run) askAgain(e Event, msg *nats.Msg, again event.Again) func(context.Context) error {
	again.Consumer = r.Durable
	return func(ctx context.Context) error {
		_, err := deadletter.PublishLargest(ctx, r.js, event.RetryRequest(r.Prefix, e, msg.Data, again))
		return err
	}
}

// giveUp returns a function that publishes a dead letter.
func (r *run) giveUp(e Event) func(context.Context) error {
	return func(ctx context.Context) error { return deadletter.Publish(ctx, r.js, r.Prefix, e) }
}

// settle calls publish, if not nil, which waits until its message is stored, and then acknowledges the event. It
// retries both until settle ends or settleTimeout is over. After an error the event is delivered again.
func (r *run) settle(settle context.Context, msg *nats.Msg, publish func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(settle, settleTimeout)
	defer cancel()
	if publish != nil {
		if err := r.persist(ctx, msg, publish); err != nil {
			return err
		}
	}
	if err := r.persist(ctx, msg, func(ctx context.Context) error {
		return r.source.acknowledge(ctx, msg)
	}); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// persist tries do until it succeeds, ctx ends or the connection is closed. Meanwhile it extends the ack deadline of
// msg.
func (r *run) persist(ctx context.Context, msg *nats.Msg, do func(context.Context) error) error {
	for failures := 1; ; failures++ {
		call, cancel := context.WithTimeout(ctx, min(callTimeout, r.AckWait/extensions))
		err := do(call)
		cancel()
		if err == nil {
			return nil
		}
		if r.js.Conn().IsClosed() || !backoff.Sleep(ctx, min(pause(failures), r.AckWait/extensions)) {
			return err
		}
		r.source.extend(msg)
	}
}
