package doctor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

// limited starts a server with an account that has so many bytes of storage.
func limited(t *testing.T, bytes int64) jetstream.JetStream {
	t.Helper()
	s := testenv.NATS(t, func(o *server.Options) {
		app := server.NewAccount("APP")
		o.Accounts = []*server.Account{app}
		o.Users = []*server.User{{Username: "app", Password: "pw", Account: app}}
	})
	s.LimitAccount("APP", bytes)
	return s.JetStream(nats.UserInfo("app", "pw"))
}

// fill makes the streams and publishes events.
func fill(t *testing.T, js jetstream.JetStream, conf streams.Config, n, size int) {
	t.Helper()
	if err := streams.Ensure(t.Context(), js, conf); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := js.Publish(t.Context(), "timers.fired.a.b.c", []byte(strings.Repeat("x", size)),
			jetstream.WithMsgID(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	const n, size = 100, 1200 // in the minute that a young stream counts as: 1.7 a second, over a GB in seven days
	for _, c := range []struct {
		name    string
		streams streams.Config
		storage int64
		level   diag.Level
		wants   []string
	}{
		{"an age that does not fit", streams.Config{}, 500 << 20, diag.Warn,
			[]string{"TIMERS gets 1.", "for 7d", "there is room for 524 MB",
				"give JetStream a larger disk; or, if nobody needs the oldest, which this drops, read or not: nats " +
					"stream edit TIMERS --max-age=",
				"h --force; or: nats stream edit TIMERS --max-bytes=409600KB --force"}},
		{"an age that fits", streams.Config{MaxAge: 24 * time.Hour}, 500 << 20, diag.OK, []string{"for 1d", "MB"}},
		{"a size that fits", streams.Config{MaxBytes: 100 << 20}, 500 << 20, diag.OK, []string{"for 7d: 105 MB"}},
		{"for ever", streams.Config{MaxAge: -1}, 500 << 20, diag.Warn, []string{"keeps them for ever", "MB a day"}},
		{"without a limit that is known", streams.Config{}, -1, diag.OK, []string{"for 7d: 1."}},
		{"for ever without a limit that is known", streams.Config{MaxAge: -1}, -1, diag.OK,
			[]string{"a day, without an end"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			js := limited(t, c.storage)
			fill(t, js, c.streams, n, size)
			wants(t, checkNATS(t, js, maxPayload), "stream growth", c.level, c.wants...)
			stream, err := js.Stream(t.Context(), "TIMERS")
			if err != nil || stream.CachedInfo().State.Consumers != 0 {
				t.Errorf("it leaves consumers behind: %v", err)
			}
		})
	}
}

func TestGrowthOnADisk(t *testing.T) {
	t.Parallel()
	js := testenv.NATS(t).JetStream()
	fill(t, js, streams.Config{}, 0, 0)
	check := func(free uint64) []diag.Finding {
		d := doctor.NewNATS(js, streams.Config{}, maxPayload)
		d.FreeDisk = free
		return d.Check(t.Context(), nil)
	}
	wants(t, check(1), "stream growth", diag.OK, "no messages lately")
	fill(t, js, streams.Config{}, 100, 1200)
	wants(t, check(1e9), "stream growth", diag.Warn, "there is room for 1 GB")
	wants(t, check(1e10), "stream growth", diag.OK, "for 7d: 1.")
}
