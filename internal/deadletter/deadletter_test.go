package deadletter_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deadletter"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// A dead letter that may be stored already is read before it counts as stored, or is published under another id.
func TestStoredOnce(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "blind", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.>"}},
			}},
			{Username: "narrow", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"timers.fired.>"}},
			}},
		}
		o.NoAuthUser = "all"
	})
	js, blind := ns.JetStream(), ns.JetStream(nats.UserInfo("blind", "p"))
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_DEAD",
		Subjects: []string{"timers.dead.>"}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := keys.Parse("app:m:t:1")
	if err != nil {
		t.Fatal(err)
	}
	due := time.UnixMilli(1_800_000_000_000).UTC()
	e := event.Event{
		ID: keys.EventID(key.String(), due.UnixMilli(), 1), Type: event.TypeDead, Key: key, Due: due, Time: due,
		Attempt: 1, Data: []byte("p"), DeadReason: "held",
	}
	slow, err := jetstream.NewWithAPIPrefix(js.Conn(), "slow")
	if err != nil {
		t.Fatal(err)
	}
	narrow := ns.JetStream(nats.UserInfo("narrow", "p")).Conn()
	if err := errors.Join(narrow.Publish("timers.fired.a.b.c", nil), narrow.Flush()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() bool {
		return errors.Is(narrow.LastError(),
			nats.ErrPermissionViolation)
	}, "the server to refuse it")
	slowToo, err := jetstream.NewWithAPIPrefix(narrow, "slow")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Conn().Subscribe("slow.>", func(*nats.Msg) {}); err != nil { // requests there get no answer
		t.Fatal(err)
	}
	const wait = 6 * time.Second // the one without the right to read gets no answer for a third of it, twice
	for _, c := range []struct {
		name string
		by   jetstream.JetStream
		ok   bool
		want uint64 // letters in the stream after that
	}{
		{"the first time", js, true, 1},
		{"read, and found", js, true, 1},
		{"there is no answer in time", slow, false, 1},
		{"nor where something else was refused before", slowToo, false, 1},
		{"without the right to read", blind, true, 2},
		{"the same again", blind, true, 2},
		{"read, and found again", js, true, 2},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		if err := deadletter.Publish(ctx, c.by, "timers", e); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		cancel()
		info, err := stream.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs != c.want {
			t.Errorf("%s: %d letters, want %d", c.name, info.State.Msgs, c.want)
		}
	}
}
