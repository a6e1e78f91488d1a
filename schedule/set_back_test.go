package schedule_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// putRight rewrites the times of a clock that was ahead, and checks the number of claims and pauses shortened.
func (x *index) putRight(freed int) {
	x.t.Helper()
	if _, n, err := x.PutRight(x.t.Context(), lease); err != nil || n != freed {
		x.t.Fatalf("%d claims and pauses shortened, %v; want %d", n, err, freed)
	}
}

// claimableIn returns the time until a firing of a key can be claimed, in ms.
func (x *index) claimableIn(key string) (ahead int64) {
	x.t.Helper()
	now := x.redisNow()
	for _, f := range x.rdb.ZRangeWithScores(x.t.Context(), keys.Single.Firing(), 0, -1).Val() {
		if _, _, of, err := schedule.ParseRef(f.Member.(string)); err == nil && of.String() == key {
			return int64(f.Score) - now
		}
	}
	x.t.Fatalf("no firing of %s", key)
	return 0
}

// Redis's clock is an hour ahead for a while. Firings claimed meanwhile by a timerd that died, or given back with a
// pause, can be claimed again within a lease once the clock is back, and at the rate of a resume that is over.
// Tombstones explain no later events. A pause by a right clock stays.
func TestClaimsByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	set := func(names ...string) {
		for _, name := range names {
			x.do("FCALL", "timer_set", 1, "a:b:c:"+name, name, "PX", 20)
		}
		x.awaitClock(x.due("a:b:c:" + names[len(names)-1]))
	}
	pause := func(firing schedule.Firing, pause time.Duration, stored bool) {
		t.Helper()
		given := firing.Outcome(schedule.OutcomeGivenBack)
		given.Pause, given.MayBeStored = pause, stored
		if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
			t.Fatal(err)
		}
	}
	x.setAhead(clock, time.Hour)
	set("paused")
	pause(x.claimFor(lease).Firings[0], time.Minute, false)
	set("perhaps")
	pause(x.claimFor(lease).Firings[0], time.Minute, true)
	set("spaced0", "spaced1", "spaced2")
	x.hold("a")
	l, h := x.resume("a", schedule.Resume{Kind: schedule.ResumeRate, Rate: 0.1})
	x.claims()
	x.claims()
	times, err := l.Draw(t.Context(), h, 3, 5*time.Second)
	if err != nil || x.release(l, h, &times) != 3 {
		t.Fatalf("%+v, %v: want three released", times, err)
	}
	set("claimed")
	x.claims("a:b:c:claimed deadline claimed", "a:b:c:spaced0 deadline spaced0")
	x.putRight(0)

	x.setAhead(clock, 0)
	x.putRight(4) // timers of a resume in progress stay
	if err := x.list().Remove(t.Context(), h.Namespace); err != nil {
		t.Fatal(err)
	}
	x.putRight(2)
	set("right")
	got := map[string]bool{} // firings that may have been published
	testenv.Eventually(t, time.Minute, func() bool {
		for _, f := range x.claimFor(lease).Firings { // some before they are due by a clock that is right
			got[f.Key.ID] = f.MayBeStored
			if f.Key.ID == "right" {
				pause(f, time.Minute, false)
			}
		}
		return len(got) == 4
	}, "a claim of four")
	if want := map[string]bool{"paused": false, "perhaps": true, "spaced1": false, "right": false}; !maps.Equal(got,
		want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
	x.putRight(0)
	for name, want := range map[string]struct{ from, to int64 }{
		"right": {1, 60_000}, "claimed": {1, lease.Milliseconds()}, "spaced2": {1, 10_000},
	} {
		if ahead := x.claimableIn("a:b:c:" + name); ahead < want.from || ahead > want.to {
			t.Errorf("%s can be claimed in %d ms, want %d to %d", name, ahead, want.from, want.to)
		}
	}
	newest := x.rdb.ZRangeArgsWithScores(t.Context(),
		redis.ZRangeArgs{Key: keys.Single.Fired(), Start: 0, Stop: 0, Rev: true}).Val()
	if off := int64(newest[0].Score) - x.redisNow(); off > time.Minute.Milliseconds() {
		t.Errorf("the newest tombstone, %v, is of %d ms from now", newest[0].Member, off)
	}
}

// A timer that is contested, or parked, while the clock is ahead waits no longer than it can once the clock is back,
// and an audit has seen it.
func TestWaitsByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	x.damaged = true // it adds timers without records
	x.setAhead(clock, time.Hour)
	x.contest()
	now := x.redisNow()
	x.do("ZADD", keys.Single.Due(), now+60_000, ":s"+fmt.Sprint(now-1)+".:a:b:c:parked")
	later := fmt.Sprintf(":%d.2:a:b:c:beside", now+20_000)
	x.do("ZADD", keys.Single.Due(), now+20_000, later)
	x.setAhead(clock, 0)
	x.audit()
	for _, due := range x.rdb.ZRangeWithScores(t.Context(), keys.Single.Due(), 0, -1).Val() {
		if waits := int64(due.Score) - x.redisNow(); due.Member.(string)[0] == ':' &&
			(waits > 0) != (due.Member == later) {
			t.Errorf("%s waits for %d ms", due.Member, waits)
		}
	}
}

// Once the clock is back, events count as heard from then on, not only from when the clock shows the time of the
// subscription again.
func TestHeardSinceAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	x.setAhead(clock, time.Hour)
	if err := x.StartHearing(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.setAhead(clock, 0)
	x.claims()
	back := x.redisNow()
	testenv.Eventually(t, time.Minute, func() bool { return x.redisNow() > back+10 }, "some ms")
	x.do("SET", k, "v1", "PX", 1_000) // time enough for its value to be read
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", 600_000)
	x.claims() // contested: its expired event is on its way
	x.observe(expired(k), touched(k))
	x.fires(k + " expired v1")
}

// A reply that is read long after it was sent shows no clock that was set back: IsBehind says no, and events from
// before the subscription do not count as heard, so a timer that ran out then fires.
func TestSlowlyReadClock(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	early, sent := schedule.Millis(x.redisNow()).Time(), time.Now()
	x.awaitExpiry(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.hearFromNow()
	x.ReadClock(early, sent, time.Now().Add(1500*time.Millisecond))
	if x.IsBehind() {
		t.Error("the clock counts as set back")
	}
	x.claims(k + " deadline v1")
}

// Only a clock that shows less than before is behind, whoever reads it first.
func TestIsBehind(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	for _, c := range []struct {
		ahead  time.Duration
		behind bool
	}{{0, false}, {time.Hour, false}, {0, true}, {time.Hour, false}} {
		x.setAhead(clock, c.ahead)
		if _, err := x.ScanDue(t.Context(), 0, lease); err != nil || x.IsBehind() != c.behind {
			t.Errorf("ahead by %v: behind is %v, %v; want %v", c.ahead, x.IsBehind(), err, c.behind)
		}
	}
}

// The pauses made by a right clock are not even looked at, however many there are.
func TestPausesOfARightClockAreNotLookedAt(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	x := newIndexFor(t, rdb, rdb, 1000)
	x.seeded = true
	const parked = 1000
	scores, records := []any{"ZADD", keys.Single.Firing()}, []any{"HSET", keys.Single.FiringData()}
	for i := range parked {
		ref := fmt.Sprintf("%d::a:b:c:%d", x.redisNow(), i)
		scores, records = append(scores, fmt.Sprint(x.redisNow()+50_000, ".5"), ref), append(records, ref, ":v")
	}
	x.do(scores...)
	x.do(records...)
	for range 2 { // the first time the scripts are loaded
		x.do("ZADD", keys.Single.Fired(), x.redisNow()+3600_000, "a:b:c:fired")
		if calls := x.steps(func() { x.putRight(0) }); calls > 4 {
			t.Errorf("%d calls", calls)
		}
	}
}

// Times of a resume at a rate that a clock ahead has drawn are drawn again, although the resume has gone on since the
// clock is back.
func TestResumeInProgressByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	x.hold("a")
	x.setAhead(clock, time.Hour)
	x.becomeDue("a:b:c:1", "a:b:c:2", "a:b:c:3")
	x.claims()
	const ahead, atOnce = 5 * time.Second, time.Second
	draw := func(l *schedule.HoldList, h *schedule.Hold, want int) {
		t.Helper()
		times, err := l.Draw(t.Context(), h, 3, ahead)
		if err != nil || times.Left != want {
			t.Fatalf("%+v, %v: want %d times", times, err, want)
		}
		if n := x.release(l, h, &times); n != want {
			t.Errorf("%d released, want %d", n, want)
		}
	}
	l, h := x.resume("a", schedule.Resume{Kind: schedule.ResumeRate, Rate: 10})
	draw(l, h, 3)
	x.setAhead(clock, 0)
	times, err := l.Draw(t.Context(), h, 3, ahead) // before the list is read again
	if err != nil || times.Left != 0 {
		t.Errorf("%+v, %v: want nothing drawn", times, err)
	}
	l = x.list()
	h = l.Find(h.Namespace)
	if !l.DrawnAhead(h, ahead, atOnce) {
		t.Error("the times are not those of a clock that was ahead")
	}
	if n, err := l.Redraw(t.Context(), x.Node, h, ahead); err != nil || n != 3 {
		t.Errorf("%d held again, %v; want 3", n, err)
	}
	if err := l.Undraw(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	l = x.list()
	h = l.Find(h.Namespace)
	if l.DrawnAhead(h, ahead, atOnce) {
		t.Error("it is to be drawn again and again")
	}
	draw(l, h, 3)
	for i := 1; i <= 3; i++ {
		if in := x.claimableIn(fmt.Sprint("a:b:c:", i)); in > ahead.Milliseconds() {
			t.Errorf("timer %d can be claimed in %d ms", i, in)
		}
	}
}
