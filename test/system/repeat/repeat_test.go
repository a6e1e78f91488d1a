package repeat_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// Every 100 ms, with two timerds, one of them killed each second. With CATCHUP there is an event for each point of the
// grid; without it, points are missing only where an occurrence waited for the lease of a dead timerd. None is in the
// stream twice.
func TestRepetitionThroughCrashes(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	const lease, every, kills = int64(1000), int64(100), 5
	s.Env["TIMERD_LEASE"] = "1s"
	p, other := s.Start(), s.Start()
	c := s.Collect()
	const whole, gaps = "shop:stock:count:whole", "shop:stock:count:gaps"
	first := map[string]int64{whole: s.Repeats(whole, "p", every, "CATCHUP", system.Hour),
		gaps: s.Repeats(gaps, "p", every)}
	for n := range int64(kills) {
		s.After(first[whole] + (n+1)*1000)
		p.Kill()
		p, other = other, s.Launch()
	}
	end := first[whole] + (kills+3)*1000
	s.After(end)
	testenv.Eventually(t, system.Patience, func() bool {
		return s.RDB.PExpireTime(t.Context(), whole).Val().Milliseconds() > end &&
			s.RDB.PExpireTime(t.Context(), gaps).Val().Milliseconds() > end
	}, "both to be on time again")
	for _, key := range []string{whole, gaps} {
		s.Do("FCALL", "timer_cancel", 1, key)
	}
	s.Settled()
	all := s.Events(c, len(c.All()))
	for _, key := range []string{whole, gaps} {
		n, points := onGrid(s, all, key, first[key], every)
		if skipped := points - n; key == whole && skipped > 0 || skipped > kills*(lease+2000)/every ||
			points < (end-first[key])/every {
			t.Errorf("%s: %d of %d points are missing", key, skipped, points)
		}
	}
	c.Stays(len(all), 300*time.Millisecond)
	p.Stop()
	other.AwaitReady(true)
	other.Stop()
}

// onGrid checks that the events of a key are points of its grid in their order, numbered from 1 on. It returns how many
// there are, and of how many points up to the last one.
func onGrid(s *system.System, all []event.Event, key string, first, every int64) (n, points int64) {
	s.T.Helper()
	for _, e := range all {
		if e.Key.String() != key {
			continue
		}
		n++
		at := e.Due.UnixMilli() - first
		if e.Occurrence != n || at%every != 0 || at/every < points {
			s.T.Fatalf("%s: event %d is occurrence %d, due %d ms after the first; the one before was point %d", key, n,
				e.Occurrence, at, points)
		}
		points = at/every + 1
	}
	s.T.Logf("%s: %d events for %d points", key, n, points)
	return n, points
}

// While NATS is away the occurrence that is pending waits. Then those of CATCHUP come, in their order.
func TestRepetitionWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	const every, away = 100, 3000
	const whole, some, gaps = "shop:stock:count:whole", "shop:stock:count:some", "shop:stock:count:gaps"
	first := map[string]int64{
		whole: s.Repeats(whole, "p", every, "CATCHUP", system.Hour),
		some:  s.Repeats(some, "p", every, "CATCHUP", away/2), gaps: s.Repeats(gaps, "p", every),
	}
	c.WaitFunc(system.Patience, system.AtLeast(30))
	s.NATS.Stop()
	s.After(s.Now() + away)
	s.NATS.Start()
	back := s.Now()
	testenv.Eventually(t, system.Patience, func() bool {
		return s.RDB.PExpireTime(t.Context(), whole).Val().Milliseconds() > back+1000
	}, "it to have caught up")
	for key := range first {
		s.Do("FCALL", "timer_cancel", 1, key)
	}
	s.Settled()
	all := s.Events(c, len(c.All()))
	skipped := map[string]int64{}
	for key, at := range first {
		n, points := onGrid(s, all, key, at, every)
		skipped[key] = points - n
	}
	if skipped[whole] > 0 || skipped[some] < 5 || skipped[gaps] < skipped[some]+5 || skipped[gaps] < away/every-2 {
		t.Errorf("missing: %v", skipped)
	}
	p.Stop()
}

// Without keyspace events, an occurrence armed by a settlement is still claimed on time, and not by the next sweep.
func TestRepetitionWithoutEvents(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start("TIMERD_KEYSPACE_EVENTS=off")
	c := s.Collect()
	const key, every, times = "shop:stock:count:1", 100, 40
	s.Repeats(key, "p", every, "TIMES", times)
	all := s.Events(c, times)
	second := all[1].Due.UnixMilli() // a sweep found the first
	if points := (all[times-1].Due.UnixMilli()-second)/every + 1; points > 2*times {
		t.Errorf("%d occurrences took %d points of the grid", times-1, points)
	}
	s.Settled()
	p.Stop()
}

// Occurrences missed while no timerd ran are skipped and counted, except the pending one.
func TestRepetitionAfterAPause(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	p.Stop()
	first := s.Do("FCALL", "timer_repeat", 1, "shop:stock:count:1", "", "EVERY", 200, "TIMES", 3).(int64)
	s.After(first + 1100)
	c := s.Collect()
	p = s.Start()
	all := s.Events(c, 3)
	if due := all[0].Due.UnixMilli(); due != first {
		t.Errorf("the first one is due at %d, want %d: the pending one", due, first)
	}
	if wait := all[1].Due.UnixMilli() - first; wait < 1100 || wait%200 != 0 {
		t.Errorf("the second one is due %d ms after the first, want more than 1100 of the grid", wait)
	}
	s.Settled()
	_, metrics, err := p.Get("/metrics")
	if err != nil || !strings.Contains(metrics, "timerd_occurrences_skipped_total ") ||
		strings.Contains(metrics, "timerd_occurrences_skipped_total 0\n") {
		t.Errorf("the metrics do not count the skipped ones: %v", err)
	}
}

// While a namespace is held, one occurrence waits.
func TestHeldRepetition(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.Says(0, "hold shop")
	first := s.Do("FCALL", "timer_repeat", 1, "shop:stock:count:1", "", "EVERY", 100, "TIMES", 2).(int64)
	s.After(first + 500)
	testenv.Eventually(t, system.Patience, func() bool {
		return strings.Contains(s.Says(0, "ls --json"),
			`"state":"held"`)
	}, "it to be held")
	if n := strings.Count(s.Says(0, "ls --json"), "\n"); n != 1 {
		t.Errorf("%d timers wait, want 1", n)
	}
	c.Stays(0, 100*time.Millisecond)
	s.Says(0, "resume shop")
	if due := s.Events(c, 2)[0].Due.UnixMilli(); due != first {
		t.Errorf("the first one is due at %d, want %d", due, first)
	}
	s.Settled()
	p.Stop()
}

// Whatever repeats fast, a hold and then a cancellation end all of a namespace.
func TestHeldRepetitionsAreCancelled(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	for i := range 200 {
		s.Repeats(fmt.Sprintf("shop:stock:count:%d", i), "", 100)
	}
	c.WaitFunc(system.Patience, system.AtLeast(400))
	s.Says(0, "hold shop")
	s.Says(0, "cancel --all shop --yes", " cancelled, ")
	s.Says(0, "resume shop")
	s.Settled()
	if n := s.Do("EXISTS", keys.Single.Repeat()); n != int64(0) {
		t.Error("something repeats")
	}
	c.Stays(len(c.All()), 300*time.Millisecond)
	p.Stop()
}
