package notify

import (
	"fmt"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
)

const (
	// probeInterval is how often the stream is looked at while all is well. Together with probeTimeout it is under the 5 s in
	// which a failure must show.
	probeInterval = 1500 * time.Millisecond
	// firstProbe and longestProbe bound the pause before a stream that refused events is looked at again.
	firstProbe   = 100 * time.Millisecond
	longestProbe = 2 * time.Second
	// staleAfter is how long the last good answer of JetStream may be ago.
	staleAfter = 4500 * time.Millisecond
)

// health is what is known about whether events can be published. Its methods may be called concurrently.
type health struct {
	*Options
	alarm chan struct{} // wakes the prober

	mu         sync.Mutex
	connected  bool
	changedAt  time.Time // when connected changed
	fault      error     // why the stream takes no events; nil if it does
	faultSince time.Time
	faultBytes int       // payload bytes of the last event that it refused
	probes     int       // while there is a fault, since an event was acknowledged
	lastGood   time.Time // when JetStream last answered that all is well
	acked      time.Time // when an event was acknowledged last
	silent     time.Time // since when no event was acknowledged though some should have been; zero if none
}

// good tells whether events can be published.
func (h *health) good() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.connected && h.fault == nil
}

func (h *health) isConnected() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.connected
}

// setConnected notes whether NATS is connected, and tells whether that is news.
func (h *health) setConnected(connected bool) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.connected == connected && !h.changedAt.IsZero() {
		return false
	}
	h.connected, h.changedAt = connected, time.Now()
	h.lastGood, h.silent = h.changedAt, time.Time{}
	signal(h.alarm)
	return true
}

// noteAck notes that an event was stored.
func (h *health) noteAck() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.probes = 0
	h.acked = time.Now()
	h.silent = time.Time{}
}

// ackedSince tells whether an event was acknowledged since a time.
func (h *health) ackedSince(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.acked.After(t)
}

// noteSilence notes that an event was not acknowledged in time.
func (h *health) noteSilence(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.silent.IsZero() {
		h.silent = now
	}
}

// refused notes that the stream refused an event. If it will refuse others too, they wait until it looks well again.
func (h *health) refused(a answer, payloadBytes int) {
	switch a.class {
	case FailureNoStream, FailureFull, FailureUnavailable:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.faultBytes = payloadBytes
		h.noteFault(fmt.Errorf("stream %s refuses events: %w", h.Streams.FiredStream(), a.err))
	}
}

// noteFault holds events back until the stream looks well again. h.mu is held.
func (h *health) noteFault(err error) {
	if h.fault == nil {
		h.faultSince = time.Now()
		h.Logger.Warn("events wait until the stream takes them", "err", err)
		signal(h.alarm)
	}
	h.fault = err
}

// noteLook takes what keeps the stream from taking an event, or nil, by a look at it. It tells whether it takes events again.
func (h *health) noteLook(err error) (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.fault != nil {
		h.probes++
	}
	if err != nil {
		if h.connected {
			h.noteFault(err)
		}
		return false
	}
	h.lastGood = time.Now()
	if h.fault == nil {
		return false
	}
	h.Logger.Info("the stream takes events again", "after", time.Since(h.faultSince).Round(time.Millisecond))
	h.fault = nil
	return true
}

// pause returns how long to wait before the next look at the stream.
func (h *health) pause() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fault == nil {
		return probeInterval
	}
	return backoff.Policy{First: firstProbe, Longest: longestProbe}.Delay(h.probes + 1)
}

// refusedBytes returns how large the payload was of the last event that the stream refused.
func (h *health) refusedBytes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.faultBytes
}

// problem returns nil while events can be published as far as is known, and otherwise what does not work.
func (h *health) problem() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := func(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }
	switch {
	case !h.connected:
		return fmt.Errorf("NATS has been disconnected for %v", since(h.changedAt))
	case h.fault != nil:
		return h.fault
	case time.Since(h.lastGood) > staleAfter:
		return fmt.Errorf("JetStream has not answered for %v", since(h.lastGood))
	case !h.silent.IsZero():
		return fmt.Errorf("no event has been acknowledged for %v: does the NATS user have the right to publish to %s?",
			since(h.silent), h.Streams.SubjectAll(keys.Fired))
	}
	return nil
}
