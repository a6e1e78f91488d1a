package holds_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// Released at a rate, by two timerds, though the command and a timerd are killed in the middle.
func TestResumeAtARate(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	a := s.Start()
	s.Start()
	c := s.Collect()
	s.Says(0, "hold shop")
	const n, rate = 1200, 200 // a second
	want := s.SetMany("shop", n, 100*time.Millisecond)
	s.Holds("shop", n)
	began, watch := time.UnixMilli(s.Now()), testenv.StartStopwatch()
	cmd, _ := s.Command("resume", "shop", "--rate", "200/s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(system.Patience, system.AtLeast(100))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	a.Kill()
	all := s.Expect(c, want...)
	slices.SortFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	const within = 4 * time.Second
	ahead := time.Duration(0) // of the rate, where most have fired within a time
	for i := range all {
		n := 0
		for n < len(all)-i && all[i+n].Time.Sub(all[i].Time) < within {
			n++
		}
		ahead = max(ahead, time.Duration(n-1)*time.Second/rate-within)
		if least := time.Duration(i) * time.Second / rate * 9 / 10; all[i].Time.Sub(began) < least {
			t.Fatalf("%d had fired %v after the resume was asked for, want that after %v", i+1, all[i].Time.Sub(began),
				least)
		}
	}
	watch.Late(t, ahead, within/10, "firings are ahead of the rate") // timers delayed by a stall fire after it
	s.Settled()
}

// Shifted by the length of the hold, to the ms, though timerds are killed in the middle.
func TestResumeShifts(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	a := s.Start()
	c := s.Collect()
	s.Says(0, "hold shop")
	since := s.HeldNow()[0].Since
	want, due := s.SetManyDue("shop", 400, 3*time.Second)
	s.Holds("shop", 400)
	s.Do("FCALL", "timer_set", 1, "shop:m:t:3", "newer", "PX", 4000)
	cmd, _ := s.Command("resume", "shop", "--shift")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, system.Patience, func() bool {
		hold, ok := s.Do("HGET", "timerd:{t}:holds", "shop").(string) // not ok: the resume is over already
		return !ok || len(hold) > 100
	}, "the resume to be noted")
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	a.Kill()
	s.Start()
	all := s.Expect(c, append(want, "shop:m:t:3=newer")...)
	shift := int64(0)
	for _, e := range all {
		if string(e.Data) == `"newer"` || string(e.Data) == "newer" {
			continue
		}
		by := e.Due.UnixMilli() - due[e.Key.String()]
		if shift == 0 {
			shift = by
		}
		if by != shift {
			t.Errorf("%s was shifted by %d ms, another one by %d", e.ID, by, shift)
		}
	}
	if longest := time.Since(since).Milliseconds(); shift <= 0 || shift > longest {
		t.Errorf("shifted by %d ms, want the length of the hold, at most %d", shift, longest)
	}
	testenv.Eventually(t, system.Patience, func() bool { return len(s.HeldNow()) == 0 }, "the resume to be over")
	s.Settled()
}

// What the Go client holds and begins to resume, the timerds hold and release, though one is stopped and another is
// killed.
func TestHoldsOfTheGoClient(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	a, b := s.Start(), s.Start()
	c := s.Collect()
	operator := admin.New(s.RDB)
	b.Signal(syscall.SIGSTOP)
	held, err := operator.Hold(t.Context(), "shop", admin.Reason("outage"))
	if err != nil || held.Already {
		t.Fatalf("Hold = %+v, %v", held, err)
	}
	want := s.SetMany("shop", 600, 100*time.Millisecond)
	b.Signal(syscall.SIGCONT)
	s.Holds("shop", 600)
	if v := s.HeldNow()[0]; v.Reason != "outage" || !strings.Contains(v.By, "@") || !v.Since.Equal(held.Since) {
		t.Errorf("holds --json: %+v, want that of the client since %v", v, held.Since)
	}
	ctx, cancel := context.WithCancel(t.Context())
	resumed, began := make(chan error, 1), time.UnixMilli(s.Now())
	go func() { resumed <- operator.Resume(ctx, "shop", admin.ResumeRate(150)) }()
	c.WaitFunc(system.Patience, system.AtLeast(50))
	cancel()
	if err := <-resumed; !errors.Is(err, context.Canceled) {
		t.Errorf("Resume = %v, want it interrupted", err)
	}
	a.Kill()
	all := s.Expect(c, want...)
	slices.SortFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	if took, want := all[599].Time.Sub(began), 600*time.Second/150; took < want*9/10 {
		t.Errorf("600 at 150 a second took %s, want %s", took, want)
	}
	testenv.Eventually(t, system.Patience, func() bool { return len(s.HeldNow()) == 0 }, "the resume to be over")
	s.Settled()
}

// Overlapping holds, one with an end of its own, by a virtual clock.
func TestHoldsOverlapAndEnd(t *testing.T) {
	t.Parallel()
	s := system.NewVirtual(t)
	c := s.Collect()
	s.Says(0, "hold shop --for 12h --reason short")
	until := s.HeldNow()[0].Until.UnixMilli()
	s.Says(0, "hold shop:order")
	s.Do("FCALL", "timer_set", 1, "shop:order:t:1", "order", "PX", system.Hour)
	s.Do("FCALL", "timer_set", 1, "shop:basket:t:1", "basket", "PX", system.Hour)
	s.Advance(11 * time.Hour)
	s.Holds("shop", 2)
	s.Advance(time.Hour)
	if e := s.Expect(c, "shop:basket:t:1=basket")[0]; e.Time.UnixMilli() < until {
		t.Errorf("%s fired at %v, want it after the hold that ends at %v", e.ID, e.Time, time.UnixMilli(until))
	}
	s.Holds("shop:order", 1)
	s.Says(0, "resume shop:order", "shop:order resumed")
	s.Expect(c, "shop:basket:t:1=basket", "shop:order:t:1=order")
	s.Settled()
}

// A hold survives a restart of Redis and of timerd, with its end.
func TestHoldSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.Says(0, "hold shop --for 1h --reason long")
	s.Do("FCALL", "timer_set", 1, "shop:order:t:1", "order", "PX", 300)
	s.Holds("shop", 1)
	before := s.HeldNow()[0].Until
	p.Kill()
	s.Redis.Kill()
	s.Redis.Start()
	s.Start()
	s.Holds("shop", 1)
	if after := s.HeldNow()[0].Until; !after.Equal(*before) {
		t.Errorf("it ends at %v, want %v", after, before)
	}
	least := s.Now() + 2000
	s.Says(0, "hold pay --for 2s")
	s.Do("FCALL", "timer_set", 1, "pay:order:t:1", "end", "PX", 1)
	if e := s.Expect(c, "pay:order:t:1=end")[0]; e.Time.UnixMilli() < least {
		t.Errorf("%s fired at %v, want it after %v: at the end of the hold", e.ID, e.Time, time.UnixMilli(least))
	}
	s.Says(0, "resume shop", "shop resumed")
	s.Expect(c, "pay:order:t:1=end", "shop:order:t:1=order")
	s.Settled()
}

// Held timers become dead letters, once each, through kills, and while TIMERS_DEAD takes none at first.
func TestResumeToDeadLetters(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	dead := testenv.Collect(t, s.JS, "TIMERS_DEAD")
	s.LimitDead(1)
	s.Says(0, "hold shop")
	want := s.SetMany("shop", 300, 300*time.Millisecond)
	s.Holds("shop", 300)
	cmd, _ := s.Command("resume", "shop", "--dead")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.Do("FCALL", "timer_set", 1, "other:m:t:1", "free", "PX", 1000)
	s.Expect(c, "other:m:t:1=free") // though no letter is taken
	p.Kill()
	s.Start()
	s.LimitDead(-1)
	areHeldLetters(s, dead, want)
	s.Expect(c, "other:m:t:1=free")
	if err := cmd.Wait(); err != nil {
		t.Errorf("resume: %v", err)
	}
	s.Settled()
}

// areHeldLetters waits for the dead letters of held timers, and checks that there are no others.
func areHeldLetters(s *system.System, dead *testenv.Collector, want []string) {
	s.T.Helper()
	var got []string
	for _, m := range dead.Wait(len(want), system.Patience) {
		e, err := event.Parse(m.Data)
		if err != nil || e.Type != event.TypeDead || e.DeadReason != event.ReasonHeld {
			s.T.Fatalf("letter %s: %v", m.Data, err)
		}
		got = append(got, system.Payloads([]event.Event{e})...)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.T.Errorf("dead letters of %q, want %q", got, want)
	}
}

// A resume that begins while NATS is away, and so before timerd has looked at the due timers, covers these too,
// although another hold already covers some.
func TestResumeBeforeAnyClaim(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	dead := testenv.Collect(t, s.JS, "TIMERS_DEAD")
	s.Says(0, "hold shop")
	s.SetMany("shop", 1, 100*time.Millisecond)
	s.Holds("shop", 1)
	s.NATS.Stop()
	s.Says(0, "hold pay")
	want := s.SetMany("pay", 300, 300*time.Millisecond)
	testenv.Eventually(t, system.Patience, func() error {
		if left := s.RDB.PTTL(t.Context(), "pay:m:t:298").Val(); left > 0 {
			return fmt.Errorf("the last one is due in %s", left)
		}
		return nil
	}, "the timers to be due")
	cmd, _ := s.Command("resume", "pay", "--dead")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, system.Patience, func() bool {
		return s.RDB.Exists(t.Context(), keys.Single.Resuming()).Val() == 1
	}, "the resume to begin")
	s.NATS.Start()
	areHeldLetters(s, dead, want)
	if err := cmd.Wait(); err != nil {
		t.Errorf("resume: %v", err)
	}
	s.Says(0, "resume shop")
	s.Expect(c, "shop:m:t:0=0")
	s.Settled()
}
