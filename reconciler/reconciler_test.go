package reconciler_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/reconciler"
	"github.com/timerd-io/timerd/schedule"
)

const bound = time.Minute

// settlingPublisher takes firings over and settles them without publishing anything. It can be shut.
type settlingPublisher struct {
	t        testing.TB
	schedule *schedule.Schedule

	mu    sync.Mutex
	shut  chan struct{} // closed when it opens; nil while it is open
	taken []schedule.Firing
}

func (p *settlingPublisher) Wait(ctx context.Context, _ string) error {
	p.mu.Lock()
	shut := p.shut
	p.mu.Unlock()
	if shut == nil {
		return nil
	}
	select {
	case <-shut:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *settlingPublisher) Publish(ctx context.Context, firings []schedule.Firing) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range firings {
		if schedule.MillisOf(f.ClaimedAt) < f.Due {
			p.t.Errorf("%s fired at %d, before it was due at %d", f.Key, f.ClaimedAt.UnixMilli(), f.Due)
		}
	}
	p.taken = append(p.taken, firings...)
	return p.schedule.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, firings...))
}

func (p *settlingPublisher) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shut = make(chan struct{})
}

func (p *settlingPublisher) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.shut)
	p.shut = nil
}

// fired returns "key trigger" of the firings, in order.
func (p *settlingPublisher) fired() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, f := range p.taken {
		out = append(out, fmt.Sprintf("%s %s", f.Key, f.Trigger))
	}
	return out
}

// awaits waits until these firings, in any order, were taken over.
func (p *settlingPublisher) awaits(want ...string) {
	p.t.Helper()
	slices.Sort(want)
	testenv.Eventually(p.t, bound, func() error {
		got := p.fired()
		slices.Sort(got)
		if slices.Equal(got, want) {
			return nil
		}
		return fmt.Errorf("fired %q, want %q", got, want)
	}, "firings")
}

// fixture is a schedule on a Redis of its own and a publisher without NATS.
type fixture struct {
	t         testing.TB
	server    *testenv.RedisServer
	rdb       *redis.Client
	node      *schedule.Node
	publisher *settlingPublisher
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	server := testenv.Redis(t)
	rdb := server.Client()
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nodes[0].StopHearing() // no listener runs
	return &fixture{t: t, server: server, rdb: rdb, node: nodes[0], publisher: &settlingPublisher{t: t, schedule: s}}
}

// start runs a reconciler until stop is called or the test ends.
func (f *fixture) start(instance string, configure ...func(*reconciler.Reconciler)) (r *reconciler.Reconciler,
	stop func()) {
	f.t.Helper()
	r = reconciler.New(f.node, f.publisher, keys.Namespaces{{}}, instance)
	r.SweepInterval = 100 * time.Millisecond
	for _, c := range configure {
		c(r)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	f.t.Cleanup(stop)
	return r, stop
}

// set sets a timer and returns its due time.
func (f *fixture) set(key string, delay time.Duration) schedule.Millis {
	f.t.Helper()
	due, err := f.rdb.FCall(f.t.Context(), "timer_set", []string{key}, "p", "PX", delay.Milliseconds()).Int64()
	if err != nil {
		f.t.Fatal(err)
	}
	return schedule.Millis(due)
}

// past waits until the server's clock is past a time.
func (f *fixture) past(at schedule.Millis) {
	f.t.Helper()
	testenv.Eventually(f.t, bound, func() bool { return schedule.MillisOf(f.rdb.Time(f.t.Context()).Val()) > at },
		"the time to pass")
}

func slowSweeps(r *reconciler.Reconciler) { r.SweepInterval = time.Hour }

func TestWakesAtTheDueTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.start("a", slowSweeps)
	r.Wake(keys.Single, f.set("a:b:c:1", 400*time.Millisecond))
	r.Wake(keys.Single, f.set("a:b:c:2", 200*time.Millisecond))
	r.Wake(keys.Single, -1)
	f.publisher.awaits("a:b:c:1 deadline", "a:b:c:2 deadline")
	// The next one is known from the last claim.
	f.set("a:b:c:3", 100*time.Millisecond)
	r.Wake(keys.Single, 0)
	f.publisher.awaits("a:b:c:1 deadline", "a:b:c:2 deadline", "a:b:c:3 deadline")
}

func TestSweepsRecoverWhatNobodyAnnounced(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.past(f.set("a:b:c:downtime", 10*time.Millisecond))
	f.start("a")
	f.publisher.awaits("a:b:c:downtime sweep")
	f.set("a:b:c:silent", time.Millisecond) // if a sweep sees it before it is due, it fires by the clock
	f.publisher.awaits("a:b:c:downtime sweep", "a:b:c:silent sweep")
}

func TestClaimsNothingWhileItCannotPublish(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.publisher.close()
	r, _ := f.start("a")
	for i := range 5 {
		r.Wake(keys.Single, f.set(fmt.Sprintf("a:b:c:%d", i), 10*time.Millisecond))
	}
	f.past(f.set("a:b:c:last", 300*time.Millisecond))
	if n := f.rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 6 {
		t.Errorf("%d timers wait in due, want all 6", n)
	}
	f.publisher.open()
	testenv.Eventually(t, bound, func() bool { return len(f.publisher.fired()) == 6 }, "all to fire")
}

func TestDrainsASpikeInBatches(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.start("a")
	const n = 20 * schedule.MaxClaim
	f.publisher.close() // until all are due
	_, err := f.rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("a:b:c:%d", i)}, "p", "PX", 1)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f.past(f.set("a:b:c:last", time.Millisecond))
	r.Wake(keys.Single, 0)
	f.publisher.open()
	testenv.Eventually(t, bound, func() bool { return len(f.publisher.fired()) >= n+1 }, "all to fire")
	seen := map[string]bool{}
	for _, f := range f.publisher.fired() {
		seen[f] = true
	}
	if len(seen) != n+1 || len(f.publisher.fired()) != n+1 {
		t.Errorf("%d firings of %d timers, want %d once each", len(f.publisher.fired()), len(seen), n+1)
	}
}

func TestSeveralShareTheWork(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, stopA := f.start("a")
	c, _ := f.start("c")
	const n = 300
	for i := range n {
		due := f.set(fmt.Sprintf("a:b:c:%d", i), time.Duration(i)*3*time.Millisecond+time.Millisecond)
		a.Wake(keys.Single, due)
		c.Wake(keys.Single, due)
		if i == n/2 {
			stopA()
		}
	}
	testenv.Eventually(t, bound, func() bool { return len(f.publisher.fired()) >= n }, "all to fire")
	if got := len(f.publisher.fired()); got != n {
		t.Errorf("%d firings, want %d", got, n)
	}
}

// audited is a Metrics that hands each audit to a function.
type audited struct {
	reconciler.Metrics // for all else
	then               func(reason string, seen schedule.Observed)
}

func (a audited) Audited(reason string, seen schedule.Observed, _ time.Duration) {
	a.then(reason, seen)
}

func TestAuditsAdoptAndCancel(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	for i := range 300 {
		f.rdb.Set(ctx, fmt.Sprintf("a:b:c:%d", i), "p", time.Hour)
	}
	f.rdb.Set(ctx, "a:b:c:persistent", "p", 0)
	f.rdb.Set(ctx, "a:b:foreign", "p", time.Hour)
	audits := make(chan schedule.Observed, 100)
	r, _ := f.start("a", func(r *reconciler.Reconciler) {
		r.Metrics = audited{Metrics: r.Metrics, then: func(_ string, seen schedule.Observed) { audits <- seen }}
	})
	if seen := <-audits; seen.Adopted != 300 {
		t.Errorf("first audit: %+v, want 300 adopted", seen)
	}
	f.rdb.Del(ctx, "a:b:c:7")
	f.rdb.Expire(ctx, "a:b:c:8", 2*time.Hour)
	f.rdb.Persist(ctx, "a:b:c:9")
	f.rdb.Set(ctx, "a:b:c:new", "p", 3*time.Second)
	r.Coverage.Gap("test")
	if seen := <-audits; seen.Adopted != 1 || seen.Cancelled != 2 || seen.Rescheduled != 1 {
		t.Errorf("second audit: %+v, want 1 adopted, 2 cancelled, 1 rescheduled", seen)
	}
	// The reconciler waits for adopted timers.
	f.publisher.awaits("a:b:c:new deadline")
}

// While some keys are not followed, audits read the timers, not the keys, and forget apps without timers.
func TestAuditsOfTimersWhoseKeysAreNotFollowed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	ctx := t.Context()
	type audit struct {
		reason string
		seen   schedule.Observed
	}
	audits := make(chan audit, 100)
	r, _ := f.start("a", func(r *reconciler.Reconciler) {
		r.Metrics = audited{Metrics: r.Metrics,
			then: func(reason string, seen schedule.Observed) { audits <- audit{reason, seen} }}
	})
	if a := <-audits; a.reason != "start" {
		t.Errorf("first audit: %+v", a)
	}
	f.set("a:b:c:deleted", time.Hour)
	f.set("a:b:c:extended", time.Hour)
	f.rdb.Del(ctx, "a:b:c:deleted")
	f.rdb.Expire(ctx, "a:b:c:extended", 2*time.Hour)
	f.rdb.Set(ctx, "a:b:c:plain", "p", time.Hour)
	r.Coverage.SetBeyond(true)
	if a := <-audits; a.reason != "keys not followed" || a.seen.Cancelled != 1 || a.seen.Rescheduled != 1 ||
		a.seen.Adopted != 0 {
		t.Errorf("audit of the timers: %+v", a)
	}
	r.Coverage.Gap("test")
	if a := <-audits; a.reason != "test" || a.seen.Adopted != 1 {
		t.Errorf("audit of everything: %+v", a)
	}
	f.rdb.Del(ctx, "a:b:c:extended", "a:b:c:plain")
	r.Coverage.Gap("test") // cancels both
	<-audits
	testenv.Eventually(t, bound, func() bool { return f.rdb.Exists(ctx, keys.Single.Known()).Val() == 0 },
		"the app to be forgotten")
}

func TestAuditsReplaceMissingEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.start("a")
	r.Coverage.SetComplete(false)
	for i := range 3 {
		f.rdb.Set(t.Context(), fmt.Sprintf("a:b:c:%d", i), "p", 8*time.Second) // an audit may be that late
	}
	f.publisher.awaits("a:b:c:0 deadline", "a:b:c:1 deadline", "a:b:c:2 deadline")
}

func TestGoesOnAfterRedisWasAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r, _ := f.start("a")
	r.Wake(keys.Single, f.set("a:b:c:1", 10*time.Millisecond))
	f.publisher.awaits("a:b:c:1 deadline")
	r.Wake(keys.Single, f.set("a:b:c:2", 300*time.Millisecond))
	f.server.Kill()
	f.server.Start()
	testenv.Eventually(t, bound, func() bool { return len(f.publisher.fired()) == 2 }, "the second to fire")
	f.rdb.FunctionFlush(t.Context())
	testenv.Eventually(t, bound, func() bool {
		return f.rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:3"}, "p", "PX", 1).Err() == nil
	}, "the library to be loaded again")
	testenv.Eventually(t, bound, func() bool { return len(f.publisher.fired()) == 3 }, "the third to fire")
}

// gapped is a node that misses events during the first audit of its index.
type gapped struct {
	*schedule.Node
	once sync.Once
	miss func()
}

func (g *gapped) ScanDue(ctx context.Context, within, lease time.Duration) (schedule.DueScan, error) {
	found, err := g.Node.ScanDue(ctx, within, lease)
	g.once.Do(g.miss)
	return found, err
}

// An audit adopts the keys of a gap noted meanwhile before it ends, as they may be short-lived. Another audit follows.
func TestGapsDuringAnAudit(t *testing.T) {
	t.Parallel()
	x := newFixture(t)
	const later, missed = "a:b:c:later", "a:b:c:missed"
	if err := x.rdb.FCall(t.Context(), "timer_set", []string{later}, "p", "PX", 3600_000).Err(); err != nil {
		t.Fatal(err)
	}
	node := &gapped{Node: x.node}
	namespaces, err := keys.ParseNamespaces("*")
	if err != nil {
		t.Fatal(err)
	}
	rec := reconciler.New(node, x.publisher, namespaces, "test")
	node.miss = func() {
		if err := x.rdb.Set(t.Context(), missed, "p", time.Hour).Err(); err != nil {
			t.Error(err)
		}
		rec.Coverage.Gap("missed")
	}
	var mu sync.Mutex
	var audits []string
	rec.Metrics = audited{Metrics: rec.Metrics, then: func(reason string, seen schedule.Observed) {
		mu.Lock()
		defer mu.Unlock()
		audits = append(audits, fmt.Sprint(reason, " ", seen.Adopted))
	}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		rec.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	testenv.Eventually(t, bound, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(audits) < 2 {
			return fmt.Errorf("audits %q", audits)
		}
		return nil
	}, "two audits")
	mu.Lock()
	defer mu.Unlock()
	if want := []string{"start 1", "missed 0"}; !slices.Equal(audits[:2], want) {
		t.Errorf("audits %q, want %q", audits, want)
	}
}
