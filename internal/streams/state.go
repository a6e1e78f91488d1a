package streams

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// The names of what timerds keep in the stream of the state, besides the reports of each process.
const (
	stateCounts = "counts" // of the timers, see Losses
	stateLosses = "losses" // not acknowledged yet
)

// ReadState returns the value that is kept under a name in the stream of the state, the zero value if there is none.
// Without the stream its error wraps [jetstream.ErrStreamNotFound].
func ReadState[T any](ctx context.Context, js jetstream.JetStream, s Config, name string) (T, error) {
	v, _, err := readState[T](ctx, js, s, name)
	return v, err
}

// readState is ReadState with the sequence of the message, 0 if there is none.
func readState[T any](ctx context.Context, js jetstream.JetStream, s Config, name string) (v T, at uint64, err error) {
	stream, err := js.Stream(ctx, s.StateStream())
	if err != nil {
		return v, 0, err
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.keptSubject(name))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return v, 0, nil
	case err != nil:
		return v, 0, err
	}
	err = json.Unmarshal(m.Data, &v)
	return v, m.Sequence, err
}

// ChangeState changes the value that is kept under a name, and tries again if somebody else does at the same time. It
// stores nothing if change returns false.
func ChangeState[T any](ctx context.Context, js jetstream.JetStream, s Config, name string,
	change func(*T) bool) error {
	for {
		v, at, err := readState[T](ctx, js, s, name)
		if err != nil || !change(&v) {
			return err
		}
		text, err := json.Marshal(v)
		if err == nil {
			_, err = js.Publish(ctx, s.keptSubject(name), text, jetstream.WithExpectLastSequencePerSubject(at))
		}
		refused, ok := errors.AsType[*jetstream.APIError](err)
		if !ok || refused.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequence &&
			refused.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequenceConstant {
			return err
		}
	}
}

// state returns the stream of counts and losses, as created if missing.
func (s Config) state() jetstream.StreamConfig {
	c := s.configs()[0]
	c.Name, c.Subjects = s.StateStream(), []string{s.SubjectAll(keys.State)}
	c.Description = "timerd: counts of timers, and losses"
	c.MaxAge, c.MaxBytes, c.MaxMsgsPerSubject = 0, 0, 1
	c.AllowDirect = false // reading it needs no extra right
	return c
}

// keptSubject returns the subject of the value kept under a name.
func (s Config) keptSubject(name string) string {
	return s.SubjectPrefix() + "." + keys.State + "." + name
}
