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
	// letterShare is the part of the window, in firings and bytes, for dead letters.
	letterShare = 4
	// letterFlow is the time for which dead letters wait for room after one was stored. After that time they are given
	// back.
	letterFlow = time.Second
	// logLateEvery is the interval of log lines about timers that are too late, above the level for debugging.
	logLateEvery = 10 * time.Second
)

// letters has the firings that become dead letters. They fill a part of the window at most. In that part each subject
// has a lane: so dead letters that NATS refuses delay no firing. The methods of letters may be called concurrently.
type letters struct {
	*Options
	js       jetstream.JetStream
	gate     *gate
	window   *window
	health   *health
	subjects *lanes.Window
	wake     chan struct{} // wakes run
	kick     chan struct{} // signals the end of each

	mu     sync.Mutex
	queue  []*delivery // to be published
	stored time.Time   // when the last one was stored
	late   tally       // of firings that were too late
}

// room returns the part of the window for dead letters.
func (l *letters) room() lanes.Load {
	return lanes.Load{Tries: max(l.Window/letterShare, 1), Bytes: max(l.WindowBytes/letterShare, 1)}
}

// awaited reports whether a dead letter should wait, because others are stored soon.
func (l *letters) awaited() bool {
	if l.subjects.Load().Fits(l.room(), 1) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.stored) <= letterFlow
}

// idle reports whether no dead letter is under way.
func (l *letters) idle() bool { return l.subjects.Load().Tries == 0 }

// take takes over a firing in the window that becomes a dead letter. It gives the firing back if the lane of the
// subject does not admit the letter.
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

// setAside gives a firing back for a while. answer is the answer of the lane of its dead letter.
func (l *letters) setAside(d *delivery, answer lanes.Answer) {
	if answer != lanes.Failing {
		l.window.giveBack(d, schedule.OutcomeGivenBack, crowdedPause)
		return
	}
	l.window.park(d, answer)
}

// run publishes dead letters until ctx ends and none is being published. It gives the rest back.
func (l *letters) run(ctx context.Context) {
	var publishing sync.WaitGroup
	defer publishing.Wait()
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
			publishing.Go(func() { l.end(ctx, d, l.publish(ctx, d)) })
		}
	}
}

// publish publishes a dead letter and waits until it is stored, within the lease.
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

// mayBeStored reports whether a letter may be in the stream after an error, because JetStream has not refused it.
func mayBeStored(err error) bool {
	_, refused := errors.AsType[*jetstream.APIError](err)
	return err != nil && !refused && !errors.Is(err, errExpiring) && !errors.Is(err, jetstream.ErrNoStreamResponse) &&
		!errors.Is(err, nats.ErrReconnectBufExceeded) && !errors.Is(err, nats.ErrMaxPayload)
}

// end settles a firing whose dead letter is stored, or gives it back after a failure. If the letter may be stored, the
// firing is given back as perhaps published. Then nobody holds or cancels it, and it becomes the same letter again.
func (l *letters) end(ctx context.Context, d *delivery, err error) {
	bytes := len(d.firing.Payload)
	d.mayBeStored = d.mayBeStored || mayBeStored(err)
	switch {
	case err == nil:
		l.mu.Lock()
		l.stored = time.Now()
		l.mu.Unlock()
		l.window.settle(d, schedule.OutcomeDead)
		l.subjects.Leave(d.lane, bytes, lanes.Works)
		l.report(d)
	case ctx.Err() != nil || errors.Is(err, errExpiring) || !l.health.now().connected:
		l.window.giveBack(d, schedule.OutcomeGivenBack, 0)
		l.subjects.Leave(d.lane, bytes, lanes.Nothing)
	default:
		l.setAside(d, lanes.Failing)
		if l.subjects.Leave(d.lane, bytes, lanes.Fails) {
			l.Logger.Warn(
				"the dead letters on this subject are not stored: timers that are too late wait, and one at a time is"+
					" tried again", "subject", d.subject, "err", err)
		}
	}
	l.gate.announce()
	signal(l.kick)
}

// report logs a stored dead letter.
func (l *letters) report(d *delivery) {
	f := &d.firing
	switch {
	case f.Fault != "":
		l.Logger.Warn("a timer cannot repeat, and became a dead letter", "key", f.Key.String(), "err", f.Fault)
	case f.Held:
		l.Logger.Debug("a held timer became a dead letter",
			"key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt)
	default:
		l.reportLate(d, LateDead)
	}
}

// reportLate reports the fate of a firing that was claimed too late.
func (l *letters) reportLate(d *delivery, action LateAction) {
	f := &d.firing
	l.Metrics.Late(f, action)
	l.Logger.Debug("timer is too late to fire", "key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt,
		"source", string(action), "err", d.reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	if count := l.late.add(time.Now(), 1); count > 0 {
		l.Logger.Warn(
			"timers are too late to fire: by their limits they are dead letters or dropped; this is the last one",
			"count", count, "key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt,
			"source", string(action), "err", d.reason)
	}
}
