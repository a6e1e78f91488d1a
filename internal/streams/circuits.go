package streams

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// CircuitsPause is how often a process says which hosts it does not call, while there are any. What it said is forgotten
// once it has said nothing for longer.
const (
	CircuitsPause = 5 * time.Second
	circuitsAge   = 4 * CircuitsPause
)

// Circuit is a host that a process of timerd deliver does not call because it fails.
type Circuit struct {
	Host  string    `json:"host"`
	Since time.Time `json:"since"`
}

// circuitsSubject returns where the process of an instance id says which hosts it does not call.
func circuitsSubject(n keys.Names, instance string) string {
	return n.SubjectPrefix() + "." + keys.State + ".circuits." + keys.EncodeToken(instance)
}

// SayCircuits says which hosts the process of an instance id does not call.
func SayCircuits(ctx context.Context, js jetstream.JetStream, s Config, instance string, all []Circuit) error {
	text, err := json.Marshal(all)
	if err == nil {
		_, err = js.Publish(ctx, circuitsSubject(s.Names, instance), text, jetstream.WithRetryAttempts(0))
	}
	return err
}

// ReadCircuits returns the hosts that any process does not call, in the order of their names.
func ReadCircuits(ctx context.Context, js jetstream.JetStream, s Config) (all []Circuit, err error) {
	ctx, cancel := context.WithTimeout(ctx, lossesTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, s.StateStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(strings.Replace(circuitsSubject(s.Names, "*"), "%2A", "*", 1)))
	if err != nil {
		return nil, err
	}
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			continue // it is gone
		}
		var some []Circuit
		if json.Unmarshal(m.Data, &some) == nil && info.TimeStamp.Sub(m.Time) < circuitsAge {
			all = append(all, some...)
		}
	}
	slices.SortFunc(all, func(a, b Circuit) int { return cmp.Or(strings.Compare(a.Host, b.Host), a.Since.Compare(b.Since)) })
	return slices.CompactFunc(all, func(a, b Circuit) bool { return a.Host == b.Host }), nil
}
