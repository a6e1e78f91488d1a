package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// Owner is the installation of a stream.
type Owner struct {
	Stream       string
	Installation string // "" if nobody has marked the stream
}

// ownersOf returns the owners of the existing streams. Several installations on the same streams would drop each
// other's firings as duplicates if key and due time are the same, and take each other's retry requests. So each stream
// has the identity of its installation in its metadata.
func ownersOf(ctx context.Context, js jetstream.JetStream,
	streams ...jetstream.StreamConfig) (owners []Owner, err error) {
	for _, want := range streams {
		info, err := streamInfo(ctx, js, want.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
		case err != nil:
			return nil, fmt.Errorf("stream %s: %w", want.Name, err)
		default:
			owners = append(owners, Owner{want.Name, info.Config.Metadata[keys.InstallationMetadata]})
		}
	}
	return owners, nil
}

const (
	// reservation names the consumer whose existence reserves the streams. JetStream deletes it after reservedFor.
	reservation = "timerd-installation"
	reservedFor = 10 * time.Second
)

// reserve gives the installation of s the sole right to mark streams without a mark, for at least 10 s. It reports
// whether the installation has got the right: another installation may have it. It may be repeated.
//
// JetStream lets the last writer change a stream, but only the first one create a consumer. So a consumer of the stream
// of fired events stands for the right. It gets no messages.
func reserve(ctx context.Context, js jetstream.JetStream, s Config) (bool, error) {
	_, err := js.CreateConsumer(ctx, s.FiredStream(), jetstream.ConsumerConfig{
		Name:        reservation,
		Description: "timerd: installation " + s.Installation + " marks the streams",
		FilterSubject: keys.Key{App: reservation, Module: reservation, Type: reservation}.Subject(s.SubjectPrefix(),
			keys.Fired),
		AckPolicy:         jetstream.AckNonePolicy,
		DeliverPolicy:     jetstream.DeliverNewPolicy,
		InactiveThreshold: reservedFor,
		MemoryStorage:     true,
	})
	switch {
	case errors.Is(err, jetstream.ErrConsumerExists):
		return false, nil
	case err != nil:
		return false, fmt.Errorf(
			"stream %s: reserve it for installation %s: %w; the NATS user needs the right to publish to "+
				"$JS.API.CONSUMER.CREATE.%s.>",
			s.FiredStream(), s.Installation, err, s.FiredStream())
	}
	return true, nil
}

// stillReserved returns the fix for streams that stay reserved, which no timerd causes.
func stillReserved(s Config) error {
	return fmt.Errorf("stream %s: the consumer %q, which reserves the stream, does not go away; "+
		"to fix it: nats consumer rm %s %s --force",
		s.FiredStream(), reservation, s.FiredStream(), reservation)
}

// SetOwner writes a stream's owner into its metadata, and leaves everything else in its configuration as it is.
// JetStream offers no conditional change: reserve the streams before.
func SetOwner(ctx context.Context, js jetstream.JetStream, o Owner) error {
	// The configuration is passed on as it is: the client library may know less of it than the server.
	var stream struct {
		Config map[string]json.RawMessage `json:"config"`
	}
	if err := ask(ctx, js, "STREAM.INFO."+o.Stream, nil, &stream); err != nil {
		return fmt.Errorf("stream %s: %w", o.Stream, err)
	}
	metadata := map[string]string{}
	if was, ok := stream.Config["metadata"]; ok {
		if err := json.Unmarshal(was, &metadata); err != nil {
			return fmt.Errorf("stream %s: metadata %s: %w", o.Stream, was, err)
		}
	}
	metadata[keys.InstallationMetadata] = o.Installation
	is, err := json.Marshal(metadata)
	if err != nil {
		return fmt.Errorf("stream %s: %w", o.Stream, err) // cannot happen: the values are texts
	}
	stream.Config["metadata"] = is
	if err := ask(ctx, js, "STREAM.UPDATE."+o.Stream, stream.Config, nil); err != nil {
		return fmt.Errorf("stream %s: mark it as installation %s's: %w; the NATS user needs the right to publish to "+
			"$JS.API.STREAM.UPDATE.%s",
			o.Stream, o.Installation, err, o.Stream)
	}
	return nil
}

// ask makes a request of JetStream's API.
func ask(ctx context.Context, js jetstream.JetStream, subject string, request, response any) error {
	var body []byte
	if request != nil {
		var err error
		if body, err = json.Marshal(request); err != nil {
			return err // cannot happen: it came from JSON
		}
	}
	reply, err := js.Conn().RequestWithContext(ctx, jetstream.DefaultAPIPrefix+subject, body)
	if err != nil {
		return err
	}
	var refused struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &refused); err != nil {
		return fmt.Errorf("JetStream's answer: %w", err)
	}
	if refused.Error != nil {
		return refused.Error
	}
	if response == nil {
		return nil
	}
	return json.Unmarshal(reply.Data, response)
}

// Foreign returns a fault if a stream belongs to another installation than s, nil otherwise.
func (s Config) Foreign(o Owner) *Fault {
	if s.Installation == "" || o.Installation == "" || o.Installation == s.Installation {
		return nil
	}
	return &Fault{
		Stream: o.Stream,
		What: fmt.Sprintf("it belongs to installation %.100q, and the Redis of this timerd to %.100q", o.Installation,
			s.Installation),
		Remedy: "if the other installation is in use, give this one streams of its own with TIMERD_SUBJECT_PREFIX " +
			"and TIMERD_STREAM; if it is gone, take over its streams: timerd doctor --adopt-streams",
		Owner: o.Installation,
	}
}

// isAnothers reports whether an error means that a stream belongs to another installation.
func isAnothers(err error) bool {
	fault, ok := errors.AsType[*Fault](err)
	return ok && fault.Owner != ""
}
