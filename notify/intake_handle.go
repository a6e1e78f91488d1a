package notify

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
)

// handle carries out one request and acknowledges it, or gives it back. ctx ends
// when there is no time for further tries, work when there is none for this one.
func (in *Intake) handle(ctx, work context.Context, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		in.note(partConsumer, err) // cannot happen: JetStream wrote it
		return
	}
	d := judge(in.Streams, in.Policies, request{
		subject: msg.Subject(),
		header:  msg.Headers(),
		data:    msg.Data(),
		stream:  meta.Stream,
		seq:     meta.Sequence.Stream,
		stored:  meta.Timestamp,
	})
	if !in.carryOut(ctx, work, msg, d) {
		in.giveBack(ctx, msg)
		return
	}
	acknowledge := func(ctx context.Context) error {
		err := msg.DoubleAck(ctx)
		if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return nil
		}
		return err
	}
	in.persist(ctx, work, msg, partAck, acknowledge) // or it comes again and is found done
}

// carryOut does what was decided about a request, and tells whether it is done.
func (in *Intake) carryOut(ctx, work context.Context, msg jetstream.Msg, d decision) bool {
	if d.letter != nil {
		if !in.persist(ctx, work, msg, partDead, func(ctx context.Context) error { return in.bury(ctx, d.letter) }) {
			return false
		}
		in.buried(d.letter)
		return true
	}
	var due int64
	set, failed := false, false
	done := in.persist(ctx, work, msg, partRedis, func(ctx context.Context) (err error) {
		due, set, err = in.retrier.Retry(ctx, d.retry)
		if err == nil && !set && failed {
			due, set = d.retry.Due, true // by the try before, it seems
		}
		failed = failed || err != nil
		return err
	})
	switch {
	case !done:
	case set:
		in.log().Debug("timer is set again", "key", d.retry.Key.String(), "due_at", time.UnixMilli(due).UTC(),
			"attempt", d.retry.Attempt, "source", "retry")
		in.retried(d.retry.Key, due)
	case in.Hooks.Ignored != nil:
		in.Hooks.Ignored()
	}
	return done
}

// persist tries do until it works, for holdTime and while ctx goes on, and keeps
// the request from being delivered elsewhere meanwhile. It tells whether it worked.
func (in *Intake) persist(ctx, work context.Context, msg jetstream.Msg, part intakePart, do func(context.Context) error) bool {
	began := time.Now()
	for pause := firstIntakePause; ; pause = min(2*pause, longestIntakePause) {
		call, cancel := context.WithTimeout(work, min(intakeCall, in.ackWait()/2))
		err := do(call)
		cancel()
		if err == nil || work.Err() == nil {
			in.note(part, err)
		}
		switch {
		case err == nil:
			return true
		case time.Since(began) > holdTime || !wait(ctx, pause):
			return false
		}
		_ = msg.InProgress() // or it is delivered again, which does no harm
	}
}

// giveBack has a request delivered again: soon, or at once where this timerd ends.
// Should that not get through, it is delivered after AckWait.
func (in *Intake) giveBack(ctx context.Context, msg jetstream.Msg) {
	if ctx.Err() != nil {
		_ = msg.Nak()
	} else {
		_ = msg.NakWithDelay(longestIntakePause)
	}
}

// bury publishes a dead letter and waits until it is stored.
func (in *Intake) bury(ctx context.Context, l *letter) (err error) {
	for e := range l.forms() {
		msg := nats.NewMsg(l.subject)
		msg.Data = e.AppendJSON(nil)
		msg.Header.Set(event.MsgIDHeader, e.ID)
		msg.Header.Set(event.ContentTypeHeader, event.ContentType)
		_, err = in.js.PublishMsg(ctx, msg, jetstream.WithExpectStream(in.Streams.Dead()), jetstream.WithRetryAttempts(0))
		if !isTooLarge(err) {
			break
		}
	}
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return errors.Join(err, EnsureStreams(ctx, in.js, in.Streams))
	}
	return err
}

// isTooLarge tells whether a message was refused for its size.
func isTooLarge(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, nats.ErrMaxPayload) || errors.As(err, &api) && api.ErrorCode == codeMessageTooLong
}

// buried tells of a dead letter.
func (in *Intake) buried(l *letter) {
	e := &l.event
	if l.class == DeadExhausted {
		in.log().Warn("attempts are used up, the timer is a dead letter", "key", e.Key.String(), "due_at", e.Due,
			"attempt", e.Attempt, "err", clipText(e.LastError))
	} else {
		in.log().Warn("malformed retry request is a dead letter", "source", l.request, "err", e.DeadReason)
	}
	if in.Hooks.Buried != nil {
		in.Hooks.Buried(l.class)
	}
}
