package admin_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// timerWorld is a Redis with the function library and no timerd.
type timerWorld struct {
	*admin.Timers
	t        *testing.T
	rdb      redis.UniversalClient
	schedule *schedule.Schedule
	client   *client.Timers
}

func newTimerWorld(t *testing.T, rdb redis.UniversalClient) *timerWorld {
	t.Helper()
	s := schedule.New(rdb, schedule.DefaultMaxPayload)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := client.New(rdb)
	return &timerWorld{Timers: admin.NewTimers(s), t: t, rdb: rdb, schedule: s, client: c}
}

// set sets n timers of an app, and returns when the last one is due.
func (w *timerWorld) set(app string, n int, in time.Duration) time.Time {
	w.t.Helper()
	var settings []client.Setting
	for i := range n {
		settings = append(settings, client.Setting{
			Key: fmt.Sprintf("%s:m:t:%d", app, i), Payload: []byte("p"),
			When: client.After(in + time.Duration(i)*time.Millisecond),
		})
	}
	results, err := w.client.SetMany(w.t.Context(), settings)
	if err != nil {
		w.t.Fatal(err)
	}
	return results[n-1].Due
}

// await waits until Redis's clock is past a time.
func (w *timerWorld) await(at time.Time) {
	w.t.Helper()
	testenv.Eventually(w.t, time.Minute, func() bool {
		now, err := w.rdb.Time(w.t.Context()).Result()
		return err == nil && now.After(at.Add(time.Millisecond))
	}, "the clock to pass")
}

// left returns how many timers of an app there are.
func (w *timerWorld) left(app string) (n int64) {
	w.t.Helper()
	found, err := w.Count(w.t.Context(), of(app), func(admin.TimerCount) {})
	if err != nil {
		w.t.Fatal(err)
	}
	return found.Timers
}

func of(app string) admin.Selection {
	return admin.Selection{Query: query.Query{Namespace: keys.Namespace{App: app}}}
}

func ignore(admin.Cancelled) {}

// Timers in each state are counted, and those cancelled that nobody has claimed; those of others stay.
func TestCountAndCancel(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	ctx := t.Context()
	w.await(w.set("shop", 5, time.Millisecond))
	nodes, err := w.schedule.Nodes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	claimed := nodes[0].Claim(ctx, []schedule.ClaimRequest{{Partition: keys.Single}}, time.Hour)[0]
	if claimed.Err != nil || len(claimed.Firings) != 5 {
		t.Fatalf("%+v", claimed)
	}
	w.await(w.set("shop", 3, time.Millisecond)) // owed, beside firing ones
	w.set("shop", 2, time.Hour)                 // and the owed ones of these make room
	last := w.set("shop2", 1, time.Hour)
	key, err := keys.Parse("shop:m:t:0")
	if err != nil {
		t.Fatal(err)
	}
	retry := schedule.Retry{EventID: "e", Key: key, Due: schedule.MillisOf(last.Add(time.Hour)), Attempt: 2}
	if _, set, err := w.schedule.Retry(ctx, retry); err != nil || !set {
		t.Fatal(set, err)
	}

	found, err := w.Count(ctx, of("shop"), func(admin.TimerCount) {})
	counted := of("shop")
	counted.Before = retry.Due.Add(time.Millisecond).Time()
	if want := (admin.TimerCount{Timers: 11, Late: 8, Last: retry.Due.Time(), Looked: 12, Total: 12,
		Counted: counted}); err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%+v, %v; want %+v", found, err, want)
	}
	early := of("shop")
	early.Before = last.Add(time.Minute)
	if found, err := w.Count(ctx, early, func(admin.TimerCount) {}); err != nil || found.Timers != 10 ||
		found.Late != 8 || !found.Counted.Before.Before(last.Add(2*time.Second)) {
		t.Errorf("before the retry: %+v, %v", found, err)
	}
	done, err := w.Cancel(ctx, early, ignore)
	if err != nil || done.Cancelled != 5 || done.TooLate != 5 || done.Gone != 0 || done.Cut {
		t.Errorf("%+v, %v; want 5 cancelled and 5 too late", done, err)
	}
	done, err = w.Cancel(ctx, of("shop"), ignore)
	if err != nil || done.Cancelled != 1 || done.TooLate != 5 || !done.Until.Equal(retry.Due.Time()) {
		t.Errorf("%+v, %v; want the retry cancelled", done, err)
	}
	if n := w.left("shop2"); n != 1 {
		t.Errorf("%d timers of the other app are left", n)
	}
	if err := w.schedule.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, claimed.Firings...)); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Cancel(ctx, of("shop"), ignore); err != nil || done != (admin.Cancelled{}) {
		t.Errorf("again: %+v, %v", done, err)
	}
	if n := w.rdb.Exists(ctx, "shop:m:t:0", "shop:m:t:1", "shop2:m:t:0").Val(); n != 1 {
		t.Errorf("%d keys are there, want the other app's", n)
	}
}

// An interruption ends it between two batches, and the counts are true. Called again it goes on.
func TestCancelIsInterrupted(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	const n = 1200
	last := w.set("shop", n, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	batches := 0
	done, err := w.Cancel(ctx, of("shop"), func(admin.Cancelled) {
		if batches++; batches == 3 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || done.Cancelled == 0 || done.Cancelled != n-w.left("shop") ||
		!done.Until.Before(last) {
		t.Errorf("%+v, %v; %d are left", done, err, w.left("shop"))
	}
	rest, err := w.Cancel(t.Context(), of("shop"), ignore)
	if err != nil || rest.Cancelled != n-done.Cancelled || !rest.Until.Equal(last) {
		t.Errorf("%+v, %v; want the rest", rest, err)
	}
}

// Without the library nothing is cancelled, and the error has the reason.
func TestCancelWithoutTheLibrary(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	w.set("shop", 300, time.Hour)
	if err := w.rdb.FunctionFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Cancel(t.Context(), of("shop"), ignore); !errors.Is(err, client.ErrNoLibrary) ||
		done != (admin.Cancelled{}) {
		t.Errorf("%+v, %v", done, err)
	}
	if n := w.left("shop"); n != 300 {
		t.Errorf("%d timers are left", n)
	}
}

// owe has n timers be owed, of all the keys in turn.
func (w *timerWorld) owe(n int, names ...string) {
	w.t.Helper()
	const some = 1500
	for first := 0; first < n; first += some {
		var firings, owed []redis.Z
		var records []any
		for i := first; i < min(first+some, n); i++ {
			due, key := int64(1763629200000+i), names[i%len(names)]
			ref := fmt.Sprintf("%d::%s", due, key)
			firings = append(firings, redis.Z{Member: ref})
			owed = append(owed, redis.Z{Member: fmt.Sprintf("%d:%s:%d:", len(key), key, due)})
			records = append(records, ref, ":p")
		}
		ctx := w.t.Context()
		_, err := w.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.ZAdd(ctx, keys.Single.Firing(), firings...)
			pipe.ZAdd(ctx, keys.Single.Owed(), owed...)
			pipe.HSet(ctx, keys.Single.FiringData(), records...)
			return nil
		})
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// names returns n keys of an app.
func names(app string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s:m:t:%d", app, i))
	}
	return all
}

// More timers may be owed than one search looks at.
func TestCancelAtScale(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	ctx := t.Context()
	const n = 100_500 // over the limit of a listing
	w.owe(n, names("shop", n)...)
	found, err := w.Count(ctx, of("shop"), func(admin.TimerCount) {})
	if err != nil || !found.Cut || found.Timers >= n {
		t.Errorf("%+v, %v; want some of %d counted", found, err, n)
	}
	done, err := w.Cancel(ctx, found.Counted, ignore)
	if err != nil || done.Cancelled != n || done.Cut {
		t.Errorf("%+v, %v; want %d cancelled", done, err, n)
	}
}

// roundTrips calls seen with the keys that are cancelled in one round trip, before they are.
type roundTrips struct{ seen func(names []string) }

func (roundTrips) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (r roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var some []string
		for _, c := range cmds {
			if args := c.Args(); len(args) > 3 && args[1] == "timer_cancel" {
				some = append(some, fmt.Sprint(args[3]))
			}
		}
		if len(some) > 0 {
			r.seen(some)
		}
		return next(ctx, cmds)
	}
}

// Redis runs all of a round trip at a stretch: so keys that take long have one of their own.
func TestCancelOfKeysWithManyTimers(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	w := newTimerWorld(t, server.Client())
	ctx := t.Context()
	const crowds, each = 3, 400 // one call cancels 300
	w.owe(crowds*each, names("crowd", crowds)...)
	w.set("shop", 100, time.Hour)
	observer := schedule.New(server.Client(), schedule.DefaultMaxPayload)
	largest := 0
	w.rdb.AddHook(roundTrips{func(names []string) {
		crowded, err := query.Crowded(ctx, observer, names)
		if err != nil || len(names) > 1 && slices.Contains(crowded, true) {
			t.Errorf("%d keys were cancelled in one round trip, among them crowded ones; %v", len(names), err)
		}
		largest = max(largest, len(names))
	}})
	done, err := w.Cancel(ctx, admin.Selection{Query: query.Query{}}, ignore)
	if n := w.left("shop") + w.left("crowd"); err != nil || n != 0 {
		t.Errorf("%+v, %v; %d are left", done, err, n)
	}
	if largest < 32 {
		t.Errorf("at most %d keys were cancelled in one round trip, want more of those with one timer", largest)
	}
}

// In a cluster, timers of all nodes are cancelled.
func TestCancelInACluster(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Cluster(t, 3, false).Client())
	w.set("shop", 500, time.Hour)
	w.set("pay", 20, time.Hour)
	done, err := w.Cancel(t.Context(), of("shop"), ignore)
	if err != nil || done.Cancelled != 500 {
		t.Errorf("%+v, %v", done, err)
	}
	if n := w.left("pay"); n != 20 {
		t.Errorf("%d timers of the other app are left", n)
	}
}

// A selection by prefix, state and due range is counted and cancelled, and nothing else of the same keys.
func TestCancelByQuery(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	ctx := t.Context()
	w.set("shop", 200, time.Hour)
	w.set("pay", 10, time.Hour)
	key, err := keys.Parse("shop:m:t:1")
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(2 * time.Hour)
	retry := schedule.Retry{EventID: "e", Key: key, Due: schedule.MillisOf(later), Attempt: 2}
	if _, set, err := w.schedule.Retry(ctx, retry); err != nil || !set {
		t.Fatal(set, err)
	}
	for _, c := range []struct {
		q    query.Query
		want int64
		left int64 // of shop
	}{
		{query.Query{Prefix: "shop:m:t:1", States: []query.State{query.StateHeld}}, 0, 201},
		{query.Query{Prefix: "shop:m:t:1", From: later.Add(-time.Minute)}, 1, 200}, // the retry, and not the key's own
		{query.Query{Prefix: "shop:m:t:1", Before: later}, 111, 89},
		{query.Query{Namespace: keys.Namespace{App: "shop"}, ID: "99", States: []query.State{query.StatePending}}, 1,
			88},
	} {
		found, err := w.Count(ctx, admin.Selection{Query: c.q}, func(admin.TimerCount) {})
		if err != nil || found.Timers != c.want {
			t.Fatalf("%+v: %+v, %v; want %d", c.q, found, err, c.want)
		}
		done, err := w.Cancel(ctx, found.Counted, ignore)
		if left := w.left("shop"); err != nil || done.Cancelled != c.want || left != c.left || w.left("pay") != 10 {
			t.Errorf("%+v: %+v, %v, %d are left; want %d and %d", c.q, done, err, left, c.want, c.left)
		}
	}
}
