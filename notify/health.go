package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// probeInterval is how often the stream is looked at while all is well, and probeTimeout how long an answer may
	// take. Together they are under the 5 s in which a failure must show.
	probeInterval = 1500 * time.Millisecond
	probeTimeout  = 2 * time.Second
	// firstProbe and longestProbe bound the pause before a stream that refused events is looked at again.
	firstProbe   = 100 * time.Millisecond
	longestProbe = 2 * time.Second
	// staleAfter is how long the last good answer of JetStream may be ago.
	staleAfter = 4500 * time.Millisecond
	// remakeTimeout bounds making the streams again.
	remakeTimeout = 5 * time.Second
)

// streamHealth is what is known about whether events can be published. Publisher.mu guards it.
type streamHealth struct {
	connected  bool
	changedAt  time.Time // when connected changed
	fault      error     // why the stream takes no events; nil if it does
	faultSince time.Time
	faultBytes int           // payload bytes of the last event that it refused
	probes     int           // while there is a fault, since an event was acknowledged
	window     time.Duration // the stream's duplicate window; 0 before it is known
	lastGood   time.Time     // when JetStream last answered that all is well
	acked      time.Time     // when an event was acknowledged last
	silent     time.Time     // since when no event was acknowledged though some should have been; zero if none
}

// good tells whether events can be published.
func (h *streamHealth) good() bool { return h.connected && h.fault == nil }

// noteAck notes that an event was stored.
func (h *streamHealth) noteAck() {
	h.probes = 0
	h.acked = time.Now()
	h.silent = time.Time{}
}

// pause returns how long to wait before the next look at the stream.
func (h *streamHealth) pause() time.Duration {
	if h.fault == nil {
		return probeInterval
	}
	return backoff.Policy{First: firstProbe, Longest: longestProbe}.Delay(h.probes + 1)
}

// noteConnection reads the connection's status, rather than being told, because a status listener that is slow misses
// changes. lost says that the connection was down in between, so that what was sent before will not be answered.
func (p *Publisher) noteConnection(lost bool) {
	connected := p.nc.Status() == nats.CONNECTED
	p.mu.Lock()
	defer p.mu.Unlock()
	if lost || !connected {
		for _, d := range p.deliveries {
			if d.sent {
				p.fail(d, FailureDisconnected)
			}
		}
	}
	if p.health.connected == connected && !p.health.changedAt.IsZero() {
		return
	}
	p.health.connected, p.health.changedAt = connected, time.Now()
	p.health.lastGood, p.health.silent = p.health.changedAt, time.Time{}
	signal(p.alarm)
	p.announce()
}

// blame notes that the stream refused an event. If it will refuse others too, they wait until it looks well again. p.mu
// is held.
func (p *Publisher) blame(class Failure, err error, payloadBytes int) {
	switch class {
	case FailureNoStream, FailureFull, FailureUnavailable:
		p.health.faultBytes = payloadBytes
		p.noteFault(err)
	}
}

// noteFault holds events back until the stream looks well again. p.mu is held.
func (p *Publisher) noteFault(err error) {
	if p.health.fault == nil {
		p.health.faultSince = time.Now()
		p.Logger.Warn("events wait until the stream takes them", "err", err)
		signal(p.alarm)
	}
	p.health.fault = err
}

// probe looks at the stream from time to time, and soon after it refused an event, until ctx ends.
func (p *Publisher) probe(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.alarm:
		case <-timer.C:
			p.look(ctx)
		}
		p.mu.Lock()
		timer.Reset(p.health.pause())
		p.mu.Unlock()
	}
}

// look examines the stream once, unless the connection is down.
func (p *Publisher) look(ctx context.Context) {
	p.mu.Lock()
	connected, payloadBytes := p.health.connected, p.health.faultBytes
	p.mu.Unlock()
	if !connected {
		return
	}
	err := p.examine(ctx, payloadBytes)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.health.fault != nil {
		p.health.probes++
	}
	if err != nil {
		if p.health.connected {
			p.noteFault(err)
		}
		return
	}
	p.health.lastGood = time.Now()
	if p.health.fault != nil {
		p.Logger.Info("the stream takes events again", "after", time.Since(p.health.faultSince).Round(time.Millisecond))
		p.health.fault = nil
		signal(p.kick)
		p.announce()
	}
}

// examine returns what keeps the stream of the firings from taking an event, or nil. It makes the stream if there is
// none.
func (p *Publisher) examine(ctx context.Context, payloadBytes int) error {
	if err := p.Permit(); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	p.mu.Lock()
	acknowledged := p.ledger.highest
	p.mu.Unlock()
	info, err := streams.Fired(asking, p.js, p.Streams, payloadBytes)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return p.remake(ctx, p.Streams.FiredStream())
	}
	if info != nil {
		p.reconcile(info, acknowledged)
	}
	return err
}

// remake makes the streams again.
func (p *Publisher) remake(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, remakeTimeout)
	defer cancel()
	if err := streams.Ensure(ctx, p.js, p.Streams); err != nil {
		return fmt.Errorf("the stream is gone and cannot be made again: %w", err)
	}
	p.Logger.Warn("the stream was gone and has been made again", "source", name)
	return nil
}

// Healthy returns nil while events can be published as far as is known, and otherwise what does not work. It answers
// from memory and may be called at any time.
func (p *Publisher) Healthy() error {
	select {
	case <-p.started:
	default:
		return errors.New("the publisher has not started")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	since := func(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }
	switch h := &p.health; {
	case p.stopping:
		return ErrStopped
	case !h.connected:
		return fmt.Errorf("NATS has been disconnected for %v", since(h.changedAt))
	case h.fault != nil:
		return h.fault
	case time.Since(h.lastGood) > staleAfter:
		return fmt.Errorf("JetStream has not answered for %v", since(h.lastGood))
	case !h.silent.IsZero():
		return fmt.Errorf("no event has been acknowledged for %v: does the NATS user have the right to publish to %s?",
			since(h.silent), p.Streams.SubjectAll(keys.Fired))
	}
	return nil
}
