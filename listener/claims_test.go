package listener_test

import (
	"errors"
	"fmt"
	"maps"
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

// None of several listeners asks Redis about changes of keys by timer_set and claims.
func TestOwnEventsAreNotAskedAbout(t *testing.T) {
	t.Parallel()
	// The network may cut a message off from the one that explains it, more often on a busy machine.
	const n, most = 300, 100
	rdb := testenv.Redis(t).Client()
	all := []*recorder{
		listen(t, rdb, rdb, "a"),
		listen(t, rdb, rdb, "a", func(l *listener.Listener) { l.CanaryInterval = time.Hour }),
	}
	for _, r := range all {
		r.healthy()
	}
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fired := 0
	for i := range n {
		key := fmt.Sprint("a:b:c:", i)
		if err := rdb.Do(t.Context(), "FCALL", "timer_set", 1, key, "x", "PX", 1+i%20).Err(); err != nil {
			t.Fatal(err)
		}
		fired += claimAll(t, nodes[0]) // soon after each due time, as timerd claims
	}
	testenv.Eventually(t, bound, func() bool {
		fired += claimAll(t, nodes[0])
		return fired == n
	}, "all to fire")
	for i, r := range all {
		if err := rdb.Set(t.Context(), fmt.Sprint("a:b:c:last", i), "x", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		r.eventually("questions about later timers",
			func() bool { return r.asked[fmt.Sprint("a:b:c:last", i)] > 0 })
		asked := 0
		r.note(func() {
			for i := range n {
				asked += r.asked[fmt.Sprint("a:b:c:", i)]
			}
		})
		if asked > most {
			t.Errorf("listener %d handed over %d hints of %d timers, want none or nearly none", i, asked, n)
		}
	}
}

// In a cluster no listener asks about changes by timer_set once a sweep has told the library where its timerds listen.
func TestClusterSetsAreNotAskedAbout(t *testing.T) {
	t.Parallel()
	const n = 100
	cluster := testenv.Cluster(t, 1, false)
	rdb := cluster.Client()
	node := cluster.Nodes[0].Client()
	r := listenTo(t, schedule.New(rdb, schedule.DefaultMaxPayload), node, node, "a")
	r.healthy()
	set := func(name string) {
		t.Helper()
		for i := range n {
			if err := rdb.FCall(t.Context(), "timer_set", []string{fmt.Sprint("a:b:", name, ":", i)}, "x", "PX",
				3600_000+i).Err(); err != nil {
				t.Fatal(err)
			}
		}
		last := fmt.Sprint("a:b:last:", name)
		if err := rdb.Set(t.Context(), last, "x", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		r.eventually("questions about later timers", func() bool { return r.asked[last] > 0 })
	}
	asked := func(name string) (asked int) {
		r.note(func() {
			for i := range n {
				asked += r.asked[fmt.Sprint("a:b:", name, ":", i)]
			}
		})
		return asked
	}
	set("before")
	if _, err := r.node.Sweep(t.Context(),
		schedule.Look{Within: time.Second, Lease: time.Second, Every: time.Hour}); err != nil {
		t.Fatal(err)
	}
	set("after")
	if before, after := asked("before"), asked("after"); before < n || after > n/3 {
		t.Errorf("%d and %d hints of %d timers each, want one of each before, and hardly any after", before, after, n)
	}
}

// If several timerds hear a master of a cluster, they learn the next claim of each claimed partition: at a due time, at
// the end of a lease after a claim in full, or never.
func TestClusterClaimsSayWhatIsNext(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 1, false)
	rdb, server := cluster.Client(), cluster.Nodes[0].Client()
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	type next struct{ at, due schedule.Millis }
	var mu sync.Mutex
	told := make([]map[keys.Partition]next, 2)
	listens := func(i int) {
		t.Helper()
		told[i] = map[keys.Partition]next{}
		listenTo(t, s, server, server, "a", func(l *listener.Listener) {
			l.Busy = func() bool { return true } // events wait for claims, and nothing is claimed that they made owed
			l.Agenda = claims(func(p keys.Partition, at, due schedule.Millis) {
				mu.Lock()
				defer mu.Unlock()
				told[i][p] = next{at, due}
			})
		}).healthy()
	}
	listens(0)
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set := func(key, payload string, in time.Duration) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, payload, "PX",
			in.Milliseconds()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	claim := func(key string) (c schedule.ClaimResult) {
		t.Helper()
		testenv.Eventually(t, bound, func() error {
			c = nodes[0].Claim(t.Context(), []schedule.ClaimRequest{{Partition: s.Partition(key)}}, time.Minute)[0]
			if c.Err == nil && len(c.Firings) == 0 {
				return errors.New("nothing claimed")
			}
			return c.Err
		}, "the claim of "+key)
		return c
	}
	set("a:b:c:alone", "x", time.Millisecond)
	claim("a:b:c:alone")
	listens(1)
	want := map[keys.Partition]next{}
	for key, c := range map[string]struct {
		payload string
		another time.Duration
	}{"a:b:c:{1}": {"x", 0}, "a:b:c:{2}": {"x", time.Hour}, "a:b:c:{3}": {strings.Repeat("x", 20_000), time.Hour}} {
		if c.another > 0 {
			set(key+"another", "x", c.another)
		}
		set(key, c.payload, time.Millisecond)
		claimed := claim(key)
		want[s.Partition(key)] = next{schedule.MillisOf(claimed.At), claimed.Next}
		if full := len(c.payload) > 1; claimed.Full != full || (claimed.Next == schedule.Nothing) != (c.another == 0) {
			t.Errorf("%s: claimed in full: %t, next at %d", key, claimed.Full, claimed.Next)
		}
	}
	testenv.Eventually(t, bound, func() error {
		mu.Lock()
		defer mu.Unlock()
		if !maps.Equal(told[0], want) || !maps.Equal(told[1], want) {
			return fmt.Errorf("told %v; want %v alone", told, want)
		}
		return nil
	}, "both to be told")
}

// A claim of a key does not explain events of the same key in another database of the server.
func TestAnotherDatabaseExplainsNothing(t *testing.T) {
	t.Parallel()
	const key = "a:b:c:1"
	ctx := t.Context()
	server := testenv.Redis(t)
	rdb := server.Client()
	other := server.Client(func(o *redis.Options) { o.DB = 1 })
	s := schedule.New(other, schedule.DefaultMaxPayload)
	if _, err := s.Load(ctx); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := listen(t, rdb, rdb, "a", func(l *listener.Listener) {
		l.Busy = func() bool { return true }
	})
	r.healthy()
	// makes the app known
	if err := other.Do(ctx, "FCALL", "timer_set", 1, "a:b:c:other", "x", "EX", 3600).Err(); err != nil {
		t.Fatal(err)
	}

	pipe := rdb.TxPipeline()
	pipe.Do(ctx, "SET", key, "v", "EX", 60)
	pipe.Do(ctx, "SELECT", 1)
	pipe.Do(ctx, "FCALL", "timer_set", 1, key, "x", "PX", 1)
	pipe.Do(ctx, "SELECT", 0)
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	r.indexed(key, true)

	const short = "a:b:c:2"
	if err := other.Do(ctx, "FCALL", "timer_set", 1, short, "x", "PX", 1).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Set(ctx, short, "v", time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, bound, func() bool { return rdb.Exists(ctx, short).Val() == 0 }, "the key to run out")
	claimed := 0
	testenv.Eventually(t, bound, func() bool {
		claimed += claimAll(t, nodes[0])
		return claimed == 2
	}, "those of the other database to be claimed")
	r.eventually("the expired event to be asked about", func() bool { return r.asked[short] > 0 })
	testenv.Eventually(t, bound, func() bool {
		return rdb.ZCard(ctx, keys.Single.Firing()).Val()+rdb.ZCard(ctx, keys.Single.Due()).Val() == 2
	},
		"both timers to be in the schedule")
}

// claimAll claims all due timers, and returns their number.
func claimAll(t *testing.T, node *schedule.Node) (n int) {
	t.Helper()
	for {
		c := node.Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Minute)[0]
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		if n += len(c.Firings); len(c.Firings) == 0 {
			return n
		}
	}
}
