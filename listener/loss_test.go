package listener_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
	"github.com/timerd-io/timerd/schedule"
)

// quick has a listener notice a loss soon.
func quick(l *listener.Listener) {
	l.CanaryInterval, l.CanaryTimeout = 50*time.Millisecond, 500*time.Millisecond
}

// If some flags are lost and switched on again, everything works as before.
func TestRecoversFromAPartialLoss(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "*", quick)
	r.healthy()
	r.eventually("the loss to be noticed", func() bool {
		// Repeated: a slow listener may subscribe again, and so switch the flags on, before it notices.
		const flag = "notify-keyspace-events"
		if rdb.ConfigGet(t.Context(), flag).Val()[flag] != "xKE" && len(r.complete) == 0 {
			rdb.ConfigSet(t.Context(), flag, "KEx")
		}
		return len(r.complete) > 0 && !r.complete[0]
	})
	r.eventually("events to be complete again", func() bool { return r.complete[len(r.complete)-1] })
	r.adopts("a:b:c:d")
}

func TestEnablesFlags(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after string }{
		{"", "KEg$hxe"},
		{"Ex", "KEg$hxe"},
		{"Elm", "KEg$lhxem"},
		{"AKE", "AKE"},
	} {
		t.Run(c.before, func(t *testing.T) {
			t.Parallel()
			rdb := testenv.Redis(t).Client()
			rdb.ConfigSet(t.Context(), "notify-keyspace-events", c.before)
			r := listen(t, rdb, rdb, "*")
			r.healthy()
			r.adopts("a:b:c:d")
			got := rdb.ConfigGet(t.Context(), "notify-keyspace-events").Val()["notify-keyspace-events"]
			if sorted(got) != sorted(c.after) {
				t.Errorf("flags %q, want %q", got, c.after)
			}
		})
	}
}

func sorted(flags string) string {
	var out strings.Builder
	for c := '!'; c <= '~'; c++ {
		if strings.ContainsRune(flags, c) {
			out.WriteRune(c)
		}
	}
	return out.String()
}

// restricted returns a client that may not use CONFIG.
func restricted(t testing.TB, server *testenv.RedisServer, rdb *redis.Client) *redis.Client {
	t.Helper()
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "guest", "on", "nopass", "~*", "&*", "+@all",
		"-config").Err(); err != nil {
		t.Fatal(err)
	}
	return server.Client(func(o *redis.Options) { o.Username, o.Password = "guest", "x" })
}

func TestSaysWhatToDoWhereConfigIsForbidden(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client()
	guest := restricted(t, server, rdb)
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "")
	r := listen(t, rdb, guest, "*", quick)
	r.eventually("events to be missed", func() bool { return len(r.complete) > 0 && !r.complete[0] })
	testenv.Eventually(t, bound, func() bool {
		err := r.Healthy()
		return err != nil && strings.Contains(err.Error(), `set notify-keyspace-events to "KEg$hxe"`) &&
			strings.Contains(err.Error(), "TIMERD_KEYSPACE_EVENTS=off")
	}, "the fix to be named")

	n := r.gapsSeen()
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "KEA")
	r.gapAfter(n)
	r.eventually("events to be complete", func() bool { return r.complete[len(r.complete)-1] })
}

func TestExpiryEventsAlone(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client()
	guest := restricted(t, server, rdb)
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "Ex")
	r := listen(t, rdb, guest, "*", quick)
	r.eventually("incomplete events", func() bool { return len(r.complete) > 0 && !r.complete[0] })
	r.healthy()
	rdb.Set(t.Context(), "a:b:c:d", "p", 10*time.Millisecond)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(context.Background(), "a:b:c:d")
		return rdb.ZCard(context.Background(), keys.Single.Firing()).Val() == 1
	}, "the expired event to be followed")
}

// Without E no expired event comes, whatever the keyspace channels bring.
func TestNoticesThatExpiredEventsAreLost(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client()
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "Kg$xe")
	var logs testenv.Output
	guest := restricted(t, server, rdb)
	listen(t, rdb, guest, "*", quick, func(l *listener.Listener) { l.Logger = logs.Logger() })
	logs.Wait(t, bound, "missing=Ex")
}

func TestNoticesGaps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault func(t *testing.T, server *testenv.RedisServer, rdb *redis.Client, proxy *testenv.Proxy)
	}{
		{"subscriber killed", func(t *testing.T, _ *testenv.RedisServer, rdb *redis.Client, _ *testenv.Proxy) {
			// A slow listener may be subscribing again right now.
			testenv.Eventually(t, bound, func() bool {
				return rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val() == 1
			}, "the end of the subscriber")
		}},
		{"flags switched off", func(t *testing.T, _ *testenv.RedisServer, rdb *redis.Client, _ *testenv.Proxy) {
			rdb.ConfigSet(t.Context(), "notify-keyspace-events", "")
		}},
		{"connections cut", func(_ *testing.T, _ *testenv.RedisServer, _ *redis.Client, p *testenv.Proxy) {
			p.Drop()
		}},
		{"restart", func(_ *testing.T, s *testenv.RedisServer, _ *redis.Client, _ *testenv.Proxy) {
			s.Restart()
		}},
		{"crash", func(_ *testing.T, s *testenv.RedisServer, _ *redis.Client, _ *testenv.Proxy) {
			s.Kill()
			s.Start()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			proxy := testenv.NewProxy(t, server.Addr())
			rdb := server.Client()
			r := listen(t, rdb, via(t, proxy), "*", quick)
			r.healthy()
			r.adopts("a:b:c:before")
			n := r.gapsSeen()
			c.fault(t, server, rdb, proxy)
			r.gapAfter(n)
			r.adopts("a:b:c:after")
		})
	}
}

// via returns a client whose connections go through a proxy.
func via(t testing.TB, proxy *testenv.Proxy) *redis.Client {
	t.Helper()
	through := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Second, DialTimeout: time.Second,
		MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { _ = through.Close() })
	return through
}

// Each loss of a working subscription counts as the first: the next session begins as soon, whatever the number of
// losses before.
func TestSubscribesAtOnceEachTime(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	var logs testenv.Output
	r := listen(t, rdb, rdb, "*", func(l *listener.Listener) {
		l.CanaryInterval, l.CanaryTimeout, l.Logger = 50*time.Millisecond, bound, logs.Logger()
	})
	const losses = 3
	for range losses {
		r.healthy()
		before := commandCalls(t, rdb, "set") // a canary is sent once the one before it has run out
		testenv.Eventually(t, bound, func() bool { return commandCalls(t, rdb, "set") > before+3 }, "some canaries")
		n := r.gapsSeen()
		rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub")
		r.gapAfter(n)
	}
	// a second attempt only logs another error
	if first := strings.Count(logs.String(), "attempt=1 "); first != losses {
		t.Errorf("%d losses in %d, want each to be the first of a row:\n%s", first, losses, logs.String())
	}
}

// During a black hole events count as missing, also the events that it held back.
func TestNoticesABlackHole(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	proxy := testenv.NewProxy(t, server.Addr())
	rdb := server.Client()
	r := listen(t, rdb, via(t, proxy), "*", quick)
	r.healthy()
	n := r.gapsSeen()
	proxy.Blackhole()
	// An unanswered canary ends no session: a canary under way when the hole began is answered after Heal.
	testenv.Eventually(t, bound, func() bool {
		err := r.Healthy()
		return err != nil && !strings.Contains(err.Error(), "takes no writes")
	}, "the black hole to end the session")
	proxy.Heal()
	r.gapAfter(n)
	r.adopts("a:b:c:after")
}

// A loss too short for a canary to count as lost is still a gap.
func TestNoticesAMomentaryLoss(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	rdb := server.Client()
	r := listen(t, rdb, server.Client(), "*", quick,
		func(l *listener.Listener) { l.CanaryTimeout = 100 * l.CanaryInterval })
	r.healthy()
	r.adopts("a:b:c:before")
	canaries := func() string {
		return infoField(rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_set:")
	}
	// A loss of one class of events, or of all.
	for _, flags := range []string{"", "KEg$e", "KExge", "KEx$e"} {
		n := r.gapsSeen()
		if err := rdb.ConfigSet(t.Context(), "notify-keyspace-events", flags).Err(); err != nil {
			t.Fatal(err)
		}
		// Three canaries: the last but one has run out and been touched.
		for range 3 {
			before := canaries()
			testenv.Eventually(t, bound, func() bool { return canaries() != before }, "a canary")
		}
		if err := rdb.ConfigSet(t.Context(), "notify-keyspace-events", "KEA").Err(); err != nil {
			t.Fatal(err)
		}
		r.gapAfter(n)
	}
}

// infoField returns the rest of the line of an INFO reply that begins with name.
func infoField(info, name string) string {
	_, rest, _ := strings.Cut(info, name)
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// A pause of writes delays events, and loses none: the session goes on, and hears the delayed ones.
func TestPausesOfWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		pause, reads time.Duration // the pause; the listener's read timeout
	}{
		{"shorter than the canary's time", 200 * time.Millisecond, time.Minute},
		{"longer than that", 1200 * time.Millisecond, time.Minute},
		{"longer than that and than calls may take", 1200 * time.Millisecond, 300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.Redis(t)
			rdb := server.Client()
			rdb.ConfigSet(t.Context(), "hz", "1") // few keys run out by themselves
			conn := server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = c.reads, -1 })
			r := listen(t, rdb, conn, "*", quick)
			r.healthy()
			r.adopts("a:b:c:1")
			patient := server.Client(func(o *redis.Options) { o.ReadTimeout = bound })
			n := r.gapsSeen()
			for i := range 3 {
				key := fmt.Sprint("a:b:c:", i)
				r.adopts(key)
				if err := rdb.Do(t.Context(), "CLIENT", "PAUSE", c.pause.Milliseconds(), "WRITE").Err(); err != nil {
					t.Fatal(err)
				}
				if err := patient.Del(t.Context(), key).Err(); err != nil { // at the end of the pause
					t.Fatal(err)
				}
				r.indexed(key, false)
				before := commandCalls(t, rdb, "set")
				testenv.Eventually(t, bound, func() bool { return commandCalls(t, rdb, "set") > before+3 },
					"some canaries")
			}
			if seen := r.gapsSeen() - n; seen > 0 {
				t.Errorf("%d gaps, want none: %v", seen, r.Healthy())
			}
		})
	}
}

// commandCalls returns the server's number of calls of a command.
func commandCalls(t testing.TB, rdb *redis.Client, name string) (calls int) {
	t.Helper()
	stats := infoField(rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_"+name+":")
	_, _ = fmt.Sscanf(stats, "calls=%d", &calls)
	return calls
}

// A canary whose slot moves to another master is replaced by one in another slot, and the subscription goes on.
func TestClusterCanaryMoves(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 2, false)
	s := schedule.New(cluster.Client(), schedule.DefaultMaxPayload)
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn := nodes[0].Server()
	r := listenTo(t, s, conn, conn, "*", quick)
	r.healthy()
	n := r.gapsSeen()
	slotOf := func() (slot int) {
		testenv.Eventually(t, bound, func() error {
			names, _, err := conn.Scan(t.Context(), 0, keys.CanaryPrefix+"*", 1000).Result()
			if err == nil && len(names) == 0 {
				err = errors.New("no canary")
			}
			if err == nil {
				slot = keys.Slot(names[0])
			}
			return err
		}, "a canary")
		return slot
	}
	slot := slotOf()
	from, to := cluster.Nodes[0], cluster.Nodes[1]
	if cluster.Master(slot) != from {
		from, to = to, from
	}
	cluster.OpenSlot(slot, from, to)
	cluster.CloseSlot(slot, from, to)
	testenv.Eventually(t, bound, func() bool { return slotOf() != slot }, "a canary in another slot")
	before := commandCalls(t, conn, "set")
	testenv.Eventually(t, bound, func() bool { return commandCalls(t, conn, "set") > before+20 }, "some canaries")
	if seen := r.gapsSeen() - n; seen > 0 || r.Healthy() != nil {
		t.Errorf("%d gaps, want none: %v", seen, r.Healthy())
	}
}
