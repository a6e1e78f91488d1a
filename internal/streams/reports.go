package streams

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// stateSubject returns the subject for reports of a kind by the process with an instance id.
func stateSubject(n keys.Names, kind, instance string) string {
	return stateSubjects(n, kind, keys.EncodeToken(instance))
}

// stateSubjects is stateSubject for a token of a subject: * for all processes.
func stateSubjects(n keys.Names, kind, token string) string {
	return n.SubjectPrefix() + "." + keys.State + "." + kind + "." + token
}

// readReports returns each process's last report of a kind, unless older than age.
func readReports[T any](
	ctx context.Context, js jetstream.JetStream, s Config, kind string, age time.Duration,
) (all []T, err error) {
	err = eachReport(ctx, js, s, kind, func(_ jetstream.Stream, m *jetstream.RawStreamMsg, now time.Time) error {
		var one T
		if json.Unmarshal(m.Data, &one) == nil && now.Sub(m.Time) < age {
			all = append(all, one)
		}
		return nil
	})
	return all, err
}

// purgeReports removes the reports of a kind that are older than age.
func purgeReports(ctx context.Context, js jetstream.JetStream, s Config, kind string, age time.Duration) error {
	return eachReport(ctx, js, s, kind, func(stream jetstream.Stream, m *jetstream.RawStreamMsg, now time.Time) error {
		if now.Sub(m.Time) < age {
			return nil
		}
		return stream.DeleteMsg(ctx, m.Sequence)
	})
}

// eachReport calls f for each process's last report of a kind, with the present time by the clock of NATS.
func eachReport(
	ctx context.Context, js jetstream.JetStream, s Config, kind string,
	f func(stream jetstream.Stream, m *jetstream.RawStreamMsg, now time.Time) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, lossesTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, s.StateStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(stateSubjects(s.Names, kind, "*")))
	if err != nil {
		return err
	}
	now := info.TimeStamp
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			continue // it is gone
		}
		if err := f(stream, m, now); err != nil {
			return err
		}
	}
	return nil
}
