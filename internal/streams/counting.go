package streams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
)

const (
	// FirstCount is the time after a timerd's start by which it has counted the timers.
	FirstCount = 2 * countInterval
	// countTooOld is the age of the last count that means that nobody counts any more.
	countTooOld = 5 * countInterval
)

// ReadCounting returns a warning if no living timerd counts the timers for [Losses], so that a loss of timers would go
// unnoticed. It returns nil if they are counted.
func ReadCounting(ctx context.Context, js jetstream.JetStream, s Config, written *WriteErrors) (*Fault, error) {
	ctx, cancel := context.WithTimeout(ctx, lossesTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, s.StateStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.uncounted("there is no such stream", s.noState(ctx, js)), nil
	}
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	last, err := stream.GetLastMsgForSubject(ctx, s.keptSubject(stateCounts))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return s.uncounted("it has no count", s.noCount(ctx, js, info, written)), nil
	case err != nil:
		return nil, err
	case info.TimeStamp.Sub(last.Time) > countTooOld:
		at := last.Time.UTC().Format(time.RFC3339)
		return s.uncounted("the last count is of "+at, s.noCount(ctx, js, info, written)), nil
	}
	return nil, nil
}

// uncounted returns the warning that the timers are not counted, with the reason if known.
func (s Config) uncounted(what string, why error) *Fault {
	f := &Fault{
		Stream: s.StateStream(), Warning: true,
		What:   what + ": the timers are not counted, so nobody would notice if they got lost",
		Remedy: "look for \"not counted\" in the logs of the timerds, which have the reason",
	}
	if cause, ok := why.(diag.Fixable); ok { //nolint:errorlint // wrapped in another error it is incomplete
		f.What, f.Remedy = fmt.Sprintf("%s: %s", f.What, cause.Problem()), cause.Fix()
	}
	return f
}

// noState returns the reason why no timerd could create the stream of the state; nil if unknown.
func (s Config) noState(ctx context.Context, js jetstream.JetStream) error {
	account, err := js.AccountInfo(ctx)
	switch {
	case err != nil:
		return nil //nolint:nilerr // then the reason is unknown
	case account.Limits.MaxStreams > 0 && account.Streams >= account.Limits.MaxStreams:
		return s.explainLimit(ctx, js, s.state(), &jetstream.APIError{ErrorCode: codeMaxStreams})
	case account.Limits.MaxBytesRequired && s.MaxBytes == 0:
		return s.explainLimit(ctx, js, s.state(), &jetstream.APIError{ErrorCode: codeMaxBytesRequired})
	}
	return AccountFullness(account, 0)
}

// noCount returns the reason why the stream of the state accepts no count; nil if unknown.
func (s Config) noCount(ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo,
	written *WriteErrors) error {
	if err := Fullness(info, fullSlack, 0); err != nil {
		return err
	}
	return written.Of(ctx, js, info.Config.Name)
}
