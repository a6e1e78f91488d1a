package admin_test

import (
	"context"
	"errors"
	"fmt"
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

// A timer set while others are cancelled stays if it is due after the bound.
func TestCancelWhileTimersAreSet(t *testing.T) {
	t.Parallel()
	w := newTimerWorld(t, testenv.Redis(t).Client())
	const n = 1200
	sel := of("shop")
	sel.Before = w.set("shop", n, time.Hour).Add(time.Millisecond)
	batches := 0
	done, err := w.Cancel(t.Context(), sel, func(admin.Cancelled) {
		if batches++; batches == 2 {
			w.set("shop", n, 2*time.Hour) // cancelled ones, and ones found or not found yet
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

// claim claims some due timers, and moves held ones aside.
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

// beforeFirings calls seen once, before a search that has read the due timers reads the firings, or some more of them.
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

// Timers become owed while others are cancelled, because nobody claims them: NATS is away. Each is counted, and
// cancelled, once.
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
					return fmt.Sprintf("%+v, %v", done, err)
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
	t.Run("a timer released between the two looks", func(t *testing.T) {
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
			err := holds.Resume(t.Context(), keys.Namespace{App: "shop"}, schedule.Resume{Kind: schedule.ResumeNow},
				func(admin.ResumeProgress) {})
			if err != nil {
				t.Error(err)
			}
		}})
		if done, err := w.Cancel(t.Context(), of("shop"), ignore); err != nil || done.Cancelled != n ||
			done.TooLate+done.Gone > 0 {
			t.Errorf("%+v, %v; want %d cancelled", done, err, n)
		}
	})
	t.Run("a timer claimed while firings are read", func(t *testing.T) {
		t.Parallel()
		const n = 1500 // over a page
		w := newTimerWorld(t, testenv.Redis(t).Client())
		w.owe(n, names("shop", n)...)
		w.rdb.AddHook(&beforeFirings{pages: 1, seen: func() {
			if claimed := w.claim(); len(claimed) == 0 {
				t.Error("nothing was claimed")
			}
		}})
		if found, err := w.Count(t.Context(), of("shop"), func(admin.TimerCount) {}); err != nil || found.Timers != n ||
			found.Total != n {
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
				if err := w.schedule.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack,
					claimed[:2]...)); err != nil {
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

// isLeftOut reports whether an error means that one slot was moving.
func isLeftOut(err error) bool {
	moving, is := errors.AsType[*query.MovingError](err)
	return is && moving.Slots == 1
}

// Timers in a moving slot are not counted, moved or cancelled. All others are, and these once the slot has moved.
func TestCancelWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, false)
	w := newTimerWorld(t, cluster.Client())
	ctx := t.Context()
	place := func(key string) (slot int, from, to *testenv.RedisServer) {
		slot = keys.PartitionOf(key).Slot()
		return slot, cluster.Master(slot), cluster.Master((slot + keys.Slots/3) % keys.Slots)
	}
	// finish cancels the rest. Keys that have moved are due some ms later, as no timerd has heard yet: they may have
	// been set.
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
	if held, err := holds.Hold(ctx, schedule.Hold{Namespace: keys.Namespace{App: "other"}}, 0); err != nil ||
		len(held.Missing) > 0 {
		t.Fatalf("%+v, %v", held, err)
	}
	slot, from, to := place("shop:m:t:0")
	cluster.OpenSlot(slot, from, to)
	if views, err := holds.List(ctx); err != nil || len(views) != 1 || views[0].Held != nil {
		t.Errorf("holds: %+v, %v; want one with an unknown number of timers", views, err)
	}
	if found, err := w.Count(ctx, of("shop"), func(admin.TimerCount) {}); err != nil || !found.Cut ||
		found.Timers != n-1 || !found.Counted.Before.IsZero() {
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

// A slot that begins to move once the search has found its timers keeps no others from being moved or cancelled. Each
// is counted by its outcome, although the first call of a round trip is refused.
func TestCancelInAMovingSlot(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, false)
	w := newTimerWorld(t, cluster.Client())
	ctx := t.Context()
	const n, batch = 200, 64
	set := func() {
		var settings []client.Setting
		for i := range n {
			settings = append(settings, client.Setting{Key: fmt.Sprint("shop:m:t:", i),
				When: client.After(time.Hour + time.Duration(i)*time.Second)})
		}
		if _, err := w.client.SetMany(ctx, settings); err != nil {
			t.Fatal(err)
		}
	}
	set()
	slot := keys.PartitionOf(fmt.Sprint("shop:m:t:", batch)).Slot()
	from, to := cluster.Master(slot), cluster.Master((slot+keys.Slots/3)%keys.Slots)
	once := func(batches int) func() {
		return func() {
			if batches++; batches == 1 {
				cluster.OpenSlot(slot, from, to)
			}
		}
	}
	open := once(0)
	moved, err := w.Move(ctx, of("shop"), time.Now().Add(2*time.Hour), func(admin.Moved) { open() })
	if !isLeftOut(err) || moved != (admin.Moved{Moved: n - 1}) {
		t.Errorf("moved: %+v, %v", moved, err)
	}
	if err := errors.Join(
		from.Client().Do(ctx, "CLUSTER", "SETSLOT", slot, "STABLE").Err(),
		to.Client().Do(ctx, "CLUSTER", "SETSLOT", slot, "STABLE").Err(),
	); err != nil {
		t.Fatal(err)
	}
	set()
	open = once(0)
	done, err := w.Cancel(ctx, of("shop"), func(admin.Cancelled) { open() })
	if done.Until = (time.Time{}); !isLeftOut(err) || done != (admin.Cancelled{Cancelled: n - 1}) {
		t.Errorf("cancelled: %+v, %v", done, err)
	}
}
