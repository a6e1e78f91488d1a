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

// Failure is the class of a publication error.
type Failure string

// The classes of failure. A firing is published again as it is, while its lease lasts; only after FailureTooLarge it is
// published without its payload.
const (
	FailureDisconnected Failure = "disconnected" // the connection is down, or went down before the acknowledgement came
	FailureTimeout      Failure = "timeout"      // no acknowledgement in time
	FailureNoStream     Failure = "nostream"     // no stream takes the subject
	FailureFull         Failure = "full"         // the stream, the account or the disk is full
	FailureUnavailable  Failure = "unavailable"  // JetStream cannot work at the moment
	FailureRefused      Failure = "refused"      // any other refusal
	FailureTooLarge     Failure = "toolarge"     // the firing is then published without its payload
)

// LateAction is the fate of a firing that was claimed too late.
type LateAction string

// The actions.
const (
	LateDead LateAction = "dead" // it became a dead letter
	LateDrop LateAction = "drop" // it was dropped
)

// Options are the settings of a Publisher. NewPublisher sets the defaults.
type Options struct {
	Streams streams.Config
	// MaxAttempts returns the most attempts of a timer, which its events state. Default: 1.
	MaxAttempts func(keys.Key) int
	// PayloadAttempt says whether an attempt stated by a payload counts, if it is at most MaxAttempts. Default: true.
	PayloadAttempt bool
	// Late has the limits for timers without their own. Default: no limits.
	Late policy.Rules[policy.Limit]
	// ContentType is the encoding of payloads, see event.Event. Default: by their content.
	ContentType string

	// Window limits the firings in flight, from Publish to the acknowledgement. It also limits, for each server of the
	// schedule, the firings from Publish until they are settled or given back. Default: 4,096.
	Window int
	// WindowBytes limits the payload bytes of the firings in flight. A single firing may have more. Default: 64 MiB.
	WindowBytes int
	// SettleAtOnce settles each firing once it is acknowledged. By default it waits up to 20 ms for others.
	SettleAtOnce bool
	// AckWait is the time to wait for an acknowledgement before the next try, at most until the lease ends. Default:
	// 5 s.
	AckWait time.Duration
	// DrainTimeout bounds Run's work after its context has ended. Default: 5 s.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default()
	// Permit is called at each check of the stream. While it returns an error, no event is published. It must return
	// quickly. Default: it returns nil.
	Permit func() error
	// Written asks whether the server can write the stream. By default a Publisher has its own.
	Written *streams.WriteErrors

	// Metrics counts the Publisher's work. Default: nothing is counted.
	Metrics Metrics
}

// Metrics counts the work of a Publisher. Its methods may be called concurrently, must return quickly, and must not
// call the Publisher.
type Metrics interface {
	// Fired counts an acknowledged firing. lateness is the time from its due time to its publication. duplicate means
	// that the event was in JetStream already, from an earlier try or another timerd.
	Fired(f *schedule.Firing, lateness time.Duration, duplicate bool)
	// Failed counts a failed try.
	Failed(class Failure)
	// Settled counts settled firings.
	Settled(n int)
	// Released counts firings given back unpublished.
	Released(n int)
	// SetAside counts a firing that is parked because NATS does not take its subject, or timerd may not read its guard.
	// kind is OutcomeRefused or OutcomeUnread.
	SetAside(f *schedule.Firing, kind schedule.OutcomeKind)
	// Late counts a firing that was claimed too late, once its dead letter is stored or it is dropped.
	Late(f *schedule.Firing, action LateAction)
	// Guarded counts a firing that does not fire by its guard.
	Guarded(f *schedule.Firing)
	// Lost counts events that NATS has lost after it had acknowledged them to this Publisher. n is a lower bound.
	Lost(n uint64)
}

type noMetrics struct{}

func (noMetrics) Fired(*schedule.Firing, time.Duration, bool)     {}
func (noMetrics) Failed(Failure)                                  {}
func (noMetrics) Settled(int)                                     {}
func (noMetrics) Released(int)                                    {}
func (noMetrics) SetAside(*schedule.Firing, schedule.OutcomeKind) {}
func (noMetrics) Late(*schedule.Firing, LateAction)               {}
func (noMetrics) Guarded(*schedule.Firing)                        {}
func (noMetrics) Lost(uint64)                                     {}

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
		Metrics:        noMetrics{},
		Written:        new(streams.WriteErrors),
	}
}

// size returns the size of the window.
func (o *Options) size() lanes.Load { return lanes.Load{Tries: o.Window, Bytes: o.WindowBytes} }
