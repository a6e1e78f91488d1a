package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// letterTimeout is how long JetStream may take to hand a letter over.
const letterTimeout = 10 * time.Second

// letter is one message of the stream of dead letters.
type letter struct {
	seq     uint64
	stored  time.Time
	subject string
	data    []byte
	event   event.Event
	fault   string // why the data are no event, "" if they are one
	msgID   string
}

// newLetter reads a message of the stream.
func newLetter(seq uint64, stored time.Time, subject string, header nats.Header, data []byte) letter {
	l := letter{seq: seq, stored: stored, subject: subject, data: data, msgID: header.Get(event.MsgIDHeader)}
	var err error
	if l.event, err = event.Parse(data); err != nil {
		l.fault = err.Error()
	}
	return l
}

// id returns the event's id, or that of the message where it holds no event.
func (l letter) id() string {
	if l.fault != "" {
		return l.msgID
	}
	return l.event.ID
}

// letterView is a letter that is no event, as --json shows it.
type letterView struct {
	ID         string `json:"id,omitempty"`
	Seq        uint64 `json:"seq"`
	StoredAt   string `json:"storedat"`
	Subject    string `json:"natssubject"`
	Fault      string `json:"fault"`
	DataBase64 []byte `json:"data_base64"`
}

func (l letter) view() letterView {
	return letterView{l.msgID, l.seq, l.stored.UTC().Format(timeLayout), l.subject, l.fault, l.data}
}

// selection says which letters a command is for; the zero value means all.
type selection struct {
	args []string // at most one, a namespace
	id   string
	seq  uint64
}

// deadLetters are the selected letters that were there when the command began.
type deadLetters struct {
	stream  jetstream.Stream
	subject string // that of the letters, with wildcards; "" for any
	first   uint64 // sequence numbers, both included
	last    uint64
	id      string // only letters with this id; "" for any
}

// withDeadLetters calls f with the selected letters, of which there must be one if an
// id or a number is given, and with the sections of the configuration.
func withDeadLetters(cmd *cobra.Command, chosen selection, sections section, f func(*deadLetters, config, *slog.Logger) error) error {
	given := len(chosen.args)
	for _, flag := range []bool{chosen.id != "", chosen.seq > 0} {
		if flag {
			given++
		}
	}
	if given > 1 {
		return usagef(cmd, "NAMESPACE, --id and --seq exclude each other")
	}
	namespace, err := namespaceArg(cmd, chosen.args)
	if err != nil {
		return err
	}
	return withJetStream(cmd, sections, func(js jetstream.JetStream, c config, log *slog.Logger) error {
		all, err := selectDeadLetters(cmd.Context(), js, c, namespace, chosen)
		if err != nil {
			return err
		}
		return f(all, c, log)
	})
}

// selectDeadLetters returns the chosen letters.
func selectDeadLetters(ctx context.Context, js jetstream.JetStream, c config, namespace keys.Namespace, chosen selection) (*deadLetters, error) {
	stream, err := js.Stream(ctx, c.NATS.Streams.Dead())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("there is no stream %s: timerd makes it at its start; TIMERD_STREAM names another one", c.NATS.Streams.Dead())
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", c.NATS.Streams.Dead(), err)
	}
	state := stream.CachedInfo().State
	all := &deadLetters{stream: stream, id: chosen.id, first: state.FirstSeq, last: state.LastSeq}
	if namespace != (keys.Namespace{}) {
		all.subject = namespace.Subject(c.NATS.Streams.Prefix, keys.Dead)
	}
	if chosen.seq > 0 {
		_, err := all.get(ctx, chosen.seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, fmt.Errorf("stream %s: no dead letter %d; timerd dead ls shows their numbers", c.NATS.Streams.Dead(), chosen.seq)
		}
		if err != nil {
			return nil, err
		}
		all.first, all.last = chosen.seq, chosen.seq
	}
	if chosen.id != "" {
		found := false
		err := all.each(ctx, func(letter) (bool, error) {
			found = true
			return false, nil
		})
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("stream %s: no dead letter has the id %q", c.NATS.Streams.Dead(), chosen.id)
		}
	}
	return all, nil
}

// get returns one letter.
func (d *deadLetters) get(ctx context.Context, seq uint64) (letter, error) {
	m, err := d.stream.GetMsg(ctx, seq)
	if err != nil {
		return letter{}, fmt.Errorf("dead letter %d: %w", seq, err)
	}
	return newLetter(m.Sequence, m.Time, m.Subject, m.Header, m.Data), nil
}

// delete deletes one letter. One that is gone already is no error.
func (d *deadLetters) delete(ctx context.Context, seq uint64) error {
	err := d.stream.DeleteMsg(ctx, seq)
	if err == nil {
		return nil
	}
	if _, gone := d.get(ctx, seq); errors.Is(gone, jetstream.ErrMsgNotFound) {
		return nil
	}
	return fmt.Errorf("delete dead letter %d: %w", seq, err)
}

// purge deletes letters: the given numbers are all there were up to the last of them.
func (d *deadLetters) purge(ctx context.Context, doomed []uint64) error {
	if d.id != "" || d.first == d.last {
		for _, seq := range doomed {
			if err := d.delete(ctx, seq); err != nil {
				return err
			}
		}
		return nil
	}
	options := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSequence(doomed[len(doomed)-1] + 1)}
	if d.subject != "" {
		options = append(options, jetstream.WithPurgeSubject(d.subject))
	}
	if err := d.stream.Purge(ctx, options...); err != nil {
		return fmt.Errorf("purge the dead letters: %w", err)
	}
	return nil
}

// each calls f for each letter, oldest first, until it returns false or an error.
func (d *deadLetters) each(ctx context.Context, f func(letter) (bool, error)) error {
	config := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(d.first, 1)}
	if d.subject != "" {
		config.FilterSubjects = []string{d.subject}
	}
	consumer, err := d.stream.OrderedConsumer(ctx, config)
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read the dead letters: %w", err)
	}
	defer messages.Stop()
	for {
		l, left, err := nextLetter(ctx, messages)
		if err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
		if l.seq > d.last {
			return nil
		}
		more := true
		if d.id == "" || d.id == l.id() {
			more, err = f(l)
		}
		if err != nil || !more || l.seq == d.last || left == 0 {
			return err
		}
	}
}

// nextLetter returns a letter and how many there are after it.
func nextLetter(ctx context.Context, messages jetstream.MessagesContext) (letter, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	m, err := messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return letter{}, 0, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return letter{}, 0, err
	}
	return newLetter(meta.Sequence.Stream, meta.Timestamp, m.Subject(), m.Headers(), m.Data()), meta.NumPending, nil
}
