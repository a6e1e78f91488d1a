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

	mu sync.Mutex
	is healthState
}

type healthState struct {
	connected  bool
	changedAt  time.Time // when connected changed
	fault      error     // why the stream takes no events; nil if it does
	faultSince time.Time
	faultBytes int       // payload bytes of the last event that it refused
	probes     int       // while there is a fault, since an event was acknowledged
	lastGood   time.Time // when JetStream last answered that all is well
	acked      time.Time // when an event in flight was acknowledged last
	silent     time.Time // since when no event was acknowledged though some should have been; zero if none
}

// now returns what is known.
func (h *health) now() healthState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.is
}

// good tells whether events can be published.
func (s healthState) good() bool { return s.connected && s.fault == nil }

// setConnected notes whether NATS is connected, and tells whether that is news.
func (h *health) setConnected(connected bool) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.is.connected == connected && !h.is.changedAt.IsZero() {
		return false
	}
	h.is.connected, h.is.changedAt = connected, time.Now()
	h.is.lastGood, h.is.silent = h.is.changedAt, time.Time{}
	signal(h.alarm)
	return true
}

// noteLife notes that the stream stored an event, whether or not anybody still waited for it.
func (h *health) noteLife() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.probes = 0
	h.is.silent = time.Time{}
}

// noteAck notes that an event in flight was acknowledged.
func (h *health) noteAck() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.acked = time.Now()
}

// noteSilence notes that an event was not acknowledged in time.
func (h *health) noteSilence(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.is.silent.IsZero() {
		h.is.silent = now
	}
}

// refused notes that the stream refused an event. If it will refuse others too, they wait until it looks well again.
func (h *health) refused(a answer, payloadBytes int) {
	switch a.class {
	case FailureNoStream, FailureFull, FailureUnavailable:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.is.faultBytes = payloadBytes
		h.noteFault(fmt.Errorf("stream %s refuses events: %w", h.Streams.FiredStream(), a.err))
	}
}

// noteFault holds events back until the stream looks well again. h.mu is held.
func (h *health) noteFault(err error) {
	if h.is.fault == nil {
		h.is.faultSince = time.Now()
		h.Logger.Warn("events wait until the stream takes them", "err", err)
		signal(h.alarm)
	}
	h.is.fault = err
}

// noteLook takes what keeps the stream from taking an event, or nil, by a look at it. It tells whether it takes events again.
func (h *health) noteLook(err error) (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.is.fault != nil {
		h.is.probes++
	}
	if err != nil {
		if h.is.connected {
			h.noteFault(err)
		}
		return false
	}
	h.is.lastGood = time.Now()
	if h.is.fault == nil {
		return false
	}
	h.Logger.Info("the stream takes events again", "after", time.Since(h.is.faultSince).Round(time.Millisecond))
	h.is.fault = nil
	return true
}

// pause returns how long to wait before the next look at the stream.
func (s healthState) pause() time.Duration {
	if s.fault == nil {
		return probeInterval
	}
	return backoff.Policy{First: firstProbe, Longest: longestProbe}.Delay(s.probes + 1)
}

// problem returns nil while events can be published as far as is known, and otherwise what does not work.
func (h *health) problem() error {
	is := h.now()
	since := func(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }
	switch {
	case !is.connected:
		return fmt.Errorf("NATS has been disconnected for %v", since(is.changedAt))
	case is.fault != nil:
		return is.fault
	case time.Since(is.lastGood) > staleAfter:
		return fmt.Errorf("JetStream has not answered for %v", since(is.lastGood))
	case !is.silent.IsZero():
		return fmt.Errorf("no event has been acknowledged for %v: does the NATS user have the right to publish to %s?",
			since(is.silent), h.Streams.SubjectAll(keys.Fired))
	}
	return nil
}
