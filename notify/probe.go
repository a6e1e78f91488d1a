package notify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
)

const (
	// probeTimeout is how long an answer about the stream may take.
	probeTimeout = 2 * time.Second
	// remakeTimeout bounds making the streams again.
	remakeTimeout = 5 * time.Second
)

// prober looks at the stream from time to time, and soon after it refused an event.
type prober struct {
	*Options
	js     jetstream.JetStream
	health *health
	stream *streamRecord
	again  func() // called when the stream takes events again
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
		timer.Reset(p.health.pause())
	}
}

// look examines the stream once, unless the connection is down.
func (p *prober) look(ctx context.Context) {
	if !p.health.isConnected() {
		return
	}
	if err := p.examine(ctx); ctx.Err() == nil && p.health.noteLook(err) {
		p.again()
	}
}

// examine returns what keeps the stream of the firings from taking an event, or nil. It makes the stream if there is
// none.
func (p *prober) examine(ctx context.Context) error {
	if err := p.Permit(); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	acknowledged := p.stream.highest()
	info, err := streams.Fired(asking, p.js, p.Streams, p.health.refusedBytes())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return p.remake(ctx)
	}
	if info == nil {
		return err
	}
	if b := p.stream.compare(info.Config.Duplicates, info.Created, info.State.LastSeq, acknowledged); b != nil {
		lost := b.acknowledged - b.seq + 1
		p.Logger.Error("NATS has lost events that it had acknowledged: their timers do not fire again", "count", lost,
			"err", fmt.Errorf("stream %s goes on at sequence %d, though %d was acknowledged", info.Config.Name, b.seq, b.acknowledged))
		p.OnLost(lost)
	}
	return err
}

// remake makes the streams again.
func (p *prober) remake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, remakeTimeout)
	defer cancel()
	if err := streams.Ensure(ctx, p.js, p.Streams); err != nil {
		return fmt.Errorf("the stream is gone and cannot be made again: %w", err)
	}
	p.Logger.Warn("the stream was gone and has been made again", "source", p.Streams.FiredStream())
	return nil
}
