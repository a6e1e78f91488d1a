package retry

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/letter"
	"github.com/timerd-io/timerd/schedule"
)

// handle carries out one request and acknowledges it, or gives it back. No further try begins after ctx has ended; work
// ends a try that is under way.
func (c *Consumer) handle(ctx, work context.Context, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		c.note(partConsumer, time.Now(), err) // cannot happen: JetStream wrote it
		return
	}
	d := decide(c.Names.SubjectPrefix(), c.Policies, c.MaxPayload, event.Stored{
		Subject: msg.Subject(),
		Header:  msg.Headers(),
		Data:    msg.Data(),
		Stream:  meta.Stream,
		Seq:     meta.Sequence.Stream,
		Time:    meta.Timestamp,
	})
	if !c.carryOut(ctx, work, msg, d) {
		// Delivered again soon, or at once if this timerd stops; after AckWait if the message is lost.
		if ctx.Err() != nil {
			_ = msg.Nak()
		} else {
			_ = msg.NakWithDelay(longestPause)
		}
		return
	}
	acknowledge := func(ctx context.Context) error {
		err := msg.DoubleAck(ctx)
		if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			return nil
		}
		return err
	}
	c.persist(ctx, work, msg, partAck, acknowledge) // or it comes again and is found done
}

// carryOut does what was decided about a request, and tells whether it is done.
func (c *Consumer) carryOut(ctx, work context.Context, msg jetstream.Msg, d decision) bool {
	if d.letter != nil {
		return c.carryOutLetter(ctx, work, msg, d.letter)
	}
	var due schedule.Millis
	var tooMany error
	set, failed := false, false
	done := c.persist(ctx, work, msg, partRedis, func(ctx context.Context) (err error) {
		due, set, err = c.retrier.Retry(ctx, d.retry)
		if errors.Is(err, schedule.ErrTooManyRetries) {
			tooMany = err
			return nil
		}
		if err == nil && !set && failed {
			due, set = d.retry.Due, true // by the try before, it seems
		}
		failed = failed || err != nil
		return err
	})
	switch {
	case !done:
	case tooMany != nil:
		return c.carryOutLetter(ctx, work, msg, d.refuse(tooMany.Error()))
	case set:
		c.Logger.Debug("timer is set again", "key", d.retry.Key.String(), "due_at", due.Time(),
			"attempt", d.retry.Attempt, "source", "retry")
		c.countRetry(d.retry.Key, due)
	default:
		c.OnIgnored()
	}
	return done
}

// carryOutLetter makes a request a dead letter, and tells whether it is done.
func (c *Consumer) carryOutLetter(ctx, work context.Context, msg jetstream.Msg, l *deadLetter) bool {
	done := c.persist(ctx, work, msg, partDead, func(ctx context.Context) error { return c.bury(ctx, l) })
	if done {
		c.reportBuried(l)
	}
	return done
}

// persist tries do until it works, for holdTime and while ctx goes on, and keeps the request from being delivered
// elsewhere meanwhile. It tells whether it worked.
func (c *Consumer) persist(ctx, work context.Context, msg jetstream.Msg, part part, do func(context.Context) error) bool {
	first := time.Now()
	for failures := 1; ; failures++ {
		began := time.Now()
		call, cancel := context.WithTimeout(work, min(callTimeout, c.AckWait/2))
		err := do(call)
		cancel()
		if err == nil || work.Err() == nil {
			c.note(part, began, err)
		}
		switch {
		case err == nil:
			return true
		case time.Since(first) > holdTime || !backoff.Sleep(ctx, pause(failures)):
			return false
		}
		_ = msg.InProgress() // or it is delivered again, which does no harm
	}
}

// bury publishes a dead letter and waits until it is stored.
func (c *Consumer) bury(ctx context.Context, l *deadLetter) error {
	err := letter.PublishDead(ctx, c.js, c.Names.SubjectPrefix(), l.event,
		jetstream.WithExpectStream(c.Names.DeadStream()), jetstream.WithRetryAttempts(0))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		return errors.Join(err, c.ensure(ctx))
	}
	return err
}

// reportBuried tells of a dead letter.
func (c *Consumer) reportBuried(l *deadLetter) {
	e := &l.event
	if l.class == DeadExhausted {
		c.Logger.Warn("attempts are used up, the timer is a dead letter", "key", e.Key.String(), "due_at", e.Due,
			"attempt", e.Attempt, "err", event.ClipText(e.LastError))
	} else {
		c.Logger.Warn("malformed retry request is a dead letter", "source", l.request, "err", e.DeadReason)
	}
	c.OnBuried(l.class)
}
