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
	// extensions is the number of times within AckWait that JetStream is told of work on a request.
	extensions = 3
	// tellEvery is the least interval between log lines about requests set aside.
	tellEvery = time.Minute
)

// handle tries one request once. Then it acknowledges the request or gives it back. After the end of ctx it starts no
// try; the end of work ends a running try.
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
	ahead, err := c.Ahead(ctx)
	if err != nil {
		c.settling.addBack(msg, longestPause)
		return
	}
	d := decide(c.Streams.SubjectPrefix(), c.Policies, c.MaxPayload(), event.Stored{
		Subject: msg.Subject(),
		Header:  msg.Headers(),
		Data:    msg.Data(),
		Stream:  meta.Stream,
		Seq:     meta.Sequence.Stream,
		Time:    meta.Timestamp.Add(ahead),
	})
	if c.Permit() != nil {
		c.settling.addBack(msg, longestPause)
		return
	}
	stop := c.keep(msg)
	result, failed := c.carryOut(work, d)
	stop()
	if failed != nil {
		c.OnFailed(streams.Failure{Key: *failed, Consumer: msg.Headers().Get(event.ConsumerHeader), At: meta.Timestamp,
			Error: msg.Headers().Get(event.ErrorHeader)})
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

// outcome is the result of a request.
type outcome int

const (
	carriedOut outcome = iota
	crowded            // not tried: too many others are in unproven lanes
	failing            // it failed, or its lane is failing
)

// keep tells JetStream again and again that a request is in work, so that it is not delivered elsewhere, until stop is
// called.
func (c *Consumer) keep(msg jetstream.Msg) (stop func()) {
	stopped := make(chan struct{})
	go func() {
		tick := time.NewTicker(c.AckWait / extensions)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = msg.InProgress() // otherwise it is delivered again, which does no harm
			case <-stopped:
				return
			}
		}
	}()
	return func() { close(stopped) }
}

// carryOut carries out a decision. failed is the key of the timer if an attempt failed, and nil otherwise.
func (c *Consumer) carryOut(work context.Context, d decision) (result outcome, failed *keys.Key) {
	if d.letter != nil {
		if result = c.bury(work, d.letter); result == carriedOut && d.letter.class == DeadExhausted {
			failed = &d.letter.event.Key
		}
		return result, failed
	}
	var due schedule.Millis
	var set bool
	var refused error
	key := d.retry.Key
	partition := c.retrier.Partition(key.String())
	server := c.retrier.ServerOf(partition)
	through := []passage{{of: c.timersOn(server), name: laneOfTimer(partition)}}
	if server != "" {
		through = []passage{{of: c.servers, name: laneOfServer(server)}, through[0]}
	}
	result = c.try(work, through, func(ctx context.Context) (verdict, error) {
		var err error
		due, set, err = c.retrier.Retry(ctx, d.retry)
		if errors.Is(err, schedule.ErrTooManyRetries) || errors.Is(err, schedule.ErrGuardSlot) {
			refused, err = err, nil
		}
		return c.judgeRedis(partition, err), err
	})
	switch {
	case result != carriedOut:
	case refused != nil:
		return c.bury(work, d.refuse(refused.Error())), nil
	case set:
		source := "retry"
		if d.postponed {
			source = "postponed"
		} else {
			failed = &key
		}
		c.Logger.Debug("set the timer again", "key", key.String(), "due_at", due.Time(), "attempt", d.retry.Attempt,
			"source", source)
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

// verdict is the meaning of a try: for a part that the Consumer depends on, for the request's lane, and for the lane of
// the server above that lane.
type verdict struct {
	part   part // parts for none
	lane   lanes.Says
	server lanes.Says
}

// judgeRedis returns the verdict on a call to Redis for a timer of a partition.
func (c *Consumer) judgeRedis(p keys.Partition, err error) verdict {
	switch {
	case err == nil:
		return verdict{partRedis, lanes.Works, lanes.Works}
	case schedule.IsMoving(err):
		return verdict{parts, lanes.Fails, lanes.Works}
	case schedule.IsRefused(err):
		return verdict{partRedis, lanes.Nothing, lanes.Works} // Redis answers; other requests may get another answer
	case schedule.IsClusterDown(err):
		return verdict{parts, lanes.Fails, lanes.Nothing} // some server reports that about the slot
	case p != keys.Single:
		return verdict{parts, lanes.Nothing, lanes.Fails}
	}
	return verdict{partRedis, lanes.Fails, lanes.Nothing}
}

// judgeLetter returns the verdict on publishing a dead letter. A denied subject gets no answer.
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

// timersOn returns the window of requests for timers on a server; the name is empty if it is the only server. Each
// server has its own window, so requests for a slow server do not take the room for other servers' unproven slots.
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

// passage is a lane that a request passes through. A request may fail alone: its slot of a Redis Cluster is moving,
// NATS refuses the subject of its dead letter, or the stream of dead letters is full. So requests that fail together
// share a lane: the subject of the dead letter, or else the key's partition. Above the partitions are lanes by server,
// each for half of the window at most: a silent server is one failure, not one for each of its slots. A request that a
// lane does not admit is given back.
type passage struct {
	of   *lanes.Window
	name string
	on   *lanes.Lane // set after enter
}

// laneOfServer returns the lane of all requests to set timers again on a server.
func laneOfServer(name string) string { return "redis " + name }

// laneOfTimer returns the lane of a request to set a timer again in a partition.
func laneOfTimer(p keys.Partition) string { return "redis " + p.Prefix() }

// laneOfLetter returns the lane of a request that becomes a dead letter.
func laneOfLetter(prefix string, e *event.Event) string { return e.Key.Subject(prefix, keys.Dead) }

// enter enters the lanes of all passages for a request. The last passage is the request's own lane. If a lane refuses,
// enter leaves the lanes entered before and returns the reason.
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

// leave leaves the lanes of a request, with the verdict of its try. It returns the name of a newly failing lane, or an
// empty text.
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

// try calls do once for a request, if the lanes of the request admit it.
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
		v = verdict{part: parts} // it was interrupted
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

// logParked logs that requests of a lane are set aside, once a minute for all lanes.
func (c *Consumer) logParked(name string, err error) {
	c.mu.Lock()
	now := time.Now()
	quiet := now.Sub(c.told) < tellEvery
	if !quiet {
		c.told = now
	}
	c.mu.Unlock()
	if !quiet {
		c.Logger.Warn("some retry requests are set aside: one of them at a time is retried; all others are carried out",
			"source", name, "err", err)
	}
}

// reportBuried logs a dead letter and calls OnBuried.
func (c *Consumer) reportBuried(l *deadLetter) {
	e := &l.event
	if l.class == DeadExhausted {
		c.Logger.Warn("no attempts left: the timer is a dead letter", "key", e.Key.String(), "due_at", e.Due,
			"attempt", e.Attempt, "err", event.ClipText(e.LastError))
	} else {
		c.Logger.Warn("malformed retry request: it is a dead letter", "source", l.request, "err", e.DeadReason)
	}
	c.OnBuried(l.class)
}
