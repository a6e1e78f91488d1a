package main

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
)

// newTenants returns a system whose NATS has a user for each of the apps good and evil. Each may publish what concerns
// timers of its own app, and may not read the dead letters.
func newTenants(t *testing.T) (s *system, good, evil jetstream.JetStream) {
	t.Helper()
	s = newSystem(t)
	s.nats = testenv.NATS(t, func(o *server.Options) {
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
	s.js = s.nats.JetStream()
	s.env["TIMERD_NATS_URL"] = s.nats.URL()
	silent := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	return s, s.nats.JetStream(nats.UserInfo("good", "good"), silent), s.nats.JetStream(nats.UserInfo("evil", "evil"), silent)
}

// publish publishes as one of the users, with headers as name and value in turn.
func (s *system) publish(js jetstream.JetStream, subject string, data []byte, headers ...string) {
	s.t.Helper()
	m := nats.NewMsg(subject)
	m.Data = data
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	if _, err := js.PublishMsg(s.t.Context(), m); err != nil {
		s.t.Fatal(err)
	}
}

// lettersOf waits until the app good has n dead letters with the id of an event.
func (s *system) lettersOf(id string, n int) {
	s.t.Helper()
	c := testenv.Collect(s.t, s.js, "TIMERS_DEAD", "timers.dead.good.>")
	for _, m := range c.Wait(n, patience) {
		if e, err := event.Parse(m.Data); err != nil || e.ID != id || e.Key.App != "good" {
			s.t.Errorf("dead letter %s: %v", m.Data, err)
		}
	}
}

// consumeGood has the events of the app good handled until stop is called.
func (s *system) consumeGood(js jetstream.JetStream, handler client.Handler) (stop func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() {
		consumer := client.NewConsumer(js)
		consumer.Durable = "good"
		done <- consumer.Consume(ctx, "good", handler)
	}()
	return func() {
		s.t.Helper()
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

// Who may publish for one app alone cannot keep away what another one asks for, though he knows its ids beforehand.
func TestForgedIDs(t *testing.T) {
	t.Parallel()
	s, good, evil := newTenants(t)
	s.env["TIMERD_RETRY"] = "*=1ms"
	p := s.start()
	c := s.collect()
	const key = "good:b:c:1"
	due := s.now() + 1500
	ids := []string{keys.EventID(key, due, 1)}
	forged := failed("evil:b:c:1")
	forged.ID = ids[0]
	// The id of the request for a retry, as a header and as the event's own.
	for _, suffix := range []string{"", ".retry"} {
		s.publish(evil, "timers.retry.evil.b.c", forged.AppendJSON(nil), "Timer-Delay", "1h", event.MsgIDHeader, ids[0]+suffix)
	}
	s.noRequests()
	s.do("FCALL", "timer_set", 1, key, "p", "PXAT", due)
	stop := s.consumeGood(good, func(ctx context.Context, e client.Event) error {
		if e.Attempt == 2 { // the last: evil's letter comes first
			last := failed("evil:b:c:2")
			last.ID, last.Attempt = e.ID, 2
			s.publish(evil, "timers.retry.evil.b.c", last.AppendJSON(nil))
			testenv.Eventually(t, patience, func() error {
				stream, err := s.js.Stream(ctx, "TIMERS_DEAD")
				if err == nil && stream.CachedInfo().State.Msgs == 0 {
					err = errors.New("none")
				}
				return err
			}, "the letter of evil")
		}
		return errors.New("no")
	})
	all := s.expect(c, key+"=p", key+"=p")
	s.lettersOf(all[1].ID, 1)
	s.noRequests()
	// The same is asked for again, and no second letter comes of it.
	last := c.All()[1]
	s.publish(good, strings.Replace(last.Subject, ".fired.", ".retry.", 1), last.Data)
	s.noRequests()
	s.lettersOf(all[1].ID, 1)
	stop()
	p.stop()
}

// A letter that is published with the id of somebody else's keeps that one not away, whether it is timerd's or the
// client's, still there or deleted.
func TestForgedLetters(t *testing.T) {
	t.Parallel()
	s, good, evil := newTenants(t)
	s.env["TIMERD_RETRY"] = "*=exp(1s,1,1s,0)"
	p := s.start()
	c := s.collect()
	dead, err := s.js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	for i, deleted := range []bool{false, true} {
		e := failed([]string{"good:b:c:1", "good:b:c:2"}[i])
		forged := failed("evil:b:c:1")
		forged.ID, forged.Type, forged.DeadReason = e.ID, event.TypeDead, event.ReasonGivenUp
		s.publish(evil, "timers.dead.evil.b.c", forged.AppendJSON(nil), event.MsgIDHeader, e.ID)
		if deleted {
			if err := dead.Purge(t.Context(), jetstream.WithPurgeSubject("timers.dead.evil.>")); err != nil {
				t.Fatal(err)
			}
		}
		s.publish(good, "timers.retry.good.b.c", e.AppendJSON(nil))
		s.noRequests()
		letters := testenv.Collect(t, s.js, "TIMERS_DEAD", "timers.dead.good.>").Wait(i+1, patience)
		if got, err := event.Parse(letters[i].Data); err != nil || got.Key != e.Key || got.ID != e.ID {
			t.Errorf("dead letter %s: %v", letters[i].Data, err)
		}
	}
	const key = "good:b:c:3"
	due := s.now() + 1000
	id := keys.EventID(key, due, 1)
	forged := failed("evil:b:c:3")
	forged.ID, forged.Type, forged.DeadReason = id, event.TypeDead, event.ReasonGivenUp
	s.publish(evil, "timers.dead.evil.b.c", forged.AppendJSON(nil), event.MsgIDHeader, id)
	s.do("FCALL", "timer_set", 1, key, "p", "PXAT", due)
	stop := s.consumeGood(good, func(context.Context, client.Event) error { return client.Dead(nil) })
	s.expect(c, key+"=p")
	testenv.Collect(t, s.js, "TIMERS_DEAD", "timers.dead.good.>").Wait(3, patience)
	stop()
	p.stop()
}
