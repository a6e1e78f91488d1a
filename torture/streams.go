package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// streamTime bounds the read of a stream.
const streamTime = 2 * time.Minute

// readStreams records all messages of the streams of firings, dead letters and deliveries. The file with the given name
// gets the messages unchanged; "" means no file.
func readStreams(ctx context.Context, url, file string, w *history.Writer) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, streamTime,
		fmt.Errorf("the stream was not read to its end within %v", streamTime))
	defer cancel()
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	raw, err := createMessages(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.Close()) }()
	for stream, class := range map[string]string{history.FiredStream: keys.Fired, history.DeadStream: keys.Dead,
		history.DeliveryStream: keys.Delivery} {
		err := readStream(ctx, js, stream, func(msg jetstream.Msg, meta *jetstream.MsgMetadata) history.Record {
			raw.add(class, msg.Data())
			if class == keys.Delivery {
				d := delivery(msg, meta)
				return history.Record{Delivery: &d}
			}
			m := message(msg, meta, stream, class)
			return history.Record{Message: &m}
		}, w)
		if err != nil {
			return fmt.Errorf("reading %s: %w", stream, errors.Join(err, context.Cause(ctx)))
		}
	}
	return nil
}

// readStream records each message of a stream.
func readStream(ctx context.Context, js jetstream.JetStream, name string,
	is func(jetstream.Msg, *jetstream.MsgMetadata) history.Record, w *history.Writer) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	last := stream.CachedInfo().State.LastSeq
	if last == 0 {
		return nil
	}
	consumer, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	for {
		msg, err := messages.Next()
		if err != nil {
			return err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return err
		}
		w.Write(is(msg, meta))
		if meta.Sequence.Stream >= last {
			return nil
		}
	}
}

// message reads one message, and checks the message by itself. Fault has the result.
func message(msg jetstream.Msg, meta *jetstream.MsgMetadata, stream, class string) history.Message {
	m := history.Message{
		Stream: stream, Seq: meta.Sequence.Stream, Stored: meta.Timestamp.UnixMilli(),
		ID:    msg.Headers().Get(event.MsgIDHeader),
		Batch: msg.Headers().Get("Nats-Batch-Id") != "",
	}
	if err := read(&m, msg, class); err != nil {
		m.Fault = err.Error()
	}
	return m
}

// read reads the event of a message. Its error is the fault of the event.
func read(m *history.Message, msg jetstream.Msg, class string) error {
	e, err := event.Parse(msg.Data())
	if err != nil {
		return err
	}
	m.Key, m.EventID, m.Time, m.Due = e.Key.String(), e.ID, e.Time.UnixMilli(), e.Due.UnixMilli()
	m.Attempt, m.Max, m.Trigger, m.Payload, m.Status, m.Reason = e.Attempt, e.MaxAttempts, e.Trigger, string(e.Data),
		e.Status, e.DeadReason
	m.Occurrence, m.Origin = e.Occurrence, e.Origin
	want := keys.EventID(m.Key, m.Due, m.Attempt)
	if strings.HasPrefix(e.DeadReason, event.ReasonRefused) {
		want = e.ID // the id of the request: each request has its own dead letter
	}
	switch {
	case e.ID != want || m.ID != want && !isFresh(m.ID, e, class):
		return fmt.Errorf("event %s in message %s, want %s", e.ID, m.ID, want)
	case class == keys.Dead && e.Origin == "" && !strings.HasPrefix(e.DeadReason, event.ReasonMalformed):
		return fmt.Errorf("the dead letter %s does not name its timer's first event", e.ID)
	case msg.Subject() != e.Key.Subject("timers", class):
		return fmt.Errorf("event %s on %s", e.ID, msg.Subject())
	}
	return nil
}

// isFresh reports whether a dead letter has a fresh id. It gets a fresh id if another letter of the same event is
// stored. That happens if an event was published although it had a letter, and then used up its attempts.
func isFresh(id string, e event.Event, class string) bool {
	const ids = 3
	for n := 1; class == keys.Dead && n <= ids; n++ {
		if id == event.FreshLetterID(e, n) {
			return true
		}
	}
	return false
}
