// Package ledger sets the account of the schedule beside the stream of firings, and keeps hourly copies of it.
//
// Each firing counted by Redis is an event of the stream. So since any moment the stream has stored as many events as
// were fired, except for those in flight: their number is the width of the comparison's range.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// lookEvery is the interval of the comparisons of all timerds together, unless some fail. With the time of one it
	// is under a minute.
	lookEvery = 50 * time.Second
	// lookPause is the interval at which a timerd asks whether there is one to make.
	lookPause = lookEvery / 10
	// lookTimeout bounds one: a cluster has 16,384 partitions.
	lookTimeout = 20 * time.Second
	// unexplainedFor is the time after which unexplained events or firings are a finding.
	unexplainedFor = time.Minute
)

// Stale is the age from which a comparison says nothing about the present: timerds make one a minute, and after
// failures in five.
const Stale = 10 * time.Minute

// The names in the stream of the state.
const (
	stateComparison = "account"
	stateCopies     = "hours"
)

// Comparison is the account beside the stream of firings. The stream may have stored more events than were fired, by
// at least Least and at most Most; negative numbers are fewer. If 0 lies outside, events or firings are unexplained.
// Their number changes by a fault alone, so each look narrows the range of those before it.
type Comparison struct {
	Since  time.Time `json:"since,omitzero"` // when it began
	Stored int64     `json:"stored"`         // events since then
	Fired  int64     `json:"fired"`          // timers since then
	Least  int64     `json:"least"`
	Most   int64     `json:"most"`
	At     time.Time `json:"at,omitzero"` // when it was made, by the clock of NATS
	// Unexplained is since when 0 has been outside; zero if it is inside.
	Unexplained time.Time `json:"unexplained_since,omitzero"`
	// Missing is the reason why there is no comparison.
	Missing string `json:"missing,omitempty"`
}

// Differs reports whether events or firings have been unexplained for a minute.
func (c Comparison) Differs() bool {
	return !c.Unexplained.IsZero() && c.At.Sub(c.Unexplained) >= unexplainedFor
}

// record is the last comparison with its beginning.
type record struct {
	Begin begin      `json:"begin"`
	Last  Comparison `json:"last"`
	// Account is the account at Looked, if it was whole and no partition differed.
	Account *schedule.Account `json:"account,omitempty"`
	Looked  time.Time         `json:"looked"` // by the clock of NATS
}

// Seen is what the timerds have seen last.
type Seen struct {
	Comparison
	// Account is the account at Looked; nil if it was not whole, or a partition differed.
	Account *schedule.Account
	Looked  time.Time // when a timerd began to compare last, by the clock of NATS; zero: never
}

// begin is the starting point of a comparison: a sequence of the stream, just after the account was read.
type begin struct {
	Account  time.Time `json:"account,omitzero"` // when that account had begun
	Stream   time.Time `json:"stream,omitzero"`  // when the stream was created
	Sequence uint64    `json:"sequence"`
	Least    int64     `json:"least"` // timers fired or stored by then
	Most     int64     `json:"most"`
	Unsure   int64     `json:"unsure"` // dead letters whose events may be stored
	Fired    int64     `json:"fired"`
}

// reading is a look at the stream after the account was read.
type reading struct {
	account   schedule.Account
	stream    *jetstream.StreamInfo
	meanwhile int64 // events stored since a look just before the account was read
}

// Sources are the account and the stream.
type Sources struct {
	Schedule  *schedule.Schedule
	JetStream jetstream.JetStream
	Streams   streams.Config
}

// Compare returns the account, and compares it with the stream of firings, from where a timerd has begun. It stores
// nothing.
func (s Sources) Compare(ctx context.Context) (schedule.Account, Comparison, error) {
	r, missing, err := s.read(ctx)
	if err != nil || missing != "" {
		return r.account, Comparison{Missing: missing}, err
	}
	was, err := streams.ReadState[record](ctx, s.JetStream, s.Streams, stateComparison)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), err == nil && !r.continues(was.Begin):
		return r.account, Comparison{Missing: "a timerd begins within a minute"}, nil
	case err != nil:
		return r.account, Comparison{}, fmt.Errorf("stream %s: %w", s.Streams.StateStream(), err)
	}
	return r.account, r.compare(was), nil
}

// read reads the stream, the account, and the stream again. missing is the reason why these cannot be compared; the
// account is there nevertheless, unless read fails.
func (s Sources) read(ctx context.Context) (r reading, missing string, err error) {
	before, err := s.stream(ctx)
	if err != nil {
		return r, "", err
	}
	if r.account, err = s.Schedule.Account(ctx); err != nil {
		return r, "", err
	}
	if r.stream, err = s.stream(ctx); err != nil {
		return r, "", err
	}
	r.meanwhile = int64(r.stream.State.LastSeq) - int64(before.State.LastSeq)
	only, is := []string{s.Streams.SubjectAll(keys.Fired)}, r.stream.Config
	switch {
	case !slices.Equal(is.Subjects, only) || is.Mirror != nil || len(is.Sources) > 0:
		missing = "the stream " + is.Name + " stores other messages too"
	case r.account.Since.IsZero():
		missing = "the account has not begun"
	case !r.account.IsWhole(), len(s.Schedule.PassedOver()) > 0:
		missing = "the account lacks partitions"
	case !r.stream.Created.Equal(before.Created), r.meanwhile < 0: // a new leader may not know all events yet
		missing = "the stream was replaced meanwhile"
	}
	return r, missing, nil
}

// stream returns the state of the stream of firings.
func (s Sources) stream(ctx context.Context) (*jetstream.StreamInfo, error) {
	stream, err := s.JetStream.Stream(ctx, s.Streams.FiredStream())
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", s.Streams.FiredStream(), streams.Explained(ctx, s.JetStream, err))
	}
	return stream.CachedInfo(), nil
}

// continues reports whether the comparison that has begun there goes on: with the same account and the same stream.
func (r reading) continues(b begin) bool {
	return r.account.Since.Equal(b.Account) && r.stream.Created.Equal(b.Stream)
}

// begin begins a comparison.
func (r reading) begin() begin {
	return begin{
		Account: r.account.Since, Stream: r.stream.Created, Sequence: r.stream.State.LastSeq,
		Least: r.account.Fired(), Most: r.most(r.account.Unsure), Unsure: r.account.Unsure, Fired: r.account.Fired(),
	}
}

// most returns how many stored events at most the account explains, after so many unsure dead letters: an event of the
// first look is of a timer that the account has as fired or as firing, or of such a letter.
func (r reading) most(unsure int64) int64 {
	return r.account.Fired() + r.account.InFlight + max(r.account.Unsure-unsure, 0) + r.meanwhile
}

// compare compares with a beginning, and with the comparison before.
func (r reading) compare(was record) Comparison {
	b, fired := was.Begin, r.account.Fired()
	c := Comparison{
		Since: was.Last.Since, At: r.stream.TimeStamp, Fired: fired - b.Fired,
		Stored: int64(r.stream.State.LastSeq) - int64(b.Sequence),
	}
	c.Least, c.Most = c.Stored-(r.most(b.Unsure)-b.Least), c.Stored-(fired-b.Most)
	if least, most := max(c.Least, was.Last.Least), min(c.Most, was.Last.Most); !was.Last.At.IsZero() && least <= most {
		c.Least, c.Most = least, most
	}
	if c.Least > 0 || c.Most < 0 {
		c.Unexplained = was.Last.Unexplained
		if c.Unexplained.IsZero() || c.Unexplained.After(c.At) {
			c.Unexplained = c.At
		}
	}
	return c
}

// Keeper compares once a minute, and copies the account once an hour. Several timerds share the work.
type Keeper struct {
	Sources
	Logger *slog.Logger
}

// Run keeps the ledger until ctx ends.
func (k Keeper) Run(ctx context.Context) {
	pace := backoff.Backoff{Policy: backoff.Policy{First: lookEvery, Longest: 5 * time.Minute}, Logger: k.Logger}
	for pause := lookPause; backoff.Sleep(ctx, pause); {
		within, cancel := context.WithTimeout(ctx, lookTimeout)
		err := k.look(within)
		cancel()
		if pause = lookPause; err != nil && k.JetStream.Conn().IsConnected() {
			pause = pace.Fail("the account is not compared with the stream of firings", err)
		} else {
			pace.Succeed()
		}
	}
}

// look compares, unless a timerd has done so lately, and copies the account if this hour has no copy.
func (k Keeper) look(ctx context.Context) error {
	was, err := streams.ReadState[record](ctx, k.JetStream, k.Streams, stateComparison)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // the first count of the timers creates the stream
	}
	if err != nil {
		return err
	}
	info, err := k.stream(ctx)
	if err != nil || info.TimeStamp.Sub(was.Looked).Abs() < lookEvery-lookPause {
		return err
	}
	return k.compare(ctx, was, info.TimeStamp)
}

// compare compares, copies the account, and stores the comparison unless another timerd was first. was is the last one,
// now the time by the clock of NATS.
func (k Keeper) compare(ctx context.Context, was record, now time.Time) error {
	r, missing, err := k.read(ctx)
	if err != nil {
		return err
	}
	isWhole := r.account.IsWhole() && len(k.Schedule.PassedOver()) == 0
	err = streams.ChangeState(ctx, k.JetStream, k.Streams, stateComparison, func(kept *record) bool {
		if !kept.Looked.Equal(was.Looked) {
			return false // another timerd was first
		}
		kept.Looked, kept.Account = now, nil
		if isWhole && len(r.account.Differences) == 0 {
			kept.Account = &r.account
		}
		if missing != "" {
			return true
		}
		if !r.continues(kept.Begin) {
			kept.Begin, kept.Last = r.begin(), Comparison{Since: r.stream.TimeStamp}
		}
		kept.Last = r.compare(*kept)
		return true
	})
	if err != nil || !isWhole {
		return err
	}
	return k.copy(ctx, r)
}

// Read returns what the timerds have seen last; the zero Seen if there is nothing.
func Read(ctx context.Context, js jetstream.JetStream, s streams.Config) (Seen, error) {
	r, err := streams.ReadState[record](ctx, js, s, stateComparison)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return Seen{r.Last, r.Account, r.Looked}, err
}

// Acknowledge has a new comparison begin if the last one differs, and returns that one.
func Acknowledge(ctx context.Context, js jetstream.JetStream, s streams.Config) (was Comparison, err error) {
	err = streams.ChangeState(ctx, js, s, stateComparison, func(kept *record) bool {
		was = kept.Last
		*kept = record{}
		return was.Differs()
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	return was, err
}
