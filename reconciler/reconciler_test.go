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

const bound = 20 * time.Second

// outlet takes firings over and settles them. It can be shut.
type outlet struct {
	t        testing.TB
	schedule *schedule.Schedule

	mu    sync.Mutex
	shut  chan struct{} // closed when it opens; nil while it is open
	taken []schedule.Firing
}

func (o *outlet) Wait(ctx context.Context) error {
	o.mu.Lock()
	shut := o.shut
	o.mu.Unlock()
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

func (o *outlet) Publish(ctx context.Context, firings []schedule.Firing) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range firings {
		if f.ClaimedAt.UnixMilli() < f.Due {
			o.t.Errorf("%s fired at %d, before it was due at %d", f.Key, f.ClaimedAt.UnixMilli(), f.Due)
		}
	}
	o.taken = append(o.taken, firings...)
	return o.schedule.Settle(ctx, firings)
}

func (o *outlet) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shut = make(chan struct{})
}

func (o *outlet) open() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.shut)
	o.shut = nil
}

// fired returns "key trigger" of what was taken over, in order.
func (o *outlet) fired() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for _, f := range o.taken {
		out = append(out, fmt.Sprintf("%s %s", f.Key, f.Trigger))
	}
	return out
}

// awaits waits until these firings, in any order, were taken over.
func (o *outlet) awaits(want ...string) {
	o.t.Helper()
	slices.Sort(want)
	testenv.Eventually(o.t, bound, func() error {
		got := o.fired()
		slices.Sort(got)
		if slices.Equal(got, want) {
			return nil
		}
		return fmt.Errorf("fired %q, want %q", got, want)
	}, "firings")
}

type bench struct {
	t      testing.TB
	server *testenv.RedisServer
	rdb    *redis.Client
	outlet *outlet
}

func newBench(t testing.TB) *bench {
	t.Helper()
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	rdb := server.Client()
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, server: server, rdb: rdb, outlet: &outlet{t: t, schedule: s}}
}

// start runs a reconciler until stop is called or the test ends.
func (b *bench) start(instance string, configure ...func(*reconciler.Reconciler)) (r *reconciler.Reconciler, stop func()) {
	b.t.Helper()
	r = reconciler.New(b.outlet.schedule, b.outlet, b.rdb, keys.Namespaces{{}}, instance)
	r.SweepInterval = 100 * time.Millisecond
	for _, c := range configure {
		c(r)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	b.t.Cleanup(stop)
	return r, stop
}

// set sets a timer and returns when it is due.
func (b *bench) set(key string, delay time.Duration) int64 {
	b.t.Helper()
	due, err := b.rdb.FCall(b.t.Context(), "timer_set", []string{key}, "p", "PX", delay.Milliseconds()).Int64()
	if err != nil {
		b.t.Fatal(err)
	}
	return due
}

// past waits until the server's clock is past the given unix ms.
func (b *bench) past(ms int64) {
	b.t.Helper()
	testenv.Eventually(b.t, bound, func() bool { return b.rdb.Time(b.t.Context()).Val().UnixMilli() > ms }, "the time to pass")
}

func slowSweeps(r *reconciler.Reconciler) { r.SweepInterval = time.Hour }

func TestWakesAtTheDueTime(t *testing.T) {
	b := newBench(t)
	r, _ := b.start("a", slowSweeps)
	r.Wake(keys.Single, b.set("a:b:c:1", 400*time.Millisecond))
	r.Wake(keys.Single, b.set("a:b:c:2", 200*time.Millisecond))
	r.Wake(keys.Single, -1)
	b.outlet.awaits("a:b:c:1 deadline", "a:b:c:2 deadline")
	// The next one is known from the last claim.
	b.set("a:b:c:3", 100*time.Millisecond)
	r.Wake(keys.Single, 0)
	b.outlet.awaits("a:b:c:1 deadline", "a:b:c:2 deadline", "a:b:c:3 deadline")
}

func TestSweepsRecoverWhatNobodyAnnounced(t *testing.T) {
	b := newBench(t)
	b.past(b.set("a:b:c:downtime", 10*time.Millisecond))
	b.start("a")
	b.outlet.awaits("a:b:c:downtime sweep")
	b.set("a:b:c:silent", 10*time.Millisecond)
	b.outlet.awaits("a:b:c:downtime sweep", "a:b:c:silent sweep")
}

func TestClaimsNothingWhileItCannotPublish(t *testing.T) {
	b := newBench(t)
	b.outlet.close()
	r, _ := b.start("a")
	for i := range 5 {
		r.Wake(keys.Single, b.set(fmt.Sprintf("a:b:c:%d", i), 10*time.Millisecond))
	}
	b.past(b.set("a:b:c:last", 300*time.Millisecond))
	if n := b.rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 6 {
		t.Errorf("%d timers wait in due, want all 6", n)
	}
	b.outlet.open()
	testenv.Eventually(t, bound, func() bool { return len(b.outlet.fired()) == 6 }, "all to fire")
}

func TestDrainsASpikeInBatches(t *testing.T) {
	b := newBench(t)
	r, _ := b.start("a")
	const n = 20 * schedule.MaxClaim
	at := b.rdb.Time(t.Context()).Val().Add(time.Second).UnixMilli()
	_, err := b.rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("a:b:c:%d", i)}, "p", "PXAT", at)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Wake(keys.Single, at)
	testenv.Eventually(t, bound, func() bool { return len(b.outlet.fired()) >= n }, "all to fire")
	seen := map[string]bool{}
	for _, f := range b.outlet.fired() {
		seen[f] = true
	}
	if len(seen) != n || len(b.outlet.fired()) != n {
		t.Errorf("%d firings of %d timers, want %d once each", len(b.outlet.fired()), len(seen), n)
	}
}

func TestSeveralShareTheWork(t *testing.T) {
	b := newBench(t)
	a, stopA := b.start("a")
	c, _ := b.start("c")
	const n = 300
	for i := range n {
		due := b.set(fmt.Sprintf("a:b:c:%d", i), time.Duration(i)*3*time.Millisecond+time.Millisecond)
		a.Wake(keys.Single, due)
		c.Wake(keys.Single, due)
		if i == n/2 {
			stopA()
		}
	}
	testenv.Eventually(t, bound, func() bool { return len(b.outlet.fired()) >= n }, "all to fire")
	if got := len(b.outlet.fired()); got != n {
		t.Errorf("%d firings, want %d", got, n)
	}
}

func TestAuditsAdoptAndCancel(t *testing.T) {
	b := newBench(t)
	ctx := t.Context()
	for i := range 300 {
		b.rdb.Set(ctx, fmt.Sprintf("a:b:c:%d", i), "p", time.Hour)
	}
	b.rdb.Set(ctx, "a:b:c:persistent", "p", 0)
	b.rdb.Set(ctx, "a:b:foreign", "p", time.Hour)
	audits := make(chan schedule.Observed, 100)
	r, _ := b.start("a", func(r *reconciler.Reconciler) {
		r.OnAudit = func(_ string, seen schedule.Observed, _ time.Duration) { audits <- seen }
	})
	if seen := <-audits; seen.Adopted != 300 {
		t.Errorf("first audit: %+v, want 300 adopted", seen)
	}
	b.rdb.Del(ctx, "a:b:c:7")
	b.rdb.Expire(ctx, "a:b:c:8", 2*time.Hour)
	b.rdb.Persist(ctx, "a:b:c:9")
	b.rdb.Set(ctx, "a:b:c:new", "p", 300*time.Millisecond)
	r.Gap("test")
	if seen := <-audits; seen.Adopted != 1 || seen.Cancelled != 2 || seen.Rescheduled != 1 {
		t.Errorf("second audit: %+v, want 1 adopted, 2 cancelled, 1 rescheduled", seen)
	}
	// What an audit adopts is waited for.
	b.outlet.awaits("a:b:c:new deadline")
}

func TestAuditsReplaceMissingEvents(t *testing.T) {
	b := newBench(t)
	r, _ := b.start("a")
	r.SetComplete(false)
	for i := range 3 {
		b.rdb.Set(t.Context(), fmt.Sprintf("a:b:c:%d", i), "p", 700*time.Millisecond)
	}
	b.outlet.awaits("a:b:c:0 deadline", "a:b:c:1 deadline", "a:b:c:2 deadline")
}

func TestGoesOnAfterRedisWasAway(t *testing.T) {
	b := newBench(t)
	r, _ := b.start("a")
	r.Wake(keys.Single, b.set("a:b:c:1", 10*time.Millisecond))
	b.outlet.awaits("a:b:c:1 deadline")
	r.Wake(keys.Single, b.set("a:b:c:2", 300*time.Millisecond))
	b.server.Kill()
	b.server.Start()
	testenv.Eventually(t, bound, func() bool { return len(b.outlet.fired()) == 2 }, "the second to fire")
	b.rdb.FunctionFlush(t.Context())
	testenv.Eventually(t, bound, func() bool {
		return b.rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:3"}, "p", "PX", 1).Err() == nil
	}, "the library to be loaded again")
	testenv.Eventually(t, bound, func() bool { return len(b.outlet.fired()) == 3 }, "the third to fire")
}
