package listener_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
	"github.com/timerd-io/timerd/schedule"
)

const bound = 20 * time.Second

// ear is a running listener and what it reported.
type ear struct {
	*listener.Listener
	t        testing.TB
	rdb      *redis.Client // of the test
	schedule *schedule.Schedule

	mu       sync.Mutex
	gaps     []string
	wakes    []int64
	complete []bool
	refused  []string
	observed schedule.Observed
}

// listen starts a listener that uses the client conn, on the server of rdb.
func listen(t testing.TB, rdb, conn *redis.Client, namespaces string, configure ...func(*listener.Listener)) *ear {
	t.Helper()
	set, err := keys.ParseNamespaces(namespaces)
	if err != nil {
		t.Fatal(err)
	}
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	e := &ear{Listener: listener.New(conn, s, 0, set, "test"), t: t, rdb: rdb, schedule: s}
	e.CanaryInterval, e.CanaryTimeout = 50*time.Millisecond, 500*time.Millisecond
	e.OnGap = func(reason string) { e.note(func() { e.gaps = append(e.gaps, reason) }) }
	e.OnWake = func(_ keys.Partition, due int64) { e.note(func() { e.wakes = append(e.wakes, due) }) }
	e.OnComplete = func(c bool) { e.note(func() { e.complete = append(e.complete, c) }) }
	e.OnRefused = func(key string, _ error) { e.note(func() { e.refused = append(e.refused, key) }) }
	e.OnObserved = func(o schedule.Observed) { e.note(func() { e.observed.Add(o) }) }
	for _, c := range configure {
		c(e.Listener)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return e
}

func (e *ear) note(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// eventually waits for a condition on what was reported.
func (e *ear) eventually(what string, cond func() bool) {
	e.t.Helper()
	testenv.Eventually(e.t, bound, func() error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if cond() {
			return nil
		}
		return fmt.Errorf("gaps %q, wakes %v, complete %v, refused %.80q, observed %+v", e.gaps, e.wakes, e.complete, e.refused, e.observed)
	}, what)
}

func (e *ear) healthy() {
	e.t.Helper()
	testenv.Eventually(e.t, bound, e.Healthy, "events to flow")
}

// gapsSeen returns how many gaps were reported.
func (e *ear) gapsSeen() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.gaps)
}

// gapAfter waits for a gap beyond the first n, and for events to flow again.
func (e *ear) gapAfter(n int) {
	e.t.Helper()
	e.eventually("a gap to be noticed", func() bool { return len(e.gaps) > n })
	e.healthy()
}

// adopts sets a timer and waits until the index has it.
func (e *ear) adopts(key string) {
	e.t.Helper()
	if err := e.rdb.Set(e.t.Context(), key, "p", time.Hour).Err(); err != nil {
		e.t.Fatal(err)
	}
	e.indexed(key, true)
}

// indexed waits until the index has a key, or has it no longer.
func (e *ear) indexed(key string, want bool) {
	e.t.Helper()
	testenv.Eventually(e.t, bound, func() bool {
		err := e.rdb.ZScore(context.Background(), keys.Single.Due(), key).Err()
		return (err == nil) == want
	}, fmt.Sprintf("%q in the index to be %v", key, want))
}

func TestFollowsEvents(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	e := listen(t, rdb, rdb, "shop:order,pay")
	e.healthy()
	ctx := t.Context()

	e.adopts("shop:order:cancel:1")
	rdb.Persist(ctx, "shop:order:cancel:1")
	e.indexed("shop:order:cancel:1", false)
	e.adopts("pay:order:callback:1")

	// Not ours, though the pattern lets some of them through.
	for _, key := range []string{"shop:refund:cancel:1", "foreign:a:b:c", "shop:order", "payx:order:callback:1", "x:shop:order:cancel:1"} {
		rdb.Set(ctx, key, "", time.Hour)
	}
	e.adopts("shop:order:last:1")
	if n := rdb.ZCard(ctx, keys.Single.Due()).Val(); n != 2 {
		t.Errorf("%d timers in the index, want 2: %v", n, rdb.ZRange(ctx, keys.Single.Due(), 0, -1).Val())
	}
}

func TestNamespacesWithGlobCharacters(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	e := listen(t, rdb, rdb, "a[b]?%2A\\^-")
	e.healthy()
	e.adopts(`a[b]?*\^-:m:t:id`)
}

func TestEveryKindOfEvent(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	e := listen(t, rdb, rdb, "*")
	e.healthy()
	ctx := t.Context()
	const key = "a:b:c:d"

	rdb.HSet(ctx, key, "f", "1")
	rdb.Expire(ctx, key, time.Hour)
	e.indexed(key, true)
	rdb.HSet(ctx, key, "f", "2")
	testenv.Eventually(t, bound, func() bool {
		return rdb.HGet(ctx, keys.Single.Data(), key).Val() == `:{"f":"2"}`
	}, "the payload to follow the hash")
	rdb.Rename(ctx, key, key+"2")
	e.indexed(key, false)
	e.indexed(key+"2", true)
	rdb.Unlink(ctx, key+"2")
	e.indexed(key+"2", false)

	rdb.Set(ctx, key, "gone soon", 20*time.Millisecond)
	e.indexed(key, true)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(ctx, key)
		return rdb.ZCard(ctx, keys.Single.Firing()).Val() == 1
	}, "the expired event to make it owed")
	e.eventually("the report of it", func() bool { return e.observed.Owed == 1 })
}

func TestWakesForTimersSetThroughTheLibrary(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	e := listen(t, rdb, rdb, "other")
	e.healthy()
	due, err := rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:d"}, "p", "PX", 60000).Int64()
	if err != nil {
		t.Fatal(err)
	}
	e.eventually("a wake-up", func() bool { return len(e.wakes) == 1 && e.wakes[0] == due })
}

// timer_set accepts every key; its trigger key is followed like any other.
func TestTimersOutsideTheNamespaces(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	set := func(key string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 3_600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	e := listen(t, rdb, rdb, "ours")
	set("before:b:c:d")
	e.healthy()
	set("after:b:c:d")
	for _, app := range []string{"before", "after"} {
		rdb.Set(t.Context(), app+":b:c:plain", "not ours", time.Hour)
		testenv.Eventually(t, bound, func() bool {
			rdb.Expire(t.Context(), app+":b:c:d", 2*time.Hour)
			due := rdb.ZScore(t.Context(), keys.Single.Due(), app+":b:c:d").Val()
			return int64(due) > time.Now().Add(90*time.Minute).UnixMilli()
		}, "EXPIRE to be followed")
		rdb.Del(t.Context(), app+":b:c:d")
		e.indexed(app+":b:c:d", false)
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 0 {
		t.Errorf("%d timers, want none: keys outside the namespaces were adopted", n)
	}
}

// Some flags are lost and switched on again: everything is as it was.
func TestRecoversFromAPartialLoss(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	e := listen(t, rdb, rdb, "*")
	e.healthy()
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "KEx")
	e.eventually("the loss to be noticed", func() bool { return len(e.complete) > 0 && !e.complete[0] })
	e.eventually("events to be complete again", func() bool { return e.complete[len(e.complete)-1] })
	e.adopts("a:b:c:d")
}

func TestRefusesLongKeys(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	e := listen(t, rdb, rdb, "a")
	e.healthy()
	for _, key := range []string{"a:b:c:" + strings.Repeat("d", 1200), "a:" + strings.Repeat("b", 129) + ":c:d", "other:" + strings.Repeat("b", 129) + ":c:d"} {
		rdb.Set(t.Context(), key, "p", time.Hour)
	}
	e.adopts("a:b:c:d")
	e.eventually("refusals", func() bool { return len(e.refused) >= 2 })
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, key := range e.refused {
		if !strings.HasPrefix(key, "a:b") {
			t.Errorf("refused %q", key)
		}
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 1 {
		t.Errorf("%d timers, want 1", n)
	}
}

func TestEnablesFlags(t *testing.T) {
	for _, c := range []struct{ before, after string }{
		{"", "KEg$hxe"},
		{"Ex", "KEg$hxe"},
		{"Elm", "KEg$lhxem"},
		{"AKE", "AKE"},
	} {
		t.Run(c.before, func(t *testing.T) {
			testenv.NoLeaks(t)
			rdb := testenv.Redis(t).Client()
			rdb.ConfigSet(t.Context(), "notify-keyspace-events", c.before)
			e := listen(t, rdb, rdb, "*")
			e.healthy()
			e.adopts("a:b:c:d")
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
	if err := rdb.Do(t.Context(), "ACL", "SETUSER", "guest", "on", "nopass", "~*", "&*", "+@all", "-config").Err(); err != nil {
		t.Fatal(err)
	}
	return server.Client(func(o *redis.Options) { o.Username, o.Password = "guest", "x" })
}

func TestSaysWhatToDoWhereConfigIsForbidden(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	rdb := server.Client()
	guest := restricted(t, server, rdb)
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "")
	e := listen(t, rdb, guest, "*")
	e.eventually("events to be missed", func() bool { return len(e.complete) > 0 && !e.complete[0] })
	testenv.Eventually(t, bound, func() bool {
		err := e.Healthy()
		return err != nil && strings.Contains(err.Error(), `set notify-keyspace-events to "KEg$hxe"`)
	}, "the fix to be named")

	n := e.gapsSeen()
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "KEA")
	e.gapAfter(n)
	e.eventually("events to be complete", func() bool { return e.complete[len(e.complete)-1] })
}

func TestExpiryEventsAlone(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	rdb := server.Client()
	guest := restricted(t, server, rdb)
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "Ex")
	e := listen(t, rdb, guest, "*")
	e.eventually("incomplete events", func() bool { return len(e.complete) > 0 && !e.complete[0] })
	e.healthy()
	rdb.Set(t.Context(), "a:b:c:d", "p", 10*time.Millisecond)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(context.Background(), "a:b:c:d")
		return rdb.ZCard(context.Background(), keys.Single.Firing()).Val() == 1
	}, "the expired event to be followed")
}

// Without E no expired event comes, whatever the keyspace channels bring.
func TestNoticesThatExpiredEventsAreLost(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	rdb := server.Client()
	rdb.ConfigSet(t.Context(), "notify-keyspace-events", "Kg$xe")
	var said logBuffer
	guest := restricted(t, server, rdb)
	listen(t, rdb, guest, "*", func(l *listener.Listener) { l.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	testenv.Eventually(t, bound, func() bool { return strings.Contains(said.String(), "missing=Ex") }, "the loss to be named")
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func TestNoticesGaps(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(t *testing.T, server *testenv.RedisServer, rdb *redis.Client, proxy *testenv.Proxy)
	}{
		{"subscriber killed", func(t *testing.T, _ *testenv.RedisServer, rdb *redis.Client, _ *testenv.Proxy) {
			if n := rdb.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val(); n != 1 {
				t.Fatalf("killed %d subscribers, want 1", n)
			}
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
			testenv.NoLeaks(t)
			server := testenv.Redis(t)
			proxy := testenv.NewProxy(t, server.Addr())
			rdb := server.Client()
			e := listen(t, rdb, via(t, proxy), "*")
			e.healthy()
			e.adopts("a:b:c:before")
			n := e.gapsSeen()
			c.fault(t, server, rdb, proxy)
			e.gapAfter(n)
			e.adopts("a:b:c:after")
		})
	}
}

// via returns a client whose connections go through a proxy.
func via(t testing.TB, proxy *testenv.Proxy) *redis.Client {
	t.Helper()
	through := redis.NewClient(&redis.Options{Addr: proxy.Addr(), ReadTimeout: time.Second, DialTimeout: time.Second})
	t.Cleanup(func() { _ = through.Close() })
	return through
}

// As long as a black hole lasts nobody may think that events flow, and what it
// held back may never come.
func TestNoticesABlackHole(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	proxy := testenv.NewProxy(t, server.Addr())
	rdb := server.Client()
	e := listen(t, rdb, via(t, proxy), "*")
	e.healthy()
	n := e.gapsSeen()
	proxy.Blackhole()
	testenv.Eventually(t, bound, func() bool { return e.Healthy() != nil }, "the black hole to be noticed")
	proxy.Heal()
	e.gapAfter(n)
	e.adopts("a:b:c:after")
}

// Events that were lost for a moment, too short for a canary to count as lost, are a
// gap all the same.
func TestNoticesAMomentaryLoss(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	rdb := server.Client()
	e := listen(t, rdb, server.Client(), "*", func(l *listener.Listener) { l.CanaryTimeout = 100 * l.CanaryInterval })
	e.healthy()
	e.adopts("a:b:c:before")
	canaries := func() string {
		return infoField(rdb.Info(t.Context(), "commandstats").Val(), "cmdstat_set:")
	}
	// Of a class of events alone, or of all.
	for _, flags := range []string{"", "KEg$e", "KExge", "KEx$e"} {
		n := e.gapsSeen()
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
		e.gapAfter(n)
	}
}

// infoField returns the rest of the line of an INFO reply that begins with name.
func infoField(info, name string) string {
	_, rest, _ := strings.Cut(info, name)
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}
