package history_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// fixture are those of an installation, on a server.
type fixture struct {
	t     testing.TB
	js    jetstream.JetStream
	names keys.Names
	sent  int
}

// newStreams makes the streams, as timerd does.
func newStreams(t testing.TB, s *testenv.NATSServer, names keys.Names, opts ...nats.Option) *fixture {
	t.Helper()
	js := s.JetStream(opts...)
	if err := streams.Ensure(t.Context(), js, streams.Config{Names: names}); err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, js: js, names: names}
}

// allowDirect allows direct access to the streams or not: a user who has made them may have left it out.
func (s *fixture) allowDirect(direct bool) {
	s.t.Helper()
	for _, name := range []string{s.names.FiredStream(), s.names.DeadStream()} {
		stream, err := s.js.Stream(s.t.Context(), name)
		if err != nil {
			s.t.Fatal(err)
		}
		c := stream.CachedInfo().Config
		c.AllowDirect = direct
		if _, err := s.js.UpdateStream(s.t.Context(), c); err != nil {
			s.t.Fatal(err)
		}
	}
}

// publish publishes a message. JetStream's answer is waited for only now and then; await waits for all.
func (s *fixture) publish(subject string, header nats.Header, data []byte) {
	s.t.Helper()
	m := &nats.Msg{Subject: subject, Header: header, Data: data}
	var err error
	if s.sent++; s.sent%2000 == 0 {
		_, err = s.js.PublishMsg(s.t.Context(), m)
	} else {
		err = s.js.Conn().PublishMsg(m)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// await waits until a stream has stored all that was published.
func (s *fixture) await(name string, messages uint64) {
	s.t.Helper()
	testenv.Eventually(s.t, time.Minute, func() error {
		stream, err := s.js.Stream(s.t.Context(), name)
		if err != nil {
			return err
		}
		if n := stream.CachedInfo().State.Msgs; n != messages {
			return fmt.Errorf("%s has %d messages, want %d", name, n, messages)
		}
		return nil
	}, "all that was published")
}

// firing returns the event of a timer.
func firing(key string, attempt int) event.Event {
	k, err := keys.Parse(key)
	if err != nil {
		panic(err)
	}
	due := time.Now().Truncate(time.Millisecond)
	return event.Event{
		ID: keys.EventID(key, due.UnixMilli(), attempt), Type: event.TypeFired, Key: k, Due: due,
		Time:    due.Add(2 * time.Millisecond),
		Attempt: attempt, MaxAttempts: 16, Trigger: "deadline",
		Data: []byte(`{"order":1,"note":"` + strings.Repeat("x", 180) + `"}`),
	}
}

// fire publishes a firing.
func (s *fixture) fire(key string, attempt int) {
	s.t.Helper()
	e := firing(key, attempt)
	s.publish(s.names.Subject(e.Key, keys.Fired), nats.Header{event.MsgIDHeader: {e.ID}}, e.AppendJSON(nil))
}

// die publishes a dead letter.
func (s *fixture) die(key, reason string) {
	s.t.Helper()
	e := firing(key, 16)
	e.Type, e.DeadReason, e.LastError = event.TypeDead, reason, "502 Bad Gateway"
	s.publish(s.names.Subject(e.Key, keys.Dead), nats.Header{event.MsgIDHeader: {e.ID}}, e.AppendJSON(nil))
}
