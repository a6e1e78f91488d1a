package streams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

const (
	// historyAge and historyBytes limit a created stream of the history. The oldest entries go first.
	historyAge   = 30 * 24 * time.Hour
	historyBytes = 64 << 20
)

// history returns the stream of the history, as created if missing.
func (s Config) history() jetstream.StreamConfig {
	c := s.configs()[0]
	c.AllowAtomicPublish = false
	c.Name, c.Subjects = s.HistoryStream(), []string{s.SubjectAll(keys.History)}
	c.Description = "timerd: timers that ended without an event, operators' actions, and incidents"
	c.MaxAge, c.MaxBytes, c.AllowDirect = historyAge, historyBytes, false
	return c
}

// EnsureHistory creates the stream of the history if it is missing. If the account has less room, the stream is
// smaller. Nothing needs the stream but the history.
func EnsureHistory(ctx context.Context, js jetstream.JetStream, s Config) error {
	want := s.history()
	for {
		_, err := js.CreateStream(ctx, want)
		switch code := codeOf(err); {
		case err == nil, errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
			return nil
		case (code == codeNoStorage || code == codeMaxStreamBytes) && want.MaxBytes > minShare:
			want.MaxBytes /= 8
		case code == codeInvalidConfig && want.Duplicates > s.minDuplicates():
			want.Duplicates = s.minDuplicates()
		default:
			return fmt.Errorf("stream %s: %w", want.Name, err)
		}
	}
}

// historySubject returns the subject of an entry.
func (s Config) historySubject(e event.Entry) (string, error) {
	if !e.IsEnd() {
		return s.OperatorSubject(string(e.Kind)), nil
	}
	all := e.Keys()
	if len(all) != 1 {
		return "", fmt.Errorf("entry of the history: %s has %d keys of timers, want 1", e.Kind, len(all))
	}
	return s.Subject(all[0], keys.History), nil
}

// WriteHistory stores an entry in the history, and waits until it is stored. It creates the stream if it is missing.
func WriteHistory(ctx context.Context, js jetstream.JetStream, s Config, e event.Entry,
	options ...jetstream.PublishOpt) error {
	subject, err := s.historySubject(e)
	if err != nil {
		return err
	}
	data, err := e.AppendJSON(nil)
	if err != nil {
		return fmt.Errorf("entry of the history: %w", err) // cannot happen: times are in UTC
	}
	options = append(options, jetstream.WithExpectStream(s.HistoryStream()), jetstream.WithRetryAttempts(0))
	publish := func() error {
		_, err := js.Publish(ctx, subject, data, options...)
		return err
	}
	if err = publish(); errors.Is(err, jetstream.ErrNoStreamResponse) {
		if err = EnsureHistory(ctx, js, s); err == nil {
			err = publish()
		}
	}
	if err != nil {
		err = fmt.Errorf("stream %s: %w", s.HistoryStream(), err)
	}
	return err
}
