package notify

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
)

const (
	// probeTimeout bounds a request about the stream.
	probeTimeout = 2 * time.Second
	// remakeTimeout bounds the time for making the streams again.
	remakeTimeout = 5 * time.Second
)

// prober looks at the stream from time to time, and soon after the stream has refused an event.
type prober struct {
	*Options
	js     jetstream.JetStream
	health *health
	stream *streamRecord
	group  *group
	gate   *gate
	kick   chan struct{} // wakes the caller of flight.inspect
}

// run probes until ctx ends.
func (p *prober) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.health.alarm:
		case <-timer.C:
			p.look(ctx)
		}
		timer.Reset(p.health.now().pause())
	}
}

// look examines the stream once, unless the connection is down.
func (p *prober) look(ctx context.Context) {
	if !p.health.now().connected {
		p.stream.setAge(0) // it may come back without its streams
		return
	}
	if err := p.examine(ctx); ctx.Err() == nil && p.health.noteLook(err) {
		signal(p.kick)
		p.gate.announce()
	}
}

// examine returns the obstacle for an event in the stream of firings, or nil. It makes the stream again if it is
// missing.
func (p *prober) examine(ctx context.Context) error {
	if err := p.Permit(); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	acknowledged := p.stream.highest()
	info, err := streams.Fired(asking, p.js, p.Streams, p.health.now().faultBytes)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return p.remake(ctx)
	}
	if info == nil {
		return err
	}
	p.group.allow(info.Config.AllowAtomicPublish && streams.TakesBatches(p.js))
	p.stream.setAge(info.TimeStamp.Sub(info.Created))
	if b := p.stream.compare(info.Config.Duplicates, info.Created, info.State.LastSeq, acknowledged); b != nil {
		lost := b.acknowledged - b.seq + 1
		p.Logger.Error("NATS has lost events that it had acknowledged: their timers do not fire again", "count", lost,
			"err", fmt.Errorf("stream %s goes on at sequence %d, though %d was acknowledged",
				info.Config.Name, b.seq, b.acknowledged))
		p.Metrics.Lost(lost)
	}
	now := p.health.now()
	if err == nil && (now.fault != nil || !now.silent.IsZero()) {
		err = p.Written.Of(asking, p.js, p.Streams.FiredStream())
	}
	if err == nil && now.fault != nil {
		return p.examineAccount(asking)
	}
	return err
}

// examineAccount returns the obstacle for an event in the account, if the stream itself has room. A request without an
// answer holds no event back: perhaps a right is missing, and the next event will show.
func (p *prober) examineAccount(ctx context.Context) error {
	account, err := streams.CheckAccount(ctx, p.js)
	if err != nil {
		p.Logger.Debug("it is unknown whether the account is full", "err", err)
		return nil
	}
	return streams.AccountFullness(account, p.health.now().faultBytes)
}

// remake makes the streams again.
func (p *prober) remake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, remakeTimeout)
	defer cancel()
	p.stream.setAge(0)
	if err := streams.Ensure(ctx, p.js, p.Streams); err != nil {
		return fmt.Errorf("the stream is gone and cannot be made again: %w", err)
	}
	p.Logger.Warn("the stream was gone and has been made again", "source", p.Streams.FiredStream())
	return nil
}

// streamRecord is the known state of the stream. It has the time for which the stream remembers ids. It also has
// acknowledged sequences, to notice a loss by a power cut before a sync, or by restored older files. The sequences of a
// stream only rise. So an event that is sent after another's acknowledgement has a higher sequence, and the last
// sequence of the stream is never below an acknowledged one. Its methods may be called concurrently.
type streamRecord struct {
	mu      sync.Mutex
	knows   time.Duration // time for which it remembers ids, to drop duplicates; 0 before it is known
	created time.Time     // creation time of the stream, which identifies it; zero before it is known
	age     time.Duration // of the stream at the last look; 0 if it may be gone
	top     sequence      // highest acknowledged sequence
	breach  *breach       // undecided until the next look: it may be another stream
	below   int           // consecutive looks with too low a sequence
}

// breach is a sequence, of an event or of the next one, that is below an acknowledged sequence.
type breach struct{ seq, acknowledged uint64 }

// Duplicates returns the time for which the stream of firings remembers ids, or its age if that is shorter: a new one
// knows no ids of the one before it. Without a connection it is 0. known is false before the first look.
func (p *Publisher) Duplicates() (window time.Duration, known bool) {
	p.stream.mu.Lock()
	defer p.stream.mu.Unlock()
	return min(p.stream.knows, p.stream.age), p.stream.knows > 0
}

// setAge notes the age of the stream.
func (r *streamRecord) setAge(age time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.age = age
}

// duplicates returns the time for which the stream remembers ids, 0 before it is known.
func (r *streamRecord) duplicates() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.knows
}

// highest returns the highest acknowledged sequence.
func (r *streamRecord) highest() sequence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.top
}

// note takes the sequence of an event that was stored now, and the highest acknowledged sequence before it was sent. It
// reports whether the two contradict each other. If so, the next look decides whether it is another stream.
func (r *streamRecord) note(after sequence, seq uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case after.age != r.top.age:
	case seq > after.seq:
		r.top.seq = max(r.top.seq, seq)
	default:
		r.breach = &breach{seq, r.top.seq}
		r.restart(seq)
		return true
	}
	return false
}

// restart begins to count sequences anew, from one on. r.mu is held.
func (r *streamRecord) restart(seq uint64) {
	r.top = sequence{r.top.age + 1, seq}
	r.below = 0
}

// compare takes a look at the stream: its duplicate window, creation time and last sequence. highest is the highest
// acknowledged sequence before the look. It returns a proven breach, or nil. A new leader may not know all stored
// messages yet, so two looks in a row must show too low a sequence.
func (r *streamRecord) compare(knows time.Duration, created time.Time, last uint64, acknowledged sequence) *breach {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.knows = knows
	var proven *breach
	switch {
	case !r.created.Equal(created):
		if !r.created.IsZero() {
			r.restart(last)
		}
		r.created, r.breach = created, nil
	case acknowledged.age != r.top.age: // the next look compares
	case r.breach != nil:
		proven, r.breach = r.breach, nil
	case last >= acknowledged.seq:
		r.below = 0
	case r.below == 0:
		r.below++
	default:
		proven = &breach{last + 1, acknowledged.seq}
		r.restart(last)
	}
	return proven
}
