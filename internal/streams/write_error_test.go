package streams_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestWriteErrorsAtVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"2.10.0": false, "2.11.9": false, "2.12.0": false, "2.13.9": false,
		"2.14.0": true, "2.15.2": true, "3.0.0": true, "dev": false, "": false} {
		if streams.KeepsWriteErrors(version) != want {
			t.Errorf("%q: asks %t, want %t", version, !want, want)
		}
	}
}

// asksFor asks for the write error of a stream, and returns how many requests that took.
func asksFor(t *testing.T, w *streams.WriteErrors, js jetstream.JetStream, stream string) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	before := js.Conn().Stats().OutMsgs
	if err := w.Of(ctx, js, stream); err != nil {
		t.Errorf("%s: %v", stream, err)
	}
	return js.Conn().Stats().OutMsgs - before
}

// Without the right to ask, a stream is not asked about again for a while: the server logs each refusal.
func TestWriteErrorsWithoutTheRight(t *testing.T) {
	t.Parallel()
	ns := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "app", Password: "p", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Allow: []string{">"},
					Deny: []string{"$JS.API.STREAM.MSG.DELETE.TIMERS"}},
			}}}
		o.NoAuthUser = "admin"
	})
	admin, app := ns.JetStream(), ns.JetStream(nats.UserInfo("app", "p"))
	if err := streams.Ensure(t.Context(), admin, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		js     jetstream.JetStream
		stream string
		then   uint64 // requests of the second question
	}{
		"with it":        {admin, "TIMERS", 2},
		"without it":     {app, "TIMERS", 0},
		"another stream": {app, "TIMERS_DEAD", 2},
	} {
		var w streams.WriteErrors
		if n := asksFor(t, &w, c.js, c.stream); n != 2 {
			t.Errorf("%s: %d requests, want one for the stream and one for the error", name, n)
		}
		if n := asksFor(t, &w, c.js, c.stream); n != c.then {
			t.Errorf("%s: then %d requests, want %d", name, n, c.then)
		}
	}
}

// A stream with replicas gets no request: it would go through Raft.
func TestWriteErrorsOfReplicasCluster(t *testing.T) {
	t.Parallel()
	js := testenv.NATSCluster(t)[0].JetStream()
	for stream, replicas := range map[string]int{"ONE": 1, "THREE": 3} {
		testenv.Eventually(t, time.Minute, func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
			defer cancel()
			_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{stream},
				Replicas: replicas})
			return err
		}, "a stream")
		if n, want := asksFor(t, new(streams.WriteErrors), js, stream), uint64(3-min(replicas, 2)); n != want {
			t.Errorf("%d replicas: %d requests, want %d", replicas, n, want)
		}
	}
}
