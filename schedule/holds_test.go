package schedule_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func namespace(t testing.TB, text string) keys.Namespace {
	t.Helper()
	n, err := keys.ParseNamespace(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (x *index) list() *schedule.HoldList {
	x.t.Helper()
	l, err := x.Holds(x.t.Context())
	if err != nil {
		x.t.Fatal(err)
	}
	return l
}

// hold holds a namespace from now on.
func (x *index) hold(text string) schedule.Hold {
	x.t.Helper()
	l := x.list()
	h := schedule.Hold{Namespace: namespace(x.t, text), Since: l.Now, Reason: "a test"}
	if err := l.Put(x.t.Context(), h); err != nil {
		x.t.Fatal(err)
	}
	return h
}

// resume stores the resume of a hold.
func (x *index) resume(text string, r schedule.Resume) (*schedule.HoldList, *schedule.Hold) {
	x.t.Helper()
	l := x.list()
	h := *l.Find(namespace(x.t, text))
	r.At = l.Now
	h.Resume = &r
	if err := l.Put(x.t.Context(), h); err != nil {
		x.t.Fatal(err)
	}
	resuming := l.Find(h.Namespace)
	return l, resuming
}

// release makes steps of a resume until the end of the held timers, and returns the number released.
func (x *index) release(l *schedule.HoldList, h *schedule.Hold, times *schedule.Draw) (released int) {
	x.t.Helper()
	var at schedule.HeldAt
	for {
		r, err := l.Release(x.t.Context(), h, keys.Single, at, times)
		if err != nil || r.Stale {
			x.t.Fatalf("release: %+v, %v", r, err)
		}
		released += r.Count
		if r.Last || times.Left == 0 && h.Resume.Kind == schedule.ResumeRate {
			return released
		}
		at = r.Next
	}
}

// becomeDue sets timers with one due time, soon, waits for it, and returns it.
func (x *index) becomeDue(names ...string) int64 {
	x.t.Helper()
	for ahead := int64(50); ; ahead *= 4 { // a busy machine takes its time, and an instant that has passed becomes now
		at, late := x.redisNow()+ahead, false
		set, err := x.rdb.TxPipelined(x.t.Context(), func(pipe redis.Pipeliner) error {
			for _, name := range names {
				pipe.FCall(x.t.Context(), "timer_set", []string{name}, "payload of "+name, "PXAT", at)
				x.dues[name] = at
			}
			return nil
		})
		if err != nil {
			x.t.Fatal(err)
		}
		for _, cmd := range set {
			late = late || cmd.(*redis.Cmd).Val() != at
		}
		if !late {
			x.awaitClock(at)
			return at
		}
		for _, name := range names {
			x.do("FCALL", "timer_cancel", 1, name)
		}
	}
}

func TestHeldTimersAreNotClaimed(t *testing.T) {
	t.Parallel()
	for _, held := range []string{"app1", "app1:trans", "app1:trans:notice", "*:trans", "*:*:notice", "app1:*:notice",
		"*"} {
		t.Run(held, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.hold(held)
			x.becomeDue(k)
			x.stateIs(k, "held payload of "+k) // though no claim has looked at it
			x.claims()
			x.claims()
			x.stateIs(k, "held payload of "+k)
			if got := x.do("FCALL", "timer_set", 1, k, "", "PX", 1000, "NX"); got != nil {
				t.Errorf("NX: %v, want nil", got)
			}
			if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
				t.Errorf("cancel: %v", got)
			}
			if got := x.do("FCALL", "timer_cancel", 1, k); got != "unknown" {
				t.Errorf("cancel again: %v", got)
			}
			x.stateIs(k, "")
			x.claims()
			if n := x.do("ZCARD", keys.Single.Firing()); n != int64(0) {
				t.Errorf("%v firings are left", n)
			}
		})
	}
	for _, other := range []string{"app", "app1:trans:notice2", "app1:x", "*:x", "*:*:x", "app1:*:x"} {
		t.Run("not "+other, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.hold(other)
			x.becomeDue(k)
			x.fires(k + " deadline payload of " + k)
		})
	}
}

// A claim notices that its list of holds is out of date, and claims all the same: nobody waits for the next reading.
func TestClaimsGoOnWhenTheListChanges(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(x *index){
		"somebody else ends the last hold": func(x *index) {
			other := newIndexFor(x.t, x.rdb, x.rdb, 1000)
			if err := other.list().Remove(x.t.Context(), namespace(x.t, "shop")); err != nil {
				x.t.Fatal(err)
			}
		},
		"a failover loses the copy": func(x *index) {
			x.do("HDEL", keys.Single.Data(), ":h:")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			x.hold("shop")
			change(x)
			x.becomeDue(k, "shop:a:b:1")
			want := []string{k + " deadline payload of " + k}
			if strings.HasPrefix(name, "somebody") {
				want = append(want, "shop:a:b:1 deadline payload of shop:a:b:1")
			}
			x.claims(want...)
		})
	}
}

// The result of each kind of resume for a held timer, for one set again meanwhile, and for one that becomes due after
// it.
func TestResumes(t *testing.T) {
	t.Parallel()
	const again, later = "app1:trans:notice:2", "app1:trans:notice:3"
	start := func(t *testing.T, kind schedule.ResumeKind) (x *index, was int64, l *schedule.HoldList,
		h *schedule.Hold) {
		t.Helper()
		x = newIndex(t)
		x.hold("app1")
		was = x.becomeDue(k, again)
		x.claims()
		x.do("FCALL", "timer_set", 1, again, "newer", "PX", 60_000)
		after := x.redisNow() + brief
		x.do("FCALL", "timer_set", 1, later, "untouched", "PXAT", after)
		l, h = x.resume("app1", schedule.Resume{Kind: kind, Rate: 100})
		x.awaitClock(after)
		x.fires(later + " deadline untouched") // it is free at once
		return x, was, l, h
	}
	is := func(t *testing.T, firings []schedule.Firing, was int64) {
		t.Helper()
		for _, f := range firings {
			if int64(f.Due) != was || f.MayBeStored {
				t.Errorf("%s is due at %d, %t; want %d", f.Key, f.Due, f.MayBeStored, was)
			}
		}
	}
	t.Run("now", func(t *testing.T) {
		t.Parallel()
		x, was, l, h := start(t, schedule.ResumeNow)
		x.claims()
		if n := x.release(l, h, &schedule.Draw{}); n != 2 {
			t.Errorf("%d released", n)
		}
		x.stateIs(k, "owed payload of "+k)
		is(t, x.claims(k+" deadline payload of "+k, again+" deadline payload of "+again), was)
		x.stateIs(again, "pending newer")
	})
	t.Run("rate", func(t *testing.T) {
		t.Parallel()
		x, was, l, h := start(t, schedule.ResumeRate)
		const drawn = 100 // times for a second
		times, err := l.Draw(t.Context(), h, drawn, time.Minute)
		if err != nil || times.Left != drawn {
			t.Fatalf("%+v, %v", times, err)
		}
		if n := x.release(l, h, &times); n != 2 || times.Left != drawn-2 {
			t.Errorf("%d released, %+v left", n, times)
		}
		scores := x.rdb.ZRangeWithScores(t.Context(), keys.Single.Firing(), 0, -1).Val()
		if len(scores) != 2 || scores[1].Score-scores[0].Score != 10 {
			t.Errorf("they are free at %v, want 10 ms apart", scores)
		}
		if none, err := l.Draw(t.Context(), h, 10, 0); err != nil || none.Left != 0 {
			t.Errorf("drawn ahead of the time: %+v, %v", none, err)
		}
		x.awaitClock(int64(scores[1].Score) + 1)
		is(t, x.claims(k+" deadline payload of "+k, again+" deadline payload of "+again), was)
	})
	t.Run("shift", func(t *testing.T) {
		t.Parallel()
		x, was, l, h := start(t, schedule.ResumeShift)
		if n := x.release(l, h, &schedule.Draw{}); n != 2 {
			t.Errorf("%d released", n)
		}
		due := was + int64(h.Resume.At-h.Since)
		if at := x.do("PEXPIRETIME", k); at != int64(-2) && at != due {
			t.Errorf("its key runs out at %v, want %d", at, due)
		}
		if x.redisNow() < due {
			x.stateIs(k, "pending payload of "+k)
			if got := x.do("FCALL_RO", "timer_get", 1, again); fmt.Sprint(got) == "" {
				t.Error("the newer timer is gone")
			}
		}
		x.awaitClock(due)
		is(t, x.claims(k+" deadline payload of "+k, again+" deadline payload of "+again), due)
		x.stateIs(again, "pending newer")
		x.do("FCALL", "timer_cancel", 1, again)
	})
	t.Run("dead", func(t *testing.T) {
		t.Parallel()
		x, was, l, h := start(t, schedule.ResumeDead)
		if n := x.release(l, h, &schedule.Draw{}); n != 2 {
			t.Errorf("%d released", n)
		}
		firings := x.claims(k+" deadline payload of "+k, again+" deadline payload of "+again)
		is(t, firings, was)
		for _, f := range firings {
			if !f.Held {
				t.Errorf("%s does not become a dead letter", f.Key)
			}
		}
	})
}

// A timer is free when no hold covers it, whatever else is resumed.
func TestOverlappingHolds(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("shop")
	x.hold("shop:order")
	due := x.becomeDue("shop:order:t:1", "shop:basket:t:1")
	x.claims()
	l, h := x.resume("shop", schedule.Resume{Kind: schedule.ResumeShift})
	if n := x.release(l, h, &schedule.Draw{}); n != 1 {
		t.Errorf("%d released, want the basket's", n)
	}
	x.stateIs("shop:order:t:1", "held payload of shop:order:t:1")
	if err := l.Remove(t.Context(), h.Namespace); err != nil {
		t.Fatal(err)
	}
	x.awaitClock(due + int64(h.Resume.At-h.Since))
	x.claims("shop:basket:t:1 deadline payload of shop:basket:t:1")
	l, h = x.resume("shop:order", schedule.Resume{Kind: schedule.ResumeNow})
	if n := x.release(l, h, &schedule.Draw{}); n != 1 {
		t.Errorf("%d released, want the order's", n)
	}
	x.claims("shop:order:t:1 deadline payload of shop:order:t:1")
}

// A resume that ends at once spares the timers that another is to release at a rate: a claim would hold them again.
func TestResumeLeavesToAnother(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("shop")
	x.hold("shop:order")
	x.becomeDue("shop:order:t:1", "shop:basket:t:1")
	x.claims()
	x.resume("shop:order", schedule.Resume{Kind: schedule.ResumeRate, Rate: 1})
	l, h := x.resume("shop", schedule.Resume{Kind: schedule.ResumeNow})
	if n := x.release(l, h, &schedule.Draw{}); n != 1 {
		t.Errorf("%d released, want the basket's", n)
	}
	x.claims("shop:basket:t:1 deadline payload of shop:basket:t:1")
	x.stateIs("shop:order:t:1", "held payload of shop:order:t:1")
}

// A step of a resume does nothing after a change of the list; nor does a change of a list that somebody else has
// changed. A claim that knows of a hold also holds if the server's copy has lost it.
func TestStaleHolders(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.hold("app1")
	x.becomeDue(k)
	x.claims()
	l, h := x.resume("app1", schedule.Resume{Kind: schedule.ResumeNow})
	old := *l
	x.hold("app1")
	if r, err := old.Release(t.Context(), h, keys.Single, schedule.HeldAt{}, &schedule.Draw{}); err != nil ||
		!r.Stale || r.Count > 0 {
		t.Errorf("a step by an old list: %+v, %v", r, err)
	}
	if err := old.Put(t.Context(), *h); !errors.Is(err, schedule.ErrHoldsChanged) {
		t.Errorf("a change of an old list: %v", err)
	}
	x.stateIs(k, "held payload of "+k)

	x.list()
	x.do("HDEL", keys.Single.Data(), ":h:")
	x.becomeDue(k + "2")
	x.claims() // and mends the copy
	if copied := fmt.Sprint(x.do("HGET", keys.Single.Data(), ":h:")); !strings.Contains(copied, "app1") {
		t.Errorf("the copy is %q after a claim", copied)
	}
	x.do("DEL", keys.Single.Holds())
	l = x.list()
	if _, err := l.CopyTo(t.Context(), x.Node); err != nil || !l.Outdated() {
		t.Errorf("%v; that the list was lost is not seen: %+v", err, l)
	}
	x.claims() // only the copies are left
	if err := l.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A timer that is held without a hold can be released.
	lost := &schedule.Hold{Resume: &schedule.Resume{Kind: schedule.ResumeNow}}
	if n := x.release(l, lost, &schedule.Draw{}); n != 2 {
		t.Errorf("%d released, want 2", n)
	}
	x.claims(k+" deadline payload of "+k, k+"2 deadline payload of "+k+"2")
}

// A firing that may have been published is claimed again under a hold. An owed one is held, and so is a retry.
func TestHeldFirings(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	names := []string{"a:b:c:released", "a:b:c:stored", "a:b:c:lapsed"}
	x.becomeDue(names...)
	c := x.claimFor(brief * time.Millisecond)
	if len(c.Firings) != 3 {
		t.Fatalf("%d claimed", len(c.Firings))
	}
	for _, f := range c.Firings {
		if f.Key.ID == "lapsed" {
			continue
		}
		f.MayBeStored = f.Key.ID == "stored"
		if err := x.Release(t.Context(), schedule.Outcomes(schedule.OutcomeGivenBack, f)); err != nil {
			t.Fatal(err)
		}
	}
	x.retry("an event", x.redisNow()-5, 2, "again")
	x.hold("a")
	x.hold("app1")
	x.awaitClock(c.At.UnixMilli() + brief)
	x.claims("a:b:c:stored deadline payload of a:b:c:stored", "a:b:c:lapsed reclaim payload of a:b:c:lapsed")
	x.stateIs("a:b:c:released", "held payload of a:b:c:released")
	x.stateIs(k, "held again")
}

// A hold ends by itself at its time.
func TestHoldUntil(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	l := x.list()
	until := l.Now + 400
	if err := l.Put(t.Context(),
		schedule.Hold{Namespace: namespace(t, "app1"), Since: l.Now, Until: until}); err != nil {
		t.Fatal(err)
	}
	x.becomeDue(k)
	x.claims()
	x.stateIs(k, "held payload of "+k)
	x.awaitClock(int64(until))
	x.becomeDue(k + "2")
	x.claims(k + "2 deadline payload of " + k + "2")
}

// A hold of a namespace with quotes and brackets, as version 85ce861 has stored it, is in force, and can be changed
// and removed.
func TestHoldsOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("HSET", keys.Single.Holds(), ":generation:", "1", `"sh|op":[a]`, `{"since":1,"reason":"older"}`)
	n := keys.Namespace{App: `"sh|op"`, Module: "[a]"}
	l := x.list()
	if h := l.Find(n); h == nil || h.Reason != "older" ||
		!l.Covers(keys.Key{App: n.App, Module: n.Module, Type: "t", ID: "1"}, 1) {
		t.Fatalf("the holds are %+v", l.Holds)
	}
	fields := func(want ...string) {
		t.Helper()
		got := x.rdb.HKeys(t.Context(), keys.Single.Holds()).Val()
		got = slices.DeleteFunc(got, func(name string) bool { return name[0] == ':' })
		if !slices.Equal(got, want) {
			t.Errorf("the fields are %q, want %q", got, want)
		}
	}
	changed := *l.Find(n)
	changed.Reason = "newer"
	if err := l.Put(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	fields("%22sh%7Cop%22:%5Ba%5D")
	// A timerd of that version changes it beside this one.
	x.do("HSET", keys.Single.Holds(), `"sh|op":[a]`, `{"since":1,"reason":"older"}`)
	l = x.list()
	if len(l.Holds) != 1 || l.Holds[0].Reason != "newer" {
		t.Errorf("the holds are %+v", l.Holds)
	}
	if err := l.Remove(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	fields()
}
