package schedule_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Timers that are not held are claimed before many held ones are moved: the first ones, one in the middle although all
// are due in the same ms, and ones that become due meanwhile; also after the timer at which the last look ended was
// cancelled.
func TestOthersAreClaimedBesideHeldTimers(t *testing.T) {
	t.Parallel()
	const held = 6000
	name := func(i int) string { return fmt.Sprintf("shop:a:%c:%d", "bd"[2*i/held], i) }
	var x *index
	var pipe redis.Pipeliner
	var at int64
	for lead := int64(2500); ; lead *= 3 { // a busy machine takes longer to set them
		x = newIndex(t)
		x.hold("shop:a:b")
		x.hold("shop:a:d")
		at = x.redisNow() + lead
		pipe = x.rdb.Pipeline()
		set := func(key, payload string, at int64) {
			pipe.FCall(t.Context(), "timer_set", []string{key}, payload, "PXAT", at)
		}
		for i := range held {
			set(name(i), "", at)
		}
		set(k, "first", at-1)
		set("shop:a:c:1", "middle", at)
		set(k+"2", "last", at+2)
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		if x.redisNow() < at-1 {
			break
		}
		if lead > 60_000 {
			t.Fatalf("%d timers are not set within %d ms", held, lead)
		}
	}
	x.awaitClock(at + 2)
	moved := func() int64 {
		found, err := x.ScanDue(t.Context(), time.Second, lease)
		if err != nil {
			t.Fatal(err)
		}
		return found.Held
	}
	x.fires(k + " deadline first")
	if n := moved(); n == 0 || n > 500 {
		t.Fatalf("%d moved by one claim", n)
	}
	claimed := 0
	claim := func() {
		t.Helper()
		firings, _ := x.claimOnce()
		claimed += len(firings)
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; n < held/1000+1 && claimed < 2; n++ {
		claim()
	}
	if n := moved(); claimed != 2 || n > 1000 {
		t.Fatalf("%d claimed of two behind, while %d are moved", claimed, n)
	}
	for i := range held / 2 {
		pipe.FCall(t.Context(), "timer_cancel", []string{name(2*i + 1)})
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.do("FCALL", "timer_set", 1, k+"3", "newer", "PX", 1)
	x.awaitClock(x.redisNow() + 2)
	for range 30 {
		claim()
		if claimed == 2 && moved() > 1000 {
			t.Fatal("many were moved before what became due last was claimed")
		}
	}
	if claimed != 3 {
		t.Errorf("%d claimed of the three behind the held ones", claimed)
	}
	found, err := x.ScanDue(t.Context(), time.Second, lease)
	if err != nil || found.Held != held/2 || found.Firing != 0 || found.Pending != 0 || len(found.Heads) != 0 {
		t.Errorf("scan: %+v, %v; want half of them held and nothing to claim", found, err)
	}
	seen, err := query.CountTimers(t.Context(), x.Node)
	if err != nil || seen.Held != held/2 || seen.Owed != 0 || seen.Firing != 0 {
		t.Errorf("overview: %+v, %v; want half of them held", seen, err)
	}
	listed := 0
	if err := list(t, x.Schedule, namespace(t, "shop"), func(timer query.Timer) bool {
		if timer.State != query.StateHeld || timer.Due.UnixMilli() != at {
			t.Errorf("%s is listed as %s, due %d", timer.Key, timer.State, timer.Due.UnixMilli())
			return false
		}
		listed++
		return true
	}); err != nil || listed != held/2 {
		t.Errorf("%d listed, %v", listed, err)
	}
}

// A shift moves all held timers of one key, however many they are.
func TestShiftOfManyOfOneKey(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.seeded = true
	x.hold("app1")
	const many = 160
	first := x.redisNow() - 10_000
	for n := range int64(many) {
		ref := fmt.Sprintf("%d::%s", first-n, k)
		x.do("ZADD", keys.Single.Firing(), 0, ref)
		x.do("HSET", keys.Single.FiringData(), ref, "xe:v")
	}
	for range 3 {
		x.claims()
	}
	l := x.list()
	held := *l.Find(namespace(t, "app1"))
	held.Since -= 20_000
	if err := l.Put(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	l, h := x.resume("app1", schedule.Resume{Kind: schedule.ResumeShift})
	if n := x.release(l, h, &schedule.Draw{}); n != many {
		t.Errorf("%d released, want %d", n, many)
	}
	pending, _ := x.do("ZCARD", keys.Single.Due()).(int64)
	owed, _ := x.do("ZCARD", keys.Single.Firing()).(int64)
	if pending != 151 || owed != many-151 {
		t.Errorf("%d pending and %d owed, want 151 and %d", pending, owed, many-151)
	}
	if record := x.do("HGET", keys.Single.Data(), k); record != ":v" {
		t.Errorf("its record is %q", record)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("cancel: %v", got)
	}
	if n := x.do("ZCARD", keys.Single.Due()); n != int64(0) {
		t.Errorf("%v are left", n)
	}
}

// However many holds somebody makes, claims read only a few, and the error has the fix. Existing holds can be changed
// and ended.
func TestTooManyHolds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		name string
		most int
	}{
		"many": {"app", schedule.MaxHolds},
		"long": {strings.Repeat("x", 100), 4096/300 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			l, n := x.list(), 0
			put := func(i int, reason string) error {
				h := schedule.Hold{Namespace: namespace(t, fmt.Sprintf("%s%d:%[1]s:%[1]s", test.name, i)), Since: l.Now,
					Reason: reason}
				return l.Put(t.Context(), h)
			}
			var err error
			for ; n < 5000 && err == nil; n++ {
				err = put(n, "")
			}
			if !errors.Is(err, schedule.ErrTooManyHolds) ||
				!strings.Contains(err.Error(), "resume one, or hold a namespace that covers several") ||
				n-1 != test.most {
				t.Errorf("%d holds, then: %v; want %d", n-1, err, test.most)
			}
			if bytes, _ := x.do("HSTRLEN", keys.Single.Data(), ":h:").(int64); bytes == 0 || bytes > 4096+20 {
				t.Errorf("each claim reads %d bytes", bytes)
			}
			if err := put(0, "another reason"); err != nil {
				t.Error(err)
			}
			if err := l.Remove(t.Context(), l.Holds[0].Namespace); err != nil {
				t.Error(err)
			}
			if err := put(n, ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// A timer that a resume frees among many under another hold is claimed before all of these are moved, though claims had
// looked at it before.
func TestFreedBesideHeldTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("shop:a:b")
	x.hold("shop:a:d")
	const held = 4000
	at := x.redisNow() + 8000 // a slow machine needs as long to set them
	pipe := x.rdb.Pipeline()
	for i := range held {
		pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("shop:a:b:%d", i)}, "", "PXAT", at)
	}
	pipe.FCall(t.Context(), "timer_set", []string{"shop:a:d:1"}, "freed", "PXAT", at)
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	x.awaitClock(at)
	for range held/1000 + 1 {
		x.claims()
	}
	x.resume("shop:a:d", schedule.Resume{Kind: schedule.ResumeNow})
	for n := 0; ; n++ {
		if _, got := x.claimOnce(); len(got) > 0 {
			break
		}
		if n > held/1000+1 {
			t.Fatal("it was not claimed after as many claims as it takes to look at all")
		}
	}
	found, err := x.ScanDue(t.Context(), time.Second, lease)
	if err != nil || found.Held > held/2 {
		t.Errorf("%d moved before it, %v", found.Held, err)
	}
	for range held/256 + 1 { // each moves some, and none looks at all again
		x.claims()
	}
	if found, err := x.ScanDue(t.Context(), time.Second, lease); err != nil || found.Held != held {
		t.Errorf("%d held, %v, want all %d", found.Held, err, held)
	}
}
