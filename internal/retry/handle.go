package retry

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// extensions is how often within AckWait JetStream is told that a request is being worked on.
	extensions = 3
	// tellEvery is how long nothing more is logged of requests that are set aside.
	tellEvery = time.Minute
)

// handle tries one request once, and has it acknowledged or given back. It tries none after ctx has ended; work ends a
// try that is under way.
func (c *Consumer) handle(ctx, work context.Context, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		c.note(partConsumer, time.Now(), err) // cannot happen: JetStream wrote it
		return
	}
	if ctx.Err() != nil {
		c.settling.addBack(msg, 0)
		return
	}
	d := decide(c.Streams.SubjectPrefix(), c.Policies, c.MaxPayload(), event.Stored{
		Subject: msg.Subject(),
		Header:  msg.Headers(),
		Data:    msg.Data(),
		Stream:  meta.Stream,
		Seq:     meta.Sequence.Stream,
		Time:    meta.Timestamp,
	})
	if c.Permit() != nil {
		c.settling.addBack(msg, longestPause)
		return
	}
	stop := c.keep(msg)
	result, failed := c.carryOut(work, d)
	stop()
	if failed != nil {
		c.OnFailed(*failed, msg.Headers().Get(event.ConsumerHeader), meta.Timestamp)
	}
	switch {
	case result == carriedOut:
		c.settling.addDone(msg)
	case ctx.Err() != nil:
		c.settling.addBack(msg, 0)
	default:
		c.giveBack(msg, meta.NumDelivered, result)
	}
}

// outcome is what became of a request.
type outcome int

const (
	carriedOut outcome = iota
	crowded            // not tried, for too many others are in lanes without trust
	failing            // it failed, or its lane does
)

// keep has JetStream keep a request from being delivered elsewhere until stop is called.
func (c *Consumer) keep(msg jetstream.Msg) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		tick := time.NewTicker(c.AckWait / extensions)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = msg.InProgress() // or it is delivered again, which does no harm
			case <-stopped:
				return
			}
		}
	}()
	return func() { close(stopped) }
}

// carryOut does what was decided about a request. failed is the key of a timer whose attempt has failed with it, nil for none.
func (c *Consumer) carryOut(work context.Context, d decision) (result outcome, failed *keys.Key) {
	if d.letter != nil {
		if result = c.bury(work, d.letter); result == carriedOut && d.letter.class == DeadExhausted {
			failed = &d.letter.event.Key
		}
		return result, failed
	}
	var due schedule.Millis
	var set bool
	var tooMany error
	key := d.retry.Key
	partition := c.retrier.Partition(key.String())
	server := c.retrier.ServerOf(partition)
	through := []passage{{of: c.timersOn(server), name: laneOfTimer(partition)}}
	if server != "" {
		through = []passage{{of: c.servers, name: laneOfServer(server)}, through[0]}
	}
	result = c.try(work, through, func(ctx context.Context) (verdict, error) {
		var err error
		if due, set, err = c.retrier.Retry(ctx, d.retry); errors.Is(err, schedule.ErrTooManyRetries) {
			tooMany, err = err, nil
		}
		return c.judgeRedis(partition, err), err
	})
	switch {
	case result != carriedOut:
	case tooMany != nil:
		return c.bury(work, d.refuse(tooMany.Error())), nil
	case set:
		source := "retry"
		if d.postponed {
			source = "postponed"
		} else {
			failed = &key
		}
		c.Logger.Debug("timer is set again", "key", key.String(), "due_at", due.Time(), "attempt", d.retry.Attempt, "source", source)
		c.countSet(key, due, d.postponed)
	default:
		c.OnIgnored()
	}
	return result, failed
}

// bury makes a request a dead letter.
func (c *Consumer) bury(work context.Context, l *deadLetter) outcome {
	through := []passage{{of: c.dead, name: laneOfLetter(c.Streams.SubjectPrefix(), &l.event)}}
	result := c.try(work, through, func(ctx context.Context) (verdict, error) {
		err := streams.Bury(ctx, c.js, c.Streams, l.event)
		return judgeLetter(err), err
	})
	if result == carriedOut {
		c.reportBuried(l)
	}
	return result
}

// verdict is what the outcome of a try is about: which part of what a Consumer depends on works or does not, and what it says of
// the lane, and of the lane of the server above it.
type verdict struct {
	part   part // parts for none
	lane   lanes.Says
	server lanes.Says
}

// judgeRedis tells what a call to Redis for a timer of a partition says.
func (c *Consumer) judgeRedis(p keys.Partition, err error) verdict {
	switch {
	case err == nil:
		return verdict{partRedis, lanes.Works, lanes.Works}
	case schedule.IsMoving(err):
		return verdict{parts, lanes.Fails, lanes.Works}
	case schedule.IsRefused(err):
		return verdict{partRedis, lanes.Nothing, lanes.Works} // the answer came at once, and others may get another one
	case schedule.IsClusterDown(err):
		return verdict{parts, lanes.Fails, lanes.Nothing} // some server says so of the slot
	case p != keys.Single:
		return verdict{parts, lanes.Nothing, lanes.Fails}
	}
	return verdict{partRedis, lanes.Fails, lanes.Nothing}
}

// judgeLetter tells what the publishing of a dead letter says. A subject that is denied has no answer.
func judgeLetter(err error) verdict {
	v := verdict{part: parts, lane: lanes.Fails}
	var refused jetstream.JetStreamError
	if err == nil || errors.As(err, &refused) {
		v.part = partDead
	}
	if err == nil {
		v.lane = lanes.Works
	}
	return v
}

// timersOn returns the window of the requests for timers on a server, an empty text where there is only one. Those for a slow
// server leave the others' room for slots that nothing is known of.
func (c *Consumer) timersOn(server string) *lanes.Window {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.timers[server]
	if w == nil {
		w = lanes.New(lanes.Shares{Unknown: timerShare, Each: 1})
		c.timers[server] = w
	}
	return w
}

// passage is a lane that a request passes through. What one request meets with, others may not: a slot of a Redis Cluster that
// is on the move, dead letters of a subject that NATS refuses, a full stream of dead letters. So each request is of a lane, of
// those that fail together: the subject of its dead letter, or else its key's part of the schedule. Above the latter there are
// lanes by server, each of which may fill half of the window at most: a server that does not answer is one failure, not one for
// each of its slots. Requests that may not be tried are given back.
type passage struct {
	of   *lanes.Window
	name string
	on   *lanes.Lane // once it has entered
}

// laneOfServer returns the lane of all requests to set timers again on a server.
func laneOfServer(name string) string { return "redis " + name }

// laneOfTimer returns the lane of a request to set a timer again in a partition.
func laneOfTimer(p keys.Partition) string { return "redis " + p.Prefix() }

// laneOfLetter returns the lane of a request that becomes a dead letter.
func laneOfLetter(prefix string, e *event.Event) string { return e.Key.Subject(prefix, keys.Dead) }

// enter has a request enter all lanes that it passes through, of which the last is its own, or none. Then result says why.
func enter(through []passage, window int) (result outcome) {
	for i := range through {
		p := &through[i]
		var answer lanes.Answer
		if p.on, answer = p.of.Enter(p.name, lanes.Load{Tries: window}, 0); answer == lanes.In {
			continue
		}
		leave(through[:i], verdict{})
		if answer == lanes.Failing {
			return failing
		}
		return crowded
	}
	return carriedOut
}

// leave has it leave them with what its try says. It returns the name of one of which it is news that it fails, or an empty text.
func leave(through []passage, v verdict) (news string) {
	for i, p := range through {
		says := v.lane
		if i < len(through)-1 {
			says = v.server
		}
		if p.of.Leave(p.on, 0, says) && news == "" {
			news = p.name
		}
	}
	return news
}

// try does something once for a request, if its lanes let it.
func (c *Consumer) try(work context.Context, through []passage, do func(context.Context) (verdict, error)) outcome {
	result := enter(through, c.Window)
	if result == failing && !c.held() {
		c.OnSetAside()
	}
	if result != carriedOut {
		return result
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(work, c.limits.callTimeout)
	v, err := do(ctx)
	cancel()
	if err != nil && work.Err() != nil {
		v = verdict{part: parts} // it was cut short
	}
	news := leave(through, v)
	if v.part != parts {
		c.note(v.part, began, err)
	}
	if err == nil {
		return carriedOut
	}
	if !c.held() {
		c.OnSetAside()
		if news != "" {
			c.logParked(news, err)
		}
	}
	return failing
}

// logParked logs that requests of a lane wait, once a minute for all lanes.
func (c *Consumer) logParked(name string, err error) {
	c.mu.Lock()
	now := time.Now()
	quiet := now.Sub(c.told) < tellEvery
	if !quiet {
		c.told = now
	}
	c.mu.Unlock()
	if !quiet {
		c.Logger.Warn("retry requests are set aside: one of them at a time is tried; all others are carried out", "source", name, "err", err)
	}
}

// reportBuried logs a dead letter and calls OnBuried.
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
