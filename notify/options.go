package notify

import (
	"log/slog"
	"time"

	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	defaultWindow       = 4096
	defaultWindowBytes  = 64 << 20
	defaultAckWait      = 5 * time.Second
	defaultDrainTimeout = 5 * time.Second
)

// LateAction is what became of a firing that was claimed too late.
type LateAction string

// The actions.
const (
	LateDead LateAction = "dead" // it is a dead letter
	LateDrop LateAction = "drop" // it is forgotten
)

// Options are what a Publisher can be told. NewPublisher sets them.
type Options struct {
	Streams streams.Config
	// MaxAttempts says how often a timer fires at most, for its events to tell: 1.
	MaxAttempts func(keys.Key) int
	// PayloadAttempt says whether the attempt counts that a payload states, if it is no more than MaxAttempts: true.
	PayloadAttempt bool
	// Late has the limits of timers that have none of their own: none.
	Late policy.Rules[policy.Limit]
	// ContentType says how payloads travel, see event.Event: by what they are.
	ContentType string

	// Window is how many firings may be on their way at once: from Publish until they are acknowledged, and of each server of the
	// schedule until they are settled or given back: 4,096.
	Window int
	// WindowBytes is how many bytes of payload those that are not acknowledged may have: 64 MiB. One firing is taken
	// however large it is.
	WindowBytes int
	// AckWait is how long to wait for an acknowledgement before publishing again: 5 s. The end of the lease cuts it
	// short.
	AckWait time.Duration
	// DrainTimeout bounds how long Run goes on after its context has ended: 5 s.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default()
	// Permit is asked whenever the stream is looked at. An error keeps events back until it returns nil. It must return
	// quickly. By default it returns nil.
	Permit func() error

	// The On functions are for metrics; by default they do nothing. They may run concurrently, must return quickly, and
	// must not call the Publisher.

	// OnFired is called once for each acknowledged firing. lateness is how long after its due time the event was
	// published. duplicate says that JetStream had the event already, from an earlier try or another timerd.
	OnFired func(f *schedule.Firing, lateness time.Duration, duplicate bool)
	// OnFailed is called for each try that failed.
	OnFailed func(class Failure)
	// OnSettled and OnReleased are called with how many firings were settled, and how many were given back because they
	// could not be published.
	OnSettled, OnReleased func(n int)
	// OnSetAside is called for each firing that is given back for a while because NATS does not take its subject.
	OnSetAside func(f *schedule.Firing)
	// OnLate is called for each firing that was claimed too late: when its dead letter is stored, or when it is forgotten.
	OnLate func(f *schedule.Firing, action LateAction)
	// OnLost is called with how many events NATS has lost, at least, that it had acknowledged to this Publisher.
	OnLost func(n uint64)
}

func defaultOptions() Options {
	return Options{
		MaxAttempts:    func(keys.Key) int { return 1 },
		PayloadAttempt: true,
		Window:         defaultWindow,
		WindowBytes:    defaultWindowBytes,
		AckWait:        defaultAckWait,
		DrainTimeout:   defaultDrainTimeout,
		Logger:         slog.Default(),
		Permit:         func() error { return nil },
		OnFired:        func(*schedule.Firing, time.Duration, bool) {},
		OnFailed:       func(Failure) {},
		OnSettled:      func(int) {},
		OnReleased:     func(int) {},
		OnSetAside:     func(*schedule.Firing) {},
		OnLate:         func(*schedule.Firing, LateAction) {},
		OnLost:         func(uint64) {},
	}
}

// size returns how much the window takes.
func (o *Options) size() lanes.Load { return lanes.Load{Tries: o.Window, Bytes: o.WindowBytes} }
