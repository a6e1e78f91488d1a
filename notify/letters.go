package notify

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// letterShare is the part of the window, of firings and of bytes, that dead letters may fill.
	letterShare = 4
	// letterFlow is how long after a dead letter was stored others wait for room in that part. Later they are given back.
	letterFlow = time.Second
	// logLateEvery is how long nothing more is logged of timers that are too late, but for debugging.
	logLateEvery = 10 * time.Second
)

// letters is the firings that become dead letters. They are in the window, but fill a part of it at most, in which each subject
// has a lane: dead letters that nobody takes hold up no firing. Its methods may be called concurrently.
type letters struct {
	*Options
	js       jetstream.JetStream
	gate     *gate
	window   *window
	health   *health
	subjects *lanes.Window
	wake     chan struct{} // wakes run
	kick     chan struct{} // signalled when one has ended

	mu     sync.Mutex
	queue  []*delivery // to be published
	stored time.Time   // when one was stored last
	late   tally       // of firings that were too late
}

// room returns the part of the window that dead letters may fill.
func (l *letters) room() lanes.Load {
	return lanes.Load{Tries: max(l.Window/letterShare, 1), Bytes: max(l.WindowBytes/letterShare, 1)}
}

// awaited reports whether what becomes a dead letter is to wait until others are stored, as they soon are.
func (l *letters) awaited() bool {
	if l.subjects.Load().Fits(l.room(), 1) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.stored) <= letterFlow
}

// idle reports whether none is under way.
func (l *letters) idle() bool { return l.subjects.Load().Tries == 0 }

// take takes over a firing that becomes a dead letter and is in the window already. It is given back if no dead letter
// of its subject may be tried.
func (l *letters) take(d *delivery) {
	var answer lanes.Answer
	d.subject = l.Streams.Subject(d.firing.Key, keys.Dead)
	if d.lane, answer = l.subjects.Enter(d.subject, l.room(), len(d.firing.Payload)); answer != lanes.In {
		l.setAside(d, answer)
		return
	}
	l.mu.Lock()
	l.queue = append(l.queue, d)
	l.mu.Unlock()
	signal(l.wake)
}

// setAside gives a firing back for a while because of what the lane of its dead letter answers.
func (l *letters) setAside(d *delivery, answer lanes.Answer) {
	if answer != lanes.Failing {
		l.window.giveBack(d, schedule.OutcomeGivenBack, crowdedPause)
		return
	}
	l.window.park(d, answer)
}

// run publishes dead letters until ctx ends and none is under way. What is left is given back.
func (l *letters) run(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	for ended := false; !ended; {
		select {
		case <-l.wake:
		case <-ctx.Done():
			ended = true
		}
		l.mu.Lock()
		queue := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, d := range queue {
			under.Go(func() { l.end(ctx, d, l.publish(ctx, d)) })
		}
	}
}

// publish publishes a dead letter and waits until it is stored, for as long as the lease allows.
func (l *letters) publish(ctx context.Context, d *delivery) error {
	if ctx.Err() != nil || d.expiring() {
		return errExpiring
	}
	d.published = d.firing.Now()
	e := d.event(l.ContentType, d.withhold)
	e.DeadReason = d.reason
	publishing, cancel := context.WithTimeout(ctx, min(l.AckWait, d.firing.Remaining()))
	defer cancel()
	return streams.Bury(publishing, l.js, l.Streams, e)
}

// mayBeStored reports whether a letter whose publication has failed may be in the stream: JetStream has not refused it.
func mayBeStored(err error) bool {
	_, refused := errors.AsType[*jetstream.APIError](err)
	return err != nil && !refused && !errors.Is(err, errExpiring) && !errors.Is(err, jetstream.ErrNoStreamResponse) &&
		!errors.Is(err, nats.ErrReconnectBufExceeded) && !errors.Is(err, nats.ErrMaxPayload)
}

// end has a firing settled whose dead letter is stored, or given back if that failed: if the letter may be stored all
// the same, so that nobody holds or cancels the firing, and it becomes the same letter again.
func (l *letters) end(ctx context.Context, d *delivery, err error) {
	bytes := len(d.firing.Payload)
	d.mayBeStored = d.mayBeStored || mayBeStored(err)
	switch {
	case err == nil:
		l.mu.Lock()
		l.stored = time.Now()
		l.mu.Unlock()
		kind := schedule.OutcomeUnfired
		if d.mayBeStored {
			kind = schedule.OutcomeFired
		}
		l.window.settle(d, kind)
		l.subjects.Leave(d.lane, bytes, lanes.Works)
		l.report(d)
	case ctx.Err() != nil || errors.Is(err, errExpiring) || !l.health.now().connected:
		l.window.giveBack(d, schedule.OutcomeGivenBack, 0)
		l.subjects.Leave(d.lane, bytes, lanes.Nothing)
	default:
		l.setAside(d, lanes.Failing)
		if l.subjects.Leave(d.lane, bytes, lanes.Fails) {
			l.Logger.Warn("the dead letters on this subject are not stored: timers that are too late wait, and one at a time is tried again",
				"subject", d.subject, "err", err)
		}
	}
	l.gate.announce()
	signal(l.kick)
}

// report logs a dead letter that is stored.
func (l *letters) report(d *delivery) {
	f := &d.firing
	switch {
	case f.Fault != "":
		l.Logger.Warn("a timer cannot repeat, and became a dead letter", "key", f.Key.String(), "err", f.Fault)
	case f.Held:
		l.Logger.Debug("a timer that was held is a dead letter", "key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt)
	default:
		l.reportLate(d, LateDead)
	}
}

// reportLate tells what became of a firing that was claimed too late.
func (l *letters) reportLate(d *delivery, action LateAction) {
	f := &d.firing
	l.Metrics.Late(f, action)
	l.Logger.Debug("timer is too late to fire", "key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt,
		"source", string(action), "err", d.reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	if count := l.late.add(time.Now(), 1); count > 0 {
		l.Logger.Warn("timers are too late to fire: by their limits they are dead letters or dropped; this is the last one", "count", count,
			"key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt, "source", string(action), "err", d.reason)
	}
}
