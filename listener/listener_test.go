package listener_test

import (
	"context"
	"fmt"
	"slices"
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

const bound = time.Minute

// recorder is a running listener and what it reported.
type recorder struct {
	*listener.Listener
	t   testing.TB
	rdb *redis.Client // of the test

	mu       sync.Mutex
	gaps     []string
	wakes    []schedule.Millis
	node     *schedule.Node
	complete []bool
	refused  []string
	observed schedule.Observed
	beyond   []bool
	audited  chan struct{}
	asked    map[string]int // how many hints of each key were handed to the schedule
	setUp    []string       // what a session did before it read messages
}

// The recorder is the Coverage of its listener.
func (r *recorder) Gap(reason string)        { r.note(func() { r.gaps = append(r.gaps, reason) }) }
func (r *recorder) SetComplete(c bool)       { r.note(func() { r.complete = append(r.complete, c) }) }
func (r *recorder) SetBeyond(b bool)         { r.note(func() { r.beyond = append(r.beyond, b) }) }
func (r *recorder) Audited() <-chan struct{} { return r.audited }

// askedNode is a node that notes what it is asked about.
type askedNode struct {
	*schedule.Node
	r *recorder
}

func (n askedNode) Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error) {
	n.r.note(func() {
		for _, h := range hints {
			n.r.asked[h.Key]++
		}
	})
	return n.Node.Observe(ctx, hints, heard)
}

func (n askedNode) Apps(ctx context.Context) ([]string, error) {
	n.r.note(func() { n.r.setUp = append(n.r.setUp, "apps") })
	return n.Node.Apps(ctx)
}

func (n askedNode) StartHearing(ctx context.Context) error {
	n.r.note(func() { n.r.setUp = append(n.r.setUp, "hearing") })
	return n.Node.StartHearing(ctx)
}

// listen starts a listener that uses the client conn, on the server of rdb. It is patient, because whoever subscribes again
// misses something.
func listen(t testing.TB, rdb, conn *redis.Client, namespaces string, configure ...func(*listener.Listener)) *recorder {
	t.Helper()
	return listenTo(t, schedule.New(rdb, schedule.DefaultMaxPayload), rdb, conn, namespaces, configure...)
}

// listenTo is listen for the first node of a schedule.
func listenTo(t testing.TB, s *schedule.Schedule, rdb, conn *redis.Client, namespaces string, configure ...func(*listener.Listener)) *recorder {
	t.Helper()
	set, err := keys.ParseNamespaces(namespaces)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{t: t, rdb: rdb, node: nodes[0], asked: map[string]int{}, audited: make(chan struct{})}
	r.Listener = listener.New(conn, askedNode{nodes[0], r}, r, 0, set, fmt.Sprintf("test%p", r))
	r.CanaryInterval, r.CanaryTimeout = time.Second, 20*time.Second
	r.OnWake = func(_ keys.Partition, due schedule.Millis) { r.note(func() { r.wakes = append(r.wakes, due) }) }
	r.OnRefused = func(key string, _ error) { r.note(func() { r.refused = append(r.refused, key) }) }
	r.OnObserved = func(o schedule.Observed) { r.note(func() { r.observed.Add(o) }) }
	for _, c := range configure {
		c(r.Listener)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

func (r *recorder) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// eventually waits for a condition on what was reported.
func (r *recorder) eventually(what string, cond func() bool) {
	r.t.Helper()
	testenv.Eventually(r.t, bound, func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if cond() {
			return nil
		}
		return fmt.Errorf("gaps %q, wakes %v, complete %v, refused %.80q, observed %+v", r.gaps, r.wakes, r.complete, r.refused, r.observed)
	}, what)
}

func (r *recorder) healthy() {
	r.t.Helper()
	testenv.Eventually(r.t, bound, r.Healthy, "events to flow")
}

// gapsSeen returns how many gaps were reported.
func (r *recorder) gapsSeen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.gaps)
}

// gapAfter waits for a gap beyond the first n, and for events to flow again.
func (r *recorder) gapAfter(n int) {
	r.t.Helper()
	r.eventually("a gap to be noticed", func() bool { return len(r.gaps) > n })
	r.healthy()
}

// adopts sets a timer and waits until the index has it. After a gap, in which an audit would find it, it sets it again.
func (r *recorder) adopts(key string) {
	r.t.Helper()
	gaps := -1
	testenv.Eventually(r.t, bound, func() error {
		if now := r.gapsSeen(); now != gaps {
			gaps = now
			if err := r.rdb.Set(r.t.Context(), key, "p", time.Hour).Err(); err != nil {
				return err
			}
		}
		return r.rdb.ZScore(r.t.Context(), keys.Single.Due(), key).Err()
	}, fmt.Sprintf("%q to be in the index", key))
}

// indexed waits until the index has a key, or has it no longer.
func (r *recorder) indexed(key string, want bool) {
	r.t.Helper()
	testenv.Eventually(r.t, bound, func() bool {
		err := r.rdb.ZScore(context.Background(), keys.Single.Due(), key).Err()
		return (err == nil) == want
	}, fmt.Sprintf("%q in the index to be %v", key, want))
}

func TestFollowsEvents(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "shop:order,pay")
	r.healthy()
	ctx := t.Context()

	r.adopts("shop:order:cancel:1")
	rdb.Persist(ctx, "shop:order:cancel:1")
	r.indexed("shop:order:cancel:1", false)
	r.adopts("pay:order:callback:1")

	// Not ours, though the pattern lets some of them through.
	for _, key := range []string{"shop:refund:cancel:1", "foreign:a:b:c", "shop:order", "payx:order:callback:1", "x:shop:order:cancel:1"} {
		rdb.Set(ctx, key, "", time.Hour)
	}
	r.adopts("shop:order:last:1")
	if n := rdb.ZCard(ctx, keys.Single.Due()).Val(); n != 2 {
		t.Errorf("%d timers in the index, want 2: %v", n, rdb.ZRange(ctx, keys.Single.Due(), 0, -1).Val())
	}
}

// While a session is set up, messages wait unread. Whoever took their events for heard would wait for them as long.
func TestHearsOnceMessagesAreRead(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "a")
	r.eventually("a subscription", func() bool { return len(r.gaps) > 0 })
	r.note(func() {
		if want := []string{"apps", "hearing"}; !slices.Equal(r.setUp[:2], want) {
			t.Errorf("set up by %q, want %q", r.setUp, want)
		}
	})
}

func TestNamespacesWithGlobCharacters(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "a[b]?%2A\\^-")
	r.healthy()
	r.adopts(`a[b]?*\^-:m:t:id`)
}

func TestEveryKindOfEvent(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "*")
	r.healthy()
	ctx := t.Context()
	const key = "a:b:c:d"

	rdb.HSet(ctx, key, "f", "1")
	rdb.Expire(ctx, key, time.Hour)
	r.indexed(key, true)
	rdb.HSet(ctx, key, "f", "2")
	testenv.Eventually(t, bound, func() bool {
		return rdb.HGet(ctx, keys.Single.Data(), key).Val() == `:{"f":"2"}`
	}, "the payload to follow the hash")
	rdb.Rename(ctx, key, key+"2")
	r.indexed(key, false)
	r.indexed(key+"2", true)
	rdb.Unlink(ctx, key+"2")
	r.indexed(key+"2", false)

	rdb.Set(ctx, key, "gone soon", time.Hour)
	r.indexed(key, true)
	rdb.PExpire(ctx, key, 20*time.Millisecond)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(ctx, key)
		return rdb.ZCard(ctx, keys.Single.Firing()).Val() == 1
	}, "the expired event to make it owed")
	r.eventually("the report of it", func() bool { return r.observed.Owed == 1 })
}

func TestWakesForTimersSetThroughTheLibrary(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "other")
	r.healthy()
	due, err := rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:d"}, "p", "PX", 60000).Int64()
	if err != nil {
		t.Fatal(err)
	}
	r.eventually("a wake-up", func() bool { return slices.Contains(r.wakes, schedule.Millis(due)) })
}

// timer_set accepts every key; its trigger key is followed like any other.
// What timer_set and claims do to keys themselves nobody asks Redis about, of several listeners too.
func TestOwnEventsAreNotAskedAbout(t *testing.T) {
	t.Parallel()
	const n, most = 300, 100 // a message may be cut off from the one that explains it, where the network cuts the stream: more often on a busy machine
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
		if i%10 == 0 {
			fired += claimAll(t, nodes[0])
		}
	}
	testenv.Eventually(t, bound, func() bool {
		fired += claimAll(t, nodes[0])
		return fired == n
	}, "all to fire")
	for i, r := range all {
		if err := rdb.Set(t.Context(), fmt.Sprint("a:b:c:last", i), "x", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		r.eventually("what came after them to be asked about", func() bool { return r.asked[fmt.Sprint("a:b:c:last", i)] > 0 })
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

// Nor about what timer_set does in a cluster, once a sweep has told the library where its timerds hear of that.
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
			if err := rdb.FCall(t.Context(), "timer_set", []string{fmt.Sprint("a:b:", name, ":", i)}, "x", "PX", 3600_000+i).Err(); err != nil {
				t.Fatal(err)
			}
		}
		last := fmt.Sprint("a:b:last:", name)
		if err := rdb.Set(t.Context(), last, "x", time.Minute).Err(); err != nil {
			t.Fatal(err)
		}
		r.eventually("what came after them to be asked about", func() bool { return r.asked[last] > 0 })
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
	if _, err := r.node.Sweep(t.Context(), schedule.Look{Within: time.Second, Lease: time.Second, Every: time.Hour}); err != nil {
		t.Fatal(err)
	}
	set("after")
	if before, after := asked("before"), asked("after"); before < n || after > n/3 {
		t.Errorf("handed over %d and %d hints of %d timers each, want one of each before, and none or nearly none after", before, after, n)
	}
}

// What is told of a key explains nothing of a key of the same name in another database of the server.
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
	if err := other.Do(ctx, "FCALL", "timer_set", 1, "a:b:c:other", "x", "EX", 3600).Err(); err != nil { // the app is known then
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

// claimAll claims what is due, and returns how much that was.
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

func TestTimersOutsideTheNamespaces(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	set := func(key string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 3_600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	r := listen(t, rdb, rdb, "ours")
	set("before:b:c:d")
	r.healthy()
	set("after:b:c:d")
	for _, app := range []string{"before", "after"} {
		rdb.Set(t.Context(), app+":b:c:plain", "not ours", time.Hour)
		testenv.Eventually(t, bound, func() bool {
			rdb.Expire(t.Context(), app+":b:c:d", 2*time.Hour)
			due := rdb.ZScore(t.Context(), keys.Single.Due(), app+":b:c:d").Val()
			return int64(due) > time.Now().Add(90*time.Minute).UnixMilli()
		}, "EXPIRE to be followed")
		rdb.Del(t.Context(), app+":b:c:d")
		r.indexed(app+":b:c:d", false)
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 0 {
		t.Errorf("%d timers, want none: keys outside the namespaces were adopted", n)
	}
}

// patterns waits until the server has so many patterns.
func (r *recorder) patterns(want int64) {
	r.t.Helper()
	testenv.Eventually(r.t, bound, func() error {
		if n := r.rdb.PubSubNumPat(r.t.Context()).Val(); n != want {
			return fmt.Errorf("%d patterns", n)
		}
		return nil
	}, fmt.Sprintf("%d patterns", want))
}

// Of many apps outside the namespaces, those known first are followed, and others once these are forgotten. Of all, the
// expired events count.
func TestFollowsFewAppsOutsideTheNamespaces(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	var logs testenv.Output
	r := listen(t, rdb, rdb, "ours", func(l *listener.Listener) { l.Logger = logs.Logger() })
	r.healthy()
	key := func(i int) string { return fmt.Sprintf("app%d:b:c:1", i) }
	set := func(i int, px int64) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key(i)}, "p", "PX", px).Err(); err != nil {
			t.Fatal(err)
		}
		now := rdb.Time(t.Context()).Val().UnixMilli() // so that the apps have an order
		testenv.Eventually(t, bound, func() bool { return rdb.Time(t.Context()).Val().UnixMilli() > now }, "the clock")
	}
	for i := range 40 {
		set(i, 3_600_000)
	}
	r.eventually("that there are apps beyond those that are followed", func() bool { return slices.Equal(r.beyond, []bool{true}) })
	r.patterns(16 + 1)
	rdb.Del(t.Context(), key(15), key(16))
	r.indexed(key(15), false)

	// The TTL is shortened, which nobody hears, but it runs out, which all hear.
	rdb.PExpire(t.Context(), key(39), 20*time.Millisecond)
	testenv.Eventually(t, bound, func() bool {
		rdb.Exists(t.Context(), key(39))
		return rdb.ZCard(t.Context(), keys.Single.Firing()).Val() == 1
	}, "the expired event to make it owed")
	if err := rdb.ZScore(t.Context(), keys.Single.Due(), key(16)).Err(); err != nil {
		t.Errorf("%s is not followed, but its deletion was noticed: %v", key(16), err)
	}

	// Some are forgotten: others get their places, and no longer counts what was not followed.
	for i := range 8 {
		rdb.ZRem(t.Context(), keys.Single.Known(), fmt.Sprint("app", i))
	}
	r.audited <- struct{}{}
	r.patterns(16 + 1)
	testenv.Eventually(t, bound, func() bool {
		rdb.Expire(t.Context(), key(23), 2*time.Hour)
		return int64(rdb.ZScore(t.Context(), keys.Single.Due(), key(23)).Val()) > time.Now().Add(90*time.Minute).UnixMilli()
	}, "app23 to be followed")
	for i := 8; i < 30; i++ {
		rdb.ZRem(t.Context(), keys.Single.Known(), fmt.Sprint("app", i))
	}
	r.audited <- struct{}{}
	r.patterns(10 + 1)
	r.eventually("that there are no apps beyond those that are followed", func() bool { return slices.Equal(r.beyond, []bool{true, false}) })
	set(3, 3_600_000)
	r.patterns(11 + 1)
	rdb.Del(t.Context(), key(3))
	r.indexed(key(3), false)
	if n := strings.Count(logs.String(), "than are followed"); n != 1 || r.gapsSeen() != 1 {
		t.Errorf("told %d times of apps that are not followed, %d gaps:\n%s", n, r.gapsSeen(), &logs)
	}
}

func TestRefusesLongKeys(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	r := listen(t, rdb, rdb, "a")
	r.healthy()
	for _, key := range []string{"a:b:c:" + strings.Repeat("d", 1200), "a:" + strings.Repeat("b", 129) + ":c:d", "other:" + strings.Repeat("b", 129) + ":c:d"} {
		rdb.Set(t.Context(), key, "p", time.Hour)
	}
	r.adopts("a:b:c:d")
	r.eventually("refusals", func() bool { return len(r.refused) >= 2 })
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, key := range r.refused {
		if !strings.HasPrefix(key, "a:b") {
			t.Errorf("refused %q", key)
		}
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 1 {
		t.Errorf("%d timers, want 1", n)
	}
}
