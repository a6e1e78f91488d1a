package notify

import (
	"fmt"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// probeInterval is the interval of looks at a healthy stream. Together with probeTimeout it is below the 5 s within
	// which a failure must show.
	probeInterval = 1500 * time.Millisecond
	// firstProbe and longestProbe bound the pause between looks at a stream that refused events.
	firstProbe   = 100 * time.Millisecond
	longestProbe = 2 * time.Second
	// staleAfter bounds the age of JetStream's last good answer.
	staleAfter = 4500 * time.Millisecond
	// trialTime is the time after which a stream counts as healthy again if it looks healthy, has refused nothing
	// since, and has not stored an event either.
	trialTime = 5 * time.Second
)

// health records whether events can be published. Its methods may be called concurrently.
type health struct {
	*Options
	alarm chan struct{} // wakes the prober

	mu sync.Mutex
	is healthState
}

type healthState struct {
	connected  bool
	changedAt  time.Time // time of the last change of connected
	fault      error     // the reason why the stream takes no events; nil if it takes them
	faultSince time.Time
	// looked means that a look at the stream has found the fault, so that a look can also find its end. If it is false,
	// an event was refused for a reason that no look shows. Then, once the stream looks healthy, events are tried one
	// at a time.
	looked     bool
	trialSince time.Time // begin of the trial; zero without one
	faultBytes int       // payload bytes of the last refused event
	probes     int       // looks during a fault, since the last acknowledgement
	lastGood   time.Time // JetStream's last good answer
	acked      time.Time // last acknowledgement of an event in flight
	silent     time.Time // time since which acknowledgements are overdue; zero if none is
	denied     bool      // while silent: the NATS user may not publish
}

// now returns a copy of the state.
func (h *health) now() healthState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.is
}

// good reports whether events can be published, at least one at a time.
func (s healthState) good() bool { return s.connected && (s.fault == nil || s.trial()) }

// trial reports whether events are tried one at a time, to find out whether the stream takes them again.
func (s healthState) trial() bool { return s.fault != nil && !s.trialSince.IsZero() }

// admits reports whether further firings may be claimed, given the number in flight.
func (s healthState) admits(inFlight int) bool { return s.good() && (inFlight == 0 || !s.trial()) }

// setConnected notes whether NATS is connected, and reports whether that has changed.
func (h *health) setConnected(connected bool) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.is.connected == connected && !h.is.changedAt.IsZero() {
		return false
	}
	h.is.connected, h.is.changedAt = connected, time.Now()
	h.is.lastGood, h.is.silent, h.is.denied = h.is.changedAt, time.Time{}, false
	signal(h.alarm)
	return true
}

// noteLife notes an answer which shows that the stream has an event, whether or not a delivery still waits for it. It
// reports whether the answer proves that the stream takes events again; a duplicate proves nothing.
func (h *health) noteLife(duplicate bool) (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.probes = 0
	h.is.silent, h.is.denied = time.Time{}, false
	if h.is.fault == nil || h.is.looked || duplicate {
		return false
	}
	h.recovered()
	return true
}

// recovered notes that the stream takes events again. h.mu is held.
func (h *health) recovered() {
	h.Logger.Info("the stream takes events again", "after", time.Since(h.is.faultSince).Round(time.Millisecond))
	h.is.fault, h.is.trialSince = nil, time.Time{}
}

// noteAck notes that an event in flight was acknowledged.
func (h *health) noteAck() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.acked = time.Now()
}

// noteSilence notes that an acknowledgement is overdue, or that NATS denies to publish.
func (h *health) noteSilence(now time.Time, denied bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.denied = h.is.denied || denied
	if h.is.silent.IsZero() {
		h.is.silent = now
		signal(h.alarm)
	}
}

// refused notes that the stream has refused an event. If it would refuse other events too, these wait until it looks
// healthy again.
func (h *health) refused(a answer, payloadBytes int) {
	switch a.class {
	case FailureNoStream, FailureFull, FailureUnavailable:
		h.mu.Lock()
		defer h.mu.Unlock()
		h.is.faultBytes = payloadBytes
		h.noteFault(diag.Wrap("stream "+h.Streams.FiredStream()+" refuses events", streams.Refused(a.err)), false)
	}
}

// noteFault holds events back until the stream looks healthy again. looked means that a look has found the fault. h.mu
// is held.
func (h *health) noteFault(err error, looked bool) {
	if h.is.fault == nil {
		h.is.faultSince = time.Now()
		h.Logger.Warn("events wait until the stream takes them", "err", err)
		signal(h.alarm)
	}
	h.is.fault, h.is.looked, h.is.trialSince = err, looked, time.Time{}
}

// noteLook takes the result of a look: the obstacle for an event, or nil. It reports whether events can be published
// again.
func (h *health) noteLook(err error) (again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || h.is.fault != nil {
		h.is.probes++
	}
	if err != nil {
		if h.is.connected {
			h.noteFault(err, true)
		}
		return false
	}
	h.is.lastGood = time.Now()
	switch {
	case h.is.fault == nil:
		return false
	case h.is.looked, h.is.trial() && h.is.lastGood.Sub(h.is.trialSince) > trialTime:
		h.recovered()
	case !h.is.trial():
		h.is.trialSince = h.is.lastGood
	}
	return true
}

// pause returns the wait before the next look at the stream.
func (s healthState) pause() time.Duration {
	if s.fault == nil {
		return probeInterval
	}
	return backoff.Policy{First: firstProbe, Longest: longestProbe}.Delay(s.probes + 1)
}

// problem returns nil while events can be published as far as is known, and otherwise the obstacle.
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
	case is.denied:
		return &diag.Fault{
			What: fmt.Sprintf("no event has been acknowledged for %v: the NATS user may not publish it",
				since(is.silent)),
			Remedy: "let the NATS user publish to " + h.Streams.SubjectAll(keys.Fired),
		}
	case !is.silent.IsZero():
		return &diag.Fault{
			What: fmt.Sprintf("no event has been acknowledged for %v, though JetStream answers other calls",
				since(is.silent)),
			Remedy: streams.UnansweredFix,
		}
	}
	return nil
}
