// Package deadletters lists, replays and purges dead letters, for whoever shows them.
package deadletters

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
	"github.com/timerd-io/timerd/retry"
	"github.com/timerd-io/timerd/schedule"
)

// letterTimeout is how long JetStream may take to hand a letter over.
const letterTimeout = 10 * time.Second

// Letter is one message of the stream of dead letters.
type Letter struct {
	Seq     uint64 // its number in the stream
	Stored  time.Time
	Subject string
	MsgID   string
	Data    []byte
	Event   event.Event // what Data says, if Fault is ""
	Fault   string      // why Data is no event, "" if it is one
}

// newLetter reads a message of the stream of an installation whose subjects begin with prefix.
func newLetter(prefix string, seq uint64, stored time.Time, subject string, header nats.Header, data []byte) Letter {
	l := Letter{Seq: seq, Stored: stored, Subject: subject, Data: data, MsgID: header.Get(event.MsgIDHeader)}
	var err error
	if l.Event, err = event.Parse(data); err != nil {
		l.Fault = err.Error()
	} else if l.Event.Key.Subject(prefix, keys.Dead) != subject {
		l.Fault = fmt.Sprintf("of the timer %q, which is not one of the subject %s", event.ClipText(l.Event.Key.String()), subject)
	}
	return l
}

// ID returns the event's id, or that of the message where it holds no event.
func (l Letter) ID() string {
	if l.Fault != "" {
		return l.MsgID
	}
	return l.Event.ID
}

// Timer returns what sets the timer of a letter again, due at the given time as attempt 1, or says why there
// is none in it.
func (l Letter) Timer(due schedule.Millis) (r schedule.Retry, why string) {
	switch {
	case l.Fault != "":
		return r, "not an event: " + l.Fault
	case strings.HasPrefix(l.Event.DeadReason, event.ReasonMalformed):
		return r, "it holds no timer but a message that made no sense: timerd dead ls --json shows it"
	}
	return retry.Replay(l.Event, due), ""
}

// Selection says which letters to look at; the zero value means all. At most one field is set.
type Selection struct {
	Namespace keys.Namespace // only letters of these keys
	ID        string         // only letters with this id, of which there must be one
	Seq       uint64         // only the letter with this number in its stream, which must be there
}

// Letters are the selected letters that were there when they were selected.
type Letters struct {
	stream  jetstream.Stream
	prefix  string // of every subject
	subject string // that of the letters, with wildcards; "" for any
	first   uint64 // sequence numbers, both included
	last    uint64
	id      string // only letters with this id; "" for any
}

// Select returns the chosen letters of the installation with these names. Its error says what is not there.
func Select(ctx context.Context, js jetstream.JetStream, names keys.Names, chosen Selection) (*Letters, error) {
	stream, err := js.Stream(ctx, names.DeadStream())
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("there is no stream %s: timerd makes it at its start; TIMERD_STREAM names another one", names.DeadStream())
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", names.DeadStream(), err)
	}
	state := stream.CachedInfo().State
	all := &Letters{stream: stream, prefix: names.SubjectPrefix(), id: chosen.ID, first: state.FirstSeq, last: state.LastSeq}
	if chosen.Namespace != (keys.Namespace{}) {
		all.subject = chosen.Namespace.Subject(names.Prefix, keys.Dead)
	}
	if chosen.Seq > 0 {
		_, err := all.get(ctx, chosen.Seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, fmt.Errorf("stream %s: no dead letter %d; timerd dead ls shows their numbers", names.DeadStream(), chosen.Seq)
		}
		if err != nil {
			return nil, err
		}
		all.first, all.last = chosen.Seq, chosen.Seq
	}
	if chosen.ID != "" {
		found := false
		err := all.Each(ctx, func(Letter) (bool, error) {
			found = true
			return false, nil
		})
		if err != nil {
			return nil, err
		}
		if !found {
			return nil, fmt.Errorf("stream %s: no dead letter has the id %q", names.DeadStream(), chosen.ID)
		}
	}
	return all, nil
}

// get returns one letter.
func (s *Letters) get(ctx context.Context, seq uint64) (Letter, error) {
	m, err := s.stream.GetMsg(ctx, seq)
	if err != nil {
		return Letter{}, fmt.Errorf("dead letter %d: %w", seq, err)
	}
	return newLetter(s.prefix, m.Sequence, m.Time, m.Subject, m.Header, m.Data), nil
}

// delete deletes one letter. One that is gone already is no error.
func (s *Letters) delete(ctx context.Context, seq uint64) error {
	if err := s.stream.DeleteMsg(ctx, seq); err != nil {
		if _, gone := s.get(ctx, seq); !errors.Is(gone, jetstream.ErrMsgNotFound) {
			return fmt.Errorf("delete dead letter %d: %w", seq, err)
		}
	}
	return nil
}

// Purge deletes letters: the numbers are all that Each has told up to the last of them.
func (s *Letters) Purge(ctx context.Context, seqs []uint64) error {
	if s.id != "" || s.first == s.last {
		for _, seq := range seqs {
			if err := s.delete(ctx, seq); err != nil {
				return err
			}
		}
		return nil
	}
	options := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSequence(seqs[len(seqs)-1] + 1)}
	if s.subject != "" {
		options = append(options, jetstream.WithPurgeSubject(s.subject))
	}
	if err := s.stream.Purge(ctx, options...); err != nil {
		return fmt.Errorf("purge the dead letters: %w", err)
	}
	return nil
}

// Each calls f for each letter, oldest first, until it returns false or an error.
func (s *Letters) Each(ctx context.Context, f func(Letter) (bool, error)) error {
	conf := jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(s.first, 1)}
	if s.subject != "" {
		conf.FilterSubjects = []string{s.subject}
	}
	consumer, err := s.stream.OrderedConsumer(ctx, conf)
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
		l, left, err := s.nextLetter(ctx, messages)
		if err != nil {
			return fmt.Errorf("read the dead letters: %w", err)
		}
		if l.Seq > s.last {
			return nil
		}
		more := true
		if s.id == "" || s.id == l.ID() {
			more, err = f(l)
		}
		if err != nil || !more || l.Seq == s.last || left == 0 {
			return err
		}
	}
}

// nextLetter returns a letter and how many there are after it.
func (s *Letters) nextLetter(ctx context.Context, messages jetstream.MessagesContext) (Letter, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	m, err := messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return Letter{}, 0, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return Letter{}, 0, err
	}
	return newLetter(s.prefix, meta.Sequence.Stream, meta.Timestamp, m.Subject(), m.Headers(), m.Data()), meta.NumPending, nil
}

// Replay sets the timers of the letters with these numbers, to fire at once: now is the time of Redis. It
// takes each letter out of the stream once its timer is set, so that an interruption loses none, and then
// tells done. fresh is false for a timer that an interrupted replay had set already. Letters that are gone
// are passed over. It returns how many timers it has set.
func (s *Letters) Replay(ctx context.Context, sched *schedule.Schedule, now schedule.Millis, seqs []uint64, done func(l Letter, fresh bool) error) (replayed int, err error) {
	for _, seq := range seqs {
		l, err := s.get(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // somebody else was faster
		}
		if err != nil {
			return replayed, err
		}
		timer, _ := l.Timer(now)
		_, fresh, err := sched.Retry(ctx, timer)
		if err != nil {
			return replayed, err
		}
		if err := s.delete(ctx, seq); err != nil {
			return replayed, fmt.Errorf("the timer of letter %d is set, but the letter could not be deleted: %w", seq, err)
		}
		replayed++
		if err := done(l, fresh); err != nil {
			return replayed, err
		}
	}
	return replayed, nil
}
