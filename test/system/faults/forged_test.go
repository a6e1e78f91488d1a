package faults_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// newTenants returns a system whose NATS has a user for each of the apps good and evil. Each may publish messages about
// timers of its own app, and may not read the dead letters.
func newTenants(t *testing.T) (s *system.System, good, evil jetstream.JetStream) {
	t.Helper()
	s = system.New(t)
	s.NATS = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"}}
		for _, app := range []string{"good", "evil"} {
			o.Users = append(o.Users, &server.User{Username: app, Password: app, Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{
					"timers.retry." + app + ".>", "timers.dead." + app + ".>",
					"$JS.API.CONSUMER.*.TIMERS.>", "$JS.API.CONSUMER.MSG.NEXT.TIMERS.>", "$JS.ACK.TIMERS.>",
				}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}})
		}
		o.NoAuthUser = "admin"
	})
	s.JS = s.NATS.JetStream()
	s.Env["TIMERD_NATS_URL"] = s.NATS.URL()
	silent := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	return s, s.NATS.JetStream(nats.UserInfo("good", "good"), silent),
		s.NATS.JetStream(nats.UserInfo("evil", "evil"), silent)
}

// publish publishes as one of the users, with headers as name and value in turn.
func publish(s *system.System, js jetstream.JetStream, subject string, data []byte, headers ...string) {
	s.T.Helper()
	m := nats.NewMsg(subject)
	m.Data = data
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	if _, err := js.PublishMsg(s.T.Context(), m); err != nil {
		s.T.Fatal(err)
	}
}

// lettersOf waits until the app good has n dead letters with the id of an event.
func lettersOf(s *system.System, id string, n int) {
	s.T.Helper()
	c := testenv.Collect(s.T, s.JS, "TIMERS_DEAD", "timers.dead.good.>")
	for _, m := range c.Wait(n, system.Patience) {
		if e, err := event.Parse(m.Data); err != nil || e.ID != id || e.Key.App != "good" {
			s.T.Errorf("dead letter %s: %v", m.Data, err)
		}
	}
}

// consumeGood has the events of the app good handled until stop is called.
func consumeGood(s *system.System, js jetstream.JetStream, handler client.Handler) (stop func()) {
	s.T.Helper()
	ctx, cancel := context.WithCancel(s.T.Context())
	done := make(chan error, 1)
	go func() {
		consumer := client.NewConsumer(js)
		consumer.Durable = "good"
		done <- consumer.Consume(ctx, "good", handler)
	}()
	return func() {
		s.T.Helper()
		cancel()
		if err := <-done; err != nil {
			s.T.Error(err)
		}
	}
}

// A user with the right to publish for only one app cannot suppress another one's requests, even knowing its ids
// beforehand.
func TestForgedIDs(t *testing.T) {
	t.Parallel()
	s, good, evil := newTenants(t)
	s.Env["TIMERD_RETRY"] = "*=1ms"
	p := s.Start()
	c := s.Collect()
	const key = "good:b:c:1"
	due := s.Now() + 1500
	ids := []string{keys.EventID(key, due, 1)}
	forged := system.Failed("evil:b:c:1")
	forged.ID = ids[0]
	// The id of the request for a retry, as a header and as the event's own.
	for _, suffix := range []string{"", ".retry"} {
		publish(s, evil, "timers.retry.evil.b.c", forged.AppendJSON(nil), "Timer-Delay", "1h", event.MsgIDHeader,
			ids[0]+suffix)
	}
	s.NoRequests()
	s.Do("FCALL", "timer_set", 1, key, "p", "PXAT", due)
	stop := consumeGood(s, good, func(ctx context.Context, e client.Event) error {
		if e.Attempt == 2 { // the last: evil's letter comes first
			last := system.Failed("evil:b:c:2")
			last.ID, last.Attempt = e.ID, 2
			publish(s, evil, "timers.retry.evil.b.c", last.AppendJSON(nil))
			testenv.Eventually(t, system.Patience, func() error {
				stream, err := s.JS.Stream(ctx, "TIMERS_DEAD")
				if err == nil && stream.CachedInfo().State.Msgs == 0 {
					err = errors.New("none")
				}
				return err
			}, "the letter of evil")
		}
		return errors.New("no")
	})
	all := s.Expect(c, key+"=p", key+"=p")
	lettersOf(s, all[1].ID, 1)
	s.NoRequests()
	// The same request again does not make a second letter.
	last := c.All()[1]
	publish(s, good, strings.Replace(last.Subject, ".fired.", ".retry.", 1), last.Data)
	s.NoRequests()
	lettersOf(s, all[1].ID, 1)
	stop()
	p.Stop()
}

// A letter that is published with the id of somebody else's keeps that one not away, whether it is timerd's or the
// client's, still there or deleted.
func TestForgedLetters(t *testing.T) {
	t.Parallel()
	s, good, evil := newTenants(t)
	s.Env["TIMERD_RETRY"] = "*=exp(1s,1,1s,0)"
	p := s.Start()
	c := s.Collect()
	dead, err := s.JS.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	for i, deleted := range []bool{false, true} {
		e := system.Failed([]string{"good:b:c:1", "good:b:c:2"}[i])
		forged := system.Failed("evil:b:c:1")
		forged.ID, forged.Type, forged.DeadReason = e.ID, event.TypeDead, event.ReasonGivenUp
		publish(s, evil, "timers.dead.evil.b.c", forged.AppendJSON(nil), event.MsgIDHeader, e.ID)
		if deleted {
			if err := dead.Purge(t.Context(), jetstream.WithPurgeSubject("timers.dead.evil.>")); err != nil {
				t.Fatal(err)
			}
		}
		publish(s, good, "timers.retry.good.b.c", e.AppendJSON(nil))
		s.NoRequests()
		letters := testenv.Collect(t, s.JS, "TIMERS_DEAD", "timers.dead.good.>").Wait(i+1, system.Patience)
		if got, err := event.Parse(letters[i].Data); err != nil || got.Key != e.Key || got.ID != e.ID {
			t.Errorf("dead letter %s: %v", letters[i].Data, err)
		}
	}
	const key = "good:b:c:3"
	due := s.Now() + 1000
	id := keys.EventID(key, due, 1)
	forged := system.Failed("evil:b:c:3")
	forged.ID, forged.Type, forged.DeadReason = id, event.TypeDead, event.ReasonGivenUp
	publish(s, evil, "timers.dead.evil.b.c", forged.AppendJSON(nil), event.MsgIDHeader, id)
	s.Do("FCALL", "timer_set", 1, key, "p", "PXAT", due)
	stop := consumeGood(s, good, func(context.Context, client.Event) error { return client.Dead(nil) })
	s.Expect(c, key+"=p")
	testenv.Collect(t, s.JS, "TIMERS_DEAD", "timers.dead.good.>").Wait(3, system.Patience)
	stop()
	p.Stop()
}
