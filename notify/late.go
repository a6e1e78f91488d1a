package notify

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/letter"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// LateAction is what became of a firing that was claimed too late.
type LateAction string

// The actions.
const (
	LateDead LateAction = "dead" // it is a dead letter
	LateDrop LateAction = "drop" // it is forgotten
)

const (
	// letterShare is the part of the window, of firings and of bytes, that dead letters may fill.
	letterShare = 4
	// letterFlow is how long after a dead letter was stored others wait for room in that part. Later they are given back.
	letterFlow = time.Second
	// tellLateEvery is how long nothing more is logged of timers that are too late, but for debugging.
	tellLateEvery = 10 * time.Second
)

// letters is the firings that were claimed too late and become dead letters. They are in the window, but fill a part of it
// at most, in which each subject has its own trust: dead letters that nobody takes hold up no firing. Publisher.mu guards it,
// except for wake.
type letters struct {
	wake   chan struct{}
	queue  []lateLetter // to be published
	load   load         // in the queue and being published
	trust  trust
	stored time.Time // when one was stored last

	told   time.Time // when the log told of firings that were too late
	untold int       // how many there were since
}

func newLetters() letters { return letters{wake: make(chan struct{}, 1), trust: newTrust()} }

// lateLetter is a firing whose dead letter is to be published, and why.
type lateLetter struct {
	delivery *delivery
	reason   string
}

// errExpiring says that too little is left of a lease.
var errExpiring = errors.New("the lease runs out")

// lateness tells whether a firing was claimed too late to fire, by its own limit or by that of its namespace: which limit that
// is, and how long after its due time it was claimed. It asks no clock: the claim did.
func (p *Publisher) lateness(f *schedule.Firing) (limit policy.Limit, by time.Duration, is bool) {
	limit = f.Late
	if !limit.Given {
		limit = p.Late.For(f.Key)
	}
	if limit.Most == 0 {
		return limit, 0, false
	}
	by = time.Duration(schedule.MillisOf(f.ClaimedAt)-f.Due) * time.Millisecond
	return limit, by, limit.Exceeded(by)
}

// isDropped tells whether a firing that is too late is forgotten. What may have been published is not: somebody may look for
// what became of it.
func isDropped(f *schedule.Firing, limit policy.Limit) bool { return limit.Drop && !f.MayBeStored }

// roomForLetters returns the part of the window that dead letters may fill.
func (p *Publisher) roomForLetters() load {
	return load{max(p.Window/letterShare, 1), max(p.WindowBytes/letterShare, 1)}
}

// awaitsLetters tells whether a firing is to wait until others are dead letters, as they soon are. p.mu is held.
func (p *Publisher) awaitsLetters(f *schedule.Firing) bool {
	if p.letters.load.fits(p.roomForLetters(), 1) || time.Since(p.letters.stored) > letterFlow {
		return false
	}
	limit, _, is := p.lateness(f)
	return withheld(f) != "" || is && !isDropped(f, limit)
}

// withheld returns why a firing becomes a dead letter instead of an event, however late it is, or an empty text.
func withheld(f *schedule.Firing) string {
	switch {
	case f.Fault != "":
		return event.ReasonRepeat + f.Fault
	case f.Held:
		return event.ReasonHeld
	}
	return ""
}

// takeLate takes over a firing that was claimed too late, and is in the window already: it is forgotten, becomes a dead
// letter, or is given back if no dead letter of its subject may be tried. p.mu is held.
func (p *Publisher) takeLate(d *delivery, limit policy.Limit, by time.Duration) {
	f := &d.firing
	reason := event.LateReason(by, limit.Most, f.MayBeStored)
	if isDropped(f, limit) {
		f.Unfired = true
		p.settle(d)
		p.noteLate(d, LateDrop, reason)
		return
	}
	p.takeLetter(d, reason)
}

// takeLetter takes over a firing that becomes a dead letter and is in the window already. It is given back if no dead letter
// of its subject may be tried. p.mu is held.
func (p *Publisher) takeLetter(d *delivery, reason string) {
	f, l := &d.firing, &p.letters
	d.subject = p.Streams.Subject(f.Key, keys.Dead)
	d.trust = l.trust.of(d.subject)
	switch {
	case !l.load.fits(p.roomForLetters(), 1):
		f.Pause = untrustedPause
		p.giveBack(d)
	case !l.trust.admits(d.trust, p.roomForLetters()):
		p.setLetterAside(d)
	default:
		bytes := len(f.Payload)
		l.load.add(load{1, bytes})
		l.trust.add(d.trust, bytes)
		p.heldBytes += bytes
		l.queue = append(l.queue, lateLetter{d, reason})
		signal(l.wake)
	}
}

// setLetterAside gives a firing back for a while because of the subject of its dead letter. p.mu is held.
func (p *Publisher) setLetterAside(d *delivery) {
	f := &d.firing
	f.Pause, f.Refused = untrustedPause, d.trust.failing
	if f.Refused {
		f.Pause = d.trust.pause(f)
		p.OnSetAside(f)
	}
	p.giveBack(d)
}

// noteLetter tells of a dead letter that is stored. p.mu is held.
func (p *Publisher) noteLetter(d *delivery, reason string) {
	f := &d.firing
	switch {
	case f.Fault != "":
		p.Logger.Warn("a timer cannot repeat, and is a dead letter", "key", f.Key.String(), "err", f.Fault)
	case f.Held:
		p.Logger.Debug("a timer that was held is a dead letter", "key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt)
	default:
		p.noteLate(d, LateDead, reason)
	}
}

// noteLate tells what became of a firing that was claimed too late. p.mu is held.
func (p *Publisher) noteLate(d *delivery, action LateAction, reason string) {
	f, l := &d.firing, &p.letters
	p.OnLate(f, action)
	p.Logger.Debug("timer is too late to fire", "key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt,
		"source", string(action), "err", reason)
	l.untold++
	if now := time.Now(); now.Sub(l.told) >= tellLateEvery {
		p.Logger.Warn("timers are too late to fire: by their limits they are dead letters or dropped; this is the last one", "count", l.untold,
			"key", f.Key.String(), "due_at", f.Due.Time(), "attempt", d.attempt, "source", string(action), "err", reason)
		l.told, l.untold = now, 0
	}
}

// bury publishes dead letters of firings that were claimed too late, until ctx ends and none is under way. What is left is
// given back.
func (p *Publisher) bury(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	for ended := false; !ended; {
		select {
		case <-p.letters.wake:
		case <-ctx.Done():
			ended = true
		}
		p.mu.Lock()
		queue := p.letters.queue
		p.letters.queue = nil
		p.mu.Unlock()
		for _, l := range queue {
			under.Go(func() { p.endLetter(ctx, l, p.publishLetter(ctx, l)) })
		}
	}
}

// publishLetter publishes a dead letter and waits until it is stored, for as long as the lease allows.
func (p *Publisher) publishLetter(ctx context.Context, l lateLetter) error {
	d := l.delivery
	if ctx.Err() != nil || d.expiring() {
		return errExpiring
	}
	d.published = d.firing.Now()
	e := p.event(d, d.withhold)
	e.DeadReason = l.reason
	publishing, cancel := context.WithTimeout(ctx, min(p.AckWait, d.firing.Remaining()))
	defer cancel()
	err := letter.PublishDead(publishing, p.js, p.Streams.SubjectPrefix(), e,
		jetstream.WithExpectStream(p.Streams.DeadStream()), jetstream.WithRetryAttempts(0))
	if errors.Is(err, jetstream.ErrNoStreamResponse) {
		err = errors.Join(err, streams.Ensure(publishing, p.js, p.Streams))
	}
	return err
}

// mayBeStored tells whether a letter whose publication has failed may be in the stream: JetStream has not refused it.
func mayBeStored(err error) bool {
	_, refused := errors.AsType[*jetstream.APIError](err)
	return err != nil && !refused && !errors.Is(err, errExpiring) && !errors.Is(err, jetstream.ErrNoStreamResponse) &&
		!errors.Is(err, nats.ErrReconnectBufExceeded) && !errors.Is(err, nats.ErrMaxPayload)
}

// endLetter has a firing settled whose dead letter is stored, or given back if that failed: if the letter may be stored all
// the same, so that nobody holds or cancels the firing, and it becomes the same letter again.
func (p *Publisher) endLetter(ctx context.Context, l lateLetter, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, bytes := l.delivery, len(l.delivery.firing.Payload)
	p.letters.load.subtract(load{1, bytes})
	p.letters.trust.remove(d.trust, bytes)
	p.heldBytes -= bytes
	d.firing.MayBeStored = d.firing.MayBeStored || mayBeStored(err)
	switch {
	case err == nil:
		p.letters.stored = time.Now()
		p.letters.trust.succeed(d.trust, p.letters.stored)
		d.firing.Unfired = !d.firing.MayBeStored
		p.settle(d)
		p.noteLetter(d, l.reason)
	case ctx.Err() != nil || errors.Is(err, errExpiring) || !p.health.connected:
		p.giveBack(d)
	default:
		if p.letters.trust.fail(d.trust) {
			p.Logger.Warn("the dead letters on this subject are not stored: its timers that are too late wait, and one at a time is tried",
				"subject", d.subject, "err", err)
		}
		p.setLetterAside(d)
	}
	p.announce()
	if p.stopping {
		signal(p.kick)
	}
}
