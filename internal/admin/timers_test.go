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
			Key: fmt.Sprintf("%s:m:t:%d", app, i), Payload: []byte("p"), When: client.After(in + time.Duration(i)*time.Millisecond),
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
	w.await(w.set("shop", 3, time.Millisecond)) // owed, beside those that are firing
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
	if want := (admin.TimerCount{Timers: 11, Late: 8, Last: retry.Due.Time(), Looked: 12, Total: 12, Counted: counted}); err != nil || !reflect.DeepEqual(found, want) {
		t.Errorf("%+v, %v; want %+v", found, err, want)
	}
	early := of("shop")
	early.Before = last.Add(time.Minute)
	if found, err := w.Count(ctx, early, func(admin.TimerCount) {}); err != nil || found.Timers != 10 || found.Late != 8 || !found.Counted.Before.Before(last.Add(2*time.Second)) {
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
	if err := w.schedule.Settle(ctx, claimed.Firings); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Cancel(ctx, of("shop"), ignore); err != nil || done != (admin.Cancelled{}) {
		t.Errorf("again: %+v, %v", done, err)
	}
	if n := w.rdb.Exists(ctx, "shop:m:t:0", "shop:m:t:1", "shop2:m:t:0").Val(); n != 1 {
		t.Errorf("%d keys are there, want the other app's", n)
	}
}

// What is set while others are cancelled stays if it is due later than what is wanted.
func TestCancelWhileTimersAreSet(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	const n = 1200
	sel := of("shop")
	sel.Before = w.set("shop", n, time.Hour).Add(time.Millisecond)
	batches := 0
	done, err := w.Cancel(t.Context(), sel, func(admin.Cancelled) {
		if batches++; batches == 2 {
			w.set("shop", n, 2*time.Hour) // those that are cancelled, and those that are found or not found yet
			w.set("new", 1, time.Minute)
		}
	})
	if err != nil || done.Cancelled == 0 || done.Cancelled > n/2 || done.TooLate != 0 {
		t.Errorf("%+v, %v; want some cancelled", done, err)
	}
	if got := w.left("shop"); got != n {
		t.Errorf("%d timers are left, want the %d that were set again", got, n)
	}
}

// expire has a timerd hear that timers have run out, whose turn to be claimed does not come: they are owed.
func (w *timerWorld) expire(names ...string) {
	w.t.Helper()
	nodes, err := w.schedule.Nodes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for some := range slices.Chunk(names, 100) {
		var hints []schedule.Hint
		for _, name := range some {
			hints = append(hints, schedule.Hint{Kind: schedule.Expired, Key: name})
		}
		if seen, err := nodes[0].Observe(w.t.Context(), hints, time.Time{}); err != nil || seen.Owed != len(some) {
			w.t.Fatalf("%d owed, %v; want %d", seen.Owed, err, len(some))
		}
	}
}

// claim claims some of what is due, and holds what is to be held.
func (w *timerWorld) claim() []schedule.Firing {
	w.t.Helper()
	nodes, err := w.schedule.Nodes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	claimed := nodes[0].Claim(w.t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Hour)[0]
	if claimed.Err != nil {
		w.t.Fatal(claimed.Err)
	}
	return claimed.Firings
}

// beforeFirings calls seen once, before a search that has looked at what is due reads the firings, or some more of them.
type beforeFirings struct {
	noPipelines
	pages int // that are read before
	seen  func()
}

// noPipelines is a hook of go-redis that hooks nothing.
type noPipelines struct{}

func (noPipelines) DialHook(next redis.DialHook) redis.DialHook { return next }
func (noPipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *beforeFirings) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "zrange" && cmd.Args()[1] == keys.Single.Firing() {
			if b.pages--; b.pages == -1 {
				b.seen()
			}
		}
		return next(ctx, cmd)
	}
}

// Timers become owed while others are cancelled, because nobody claims them: NATS is away. Each is counted, and cancelled, once.
func TestCancelWhileTimersBecomeOwed(t *testing.T) {
	t.Parallel()
	const n = 500
	all := names("shop", n)
	begin := func(t *testing.T) (*timerWorld, *redis.Client) {
		server := testenv.Redis(t)
		searched := server.Client()
		w := newTimerWorld(t, searched)
		w.set("shop", 1, time.Millisecond)
		w.await(w.set("shop", n, time.Millisecond)) // the first of all is owed from the start: else no firings are read
		w.schedule = schedule.New(server.Client(), schedule.DefaultMaxPayload)
		return w, searched
	}
	t.Run("between the two looks of a search", func(t *testing.T) {
		t.Parallel()
		for name, search := range map[string]func(*timerWorld) any{
			"count": func(w *timerWorld) any {
				found, err := w.Count(t.Context(), of("shop"), func(admin.TimerCount) {})
				if err != nil {
					return err
				}
				return found.Timers
			},
			"cancel": func(w *timerWorld) any {
				done, err := w.Cancel(t.Context(), of("shop"), ignore)
				if err != nil || done.TooLate+done.Gone > 0 {
					return fmt.Errorf("%+v, %w", done, err)
				}
				return done.Cancelled
			},
		} {
			w, searched := begin(t)
			searched.AddHook(&beforeFirings{seen: func() { w.expire(all[:50]...) }})
			if got := search(w); got != int64(n+1) {
				t.Errorf("%s: %v, want %d", name, got, n+1)
			}
		}
	})
	t.Run("what is released between the two looks", func(t *testing.T) {
		t.Parallel()
		const n = 50
		server := testenv.Redis(t)
		searched := server.Client()
		w := newTimerWorld(t, searched)
		w.await(w.set("other", 1, time.Millisecond))
		w.expire("other:m:t:0") // so that firings are read
		holds := admin.NewHolds(schedule.New(server.Client(), schedule.DefaultMaxPayload))
		if _, err := holds.Hold(t.Context(), schedule.Hold{Namespace: keys.Namespace{App: "shop"}}, 0); err != nil {
			t.Fatal(err)
		}
		w.await(w.set("shop", n, time.Millisecond))
		w.claim()
		searched.AddHook(&beforeFirings{seen: func() {
			err := holds.Resume(t.Context(), keys.Namespace{App: "shop"}, schedule.Resume{Kind: schedule.ResumeNow}, func(admin.ResumeProgress) {})
			if err != nil {
				t.Error(err)
			}
		}})
		if done, err := w.Cancel(t.Context(), of("shop"), ignore); err != nil || done.Cancelled != n || done.TooLate+done.Gone > 0 {
			t.Errorf("%+v, %v; want %d cancelled", done, err, n)
		}
	})
	t.Run("what is claimed while firings are read", func(t *testing.T) {
		t.Parallel()
		const n = 1500 // over a page
		w := newTimerWorld(t, testenv.Redis(t).Client())
		w.owe(n, names("shop", n)...)
		w.rdb.AddHook(&beforeFirings{pages: 1, seen: func() {
			if claimed := w.claim(); len(claimed) == 0 {
				t.Error("nothing was claimed")
			}
		}})
		if found, err := w.Count(t.Context(), of("shop"), func(admin.TimerCount) {}); err != nil || found.Timers != n || found.Total != n {
			t.Errorf("%+v, %v; want %d", found, err, n)
		}
	})
	t.Run("while it goes on", func(t *testing.T) {
		t.Parallel()
		w, _ := begin(t)
		batches := 0
		done, err := w.Cancel(t.Context(), of("shop"), func(c admin.Cancelled) {
			if batches++; batches == 1 {
				w.expire(all[c.Cancelled:]...)
			}
		})
		if err != nil || done.Cancelled != n+1 || done.TooLate+done.Gone > 0 || w.left("shop") > 0 {
			t.Errorf("%+v, %v; %d are left", done, err, w.left("shop"))
		}
	})
	t.Run("after they were firing", func(t *testing.T) {
		t.Parallel()
		w, _ := begin(t)
		claimed := w.claim()
		if len(claimed) < 3 || len(claimed) > n {
			t.Fatalf("%d claimed", len(claimed))
		}
		batches := 0
		done, err := w.Cancel(t.Context(), of("shop"), func(admin.Cancelled) {
			if batches++; batches == 1 {
				if err := w.schedule.Release(t.Context(), claimed[:2]); err != nil {
					t.Fatal(err)
				}
			}
		})
		late := int64(len(claimed) - 2)
		if err != nil || done.Cancelled != n+1-late || done.TooLate != late || done.Gone > 0 {
			t.Errorf("%+v, %v; want %d too late", done, err, late)
		}
	})
}

// An interruption ends it between two batches, and what is said of them is true. Called again it goes on.
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
	if !errors.Is(err, context.Canceled) || done.Cancelled == 0 || done.Cancelled != n-w.left("shop") || !done.Until.Before(last) {
		t.Errorf("%+v, %v; %d are left", done, err, w.left("shop"))
	}
	rest, err := w.Cancel(t.Context(), of("shop"), ignore)
	if err != nil || rest.Cancelled != n-done.Cancelled || !rest.Until.Equal(last) {
		t.Errorf("%+v, %v; want the rest", rest, err)
	}
}

// Without the library nothing is cancelled, and the error says why.
func TestCancelWithoutTheLibrary(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	w.set("shop", 300, time.Hour)
	if err := w.rdb.FunctionFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Cancel(t.Context(), of("shop"), ignore); !errors.Is(err, client.ErrNoLibrary) || done != (admin.Cancelled{}) {
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
	const n = 100_500 // over what a listing knows of them
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

// What is in a slot that is moving is not said to be counted, moved or cancelled. All else is, and the rest once the slot has moved.
func TestCancelWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, false)
	w := newTimerWorld(t, cluster.Client())
	ctx := t.Context()
	place := func(key string) (slot int, from, to *testenv.RedisServer) {
		slot = keys.PartitionOf(key).Slot()
		return slot, cluster.Master(slot), cluster.Master((slot + keys.Slots/3) % keys.Slots)
	}
	isLeftOut := func(err error) bool {
		moving, is := errors.AsType[*query.MovingError](err)
		return is && moving.Slots == 1
	}
	// finish cancels the rest. Keys that have moved are due some ms later, as no timerd has heard yet: they may have been set.
	finish := func(app string) (done admin.Cancelled) {
		testenv.Eventually(t, time.Minute, func() bool {
			var err error
			before := done.Cancelled
			done, err = w.Cancel(ctx, of(app), ignore)
			done.Cancelled += before
			return err == nil
		}, "the slot to have moved")
		return done
	}

	const n = 200
	w.set("shop", n, time.Hour)
	holds := admin.NewHolds(w.schedule)
	if held, err := holds.Hold(ctx, schedule.Hold{Namespace: keys.Namespace{App: "other"}}, 0); err != nil || len(held.Missing) > 0 {
		t.Fatalf("%+v, %v", held, err)
	}
	slot, from, to := place("shop:m:t:0")
	cluster.OpenSlot(slot, from, to)
	if views, err := holds.List(ctx); err != nil || len(views) != 1 || views[0].Held != nil {
		t.Errorf("holds: %+v, %v; want one of which it is not known how many timers it holds", views, err)
	}
	if found, err := w.Count(ctx, of("shop"), func(admin.TimerCount) {}); err != nil || !found.Cut || found.Timers != n-1 || !found.Counted.Before.IsZero() {
		t.Errorf("counted: %+v, %v", found, err)
	}
	moved, err := w.Move(ctx, of("shop"), time.Now().Add(2*time.Hour), func(admin.Moved) {})
	if !isLeftOut(err) || moved.Moved != n-1 {
		t.Errorf("moved: %+v, %v", moved, err)
	}
	if done, err := w.Cancel(ctx, of("shop"), ignore); !isLeftOut(err) || done.Cancelled != n-1 {
		t.Errorf("cancelled: %+v, %v", done, err)
	}
	cluster.CloseSlot(slot, from, to)
	if done := finish("shop"); done.Cancelled+done.Gone != 1 {
		t.Errorf("cancelled at last: %+v", done)
	}

	// The slot moves as a whole once the search has begun.
	var settings []client.Setting
	for i := range 5 * n {
		settings = append(settings, client.Setting{Key: fmt.Sprintf("pay:m:t:{x}%d", i), When: client.After(time.Hour)})
	}
	if _, err := w.client.SetMany(ctx, settings); err != nil {
		t.Fatal(err)
	}
	slot, from, to = place(settings[0].Key)
	batches := 0
	first, err := w.Cancel(ctx, of("pay"), func(admin.Cancelled) {
		if batches++; batches == 1 {
			cluster.OpenSlot(slot, from, to)
			cluster.CloseSlot(slot, from, to)
		}
	})
	if !isLeftOut(err) {
		t.Errorf("while the slot moved: %+v, %v", first, err)
	}
	if done := finish("pay"); first.Cancelled+done.Cancelled+done.Gone != 5*n {
		t.Errorf("first %+v, then %+v", first, done)
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
		{query.Query{Namespace: keys.Namespace{App: "shop"}, ID: "99", States: []query.State{query.StatePending}}, 1, 88},
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
