package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Every 100 ms, with two timerds of which one is killed each second. With CATCHUP there is an event for each point of the grid;
// without it, points are missing only where an occurrence waited for the lease of a dead timerd. None is in the stream twice.
func TestRepetitionThroughCrashes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	const lease, every, kills = int64(1000), int64(100), 5
	s.env["TIMERD_LEASE"] = "1s"
	p, other := s.start(), s.start()
	c := s.collect()
	const whole, gaps = "shop:stock:count:whole", "shop:stock:count:gaps"
	first := map[string]int64{whole: s.repeats(whole, "p", every, "CATCHUP", hour), gaps: s.repeats(gaps, "p", every)}
	for n := range int64(kills) {
		s.after(first[whole] + (n+1)*1000)
		p.kill()
		p, other = other, s.launch()
	}
	end := first[whole] + (kills+3)*1000
	s.after(end)
	testenv.Eventually(t, patience, func() bool {
		return s.rdb.PExpireTime(t.Context(), whole).Val().Milliseconds() > end && s.rdb.PExpireTime(t.Context(), gaps).Val().Milliseconds() > end
	}, "both to be on time again")
	for _, key := range []string{whole, gaps} {
		s.do("FCALL", "timer_cancel", 1, key)
	}
	s.settled()
	all := s.events(c, len(c.All()))
	for _, key := range []string{whole, gaps} {
		n, points := s.onGrid(all, key, first[key], every)
		if skipped := points - n; key == whole && skipped > 0 || skipped > kills*(lease+2000)/every || points < (end-first[key])/every {
			t.Errorf("%s: %d of %d points are missing", key, skipped, points)
		}
	}
	c.Stays(len(all), 300*time.Millisecond)
	p.stop()
	other.awaitReady(true)
	other.stop()
}

// onGrid checks that the events of a key are points of its grid in their order, numbered from 1 on. It returns how many there are,
// and of how many points up to the last one.
func (s *system) onGrid(all []event.Event, key string, first, every int64) (n, points int64) {
	s.t.Helper()
	for _, e := range all {
		if e.Key.String() != key {
			continue
		}
		n++
		at := e.Due.UnixMilli() - first
		if e.Occurrence != n || at%every != 0 || at/every < points {
			s.t.Fatalf("%s: event %d is occurrence %d, due %d ms after the first; the one before was point %d", key, n, e.Occurrence, at, points)
		}
		points = at/every + 1
	}
	s.t.Logf("%s: %d events for %d points", key, n, points)
	return n, points
}

// While NATS is away the occurrence that is pending waits. Then those of CATCHUP come, in their order.
func TestRepetitionWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	const every, away = 100, 3000
	const whole, some, gaps = "shop:stock:count:whole", "shop:stock:count:some", "shop:stock:count:gaps"
	first := map[string]int64{
		whole: s.repeats(whole, "p", every, "CATCHUP", hour), some: s.repeats(some, "p", every, "CATCHUP", away/2), gaps: s.repeats(gaps, "p", every),
	}
	c.WaitFunc(patience, atLeast(30))
	s.nats.Stop()
	s.after(s.now() + away)
	s.nats.Start()
	back := s.now()
	testenv.Eventually(t, patience, func() bool {
		return s.rdb.PExpireTime(t.Context(), whole).Val().Milliseconds() > back+1000
	}, "it to have caught up")
	for key := range first {
		s.do("FCALL", "timer_cancel", 1, key)
	}
	s.settled()
	all := s.events(c, len(c.All()))
	skipped := map[string]int64{}
	for key, at := range first {
		n, points := s.onGrid(all, key, at, every)
		skipped[key] = points - n
	}
	if skipped[whole] > 0 || skipped[some] < 5 || skipped[gaps] < skipped[some]+5 || skipped[gaps] < away/every-2 {
		t.Errorf("missing: %v", skipped)
	}
	p.stop()
}

// Without keyspace events, what a settlement armed is claimed on time all the same, and not by the next sweep.
func TestRepetitionWithoutEvents(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start("TIMERD_KEYSPACE_EVENTS=off")
	c := s.collect()
	const key, every, times = "shop:stock:count:1", 100, 40
	s.repeats(key, "p", every, "TIMES", times)
	all := s.events(c, times)
	second := all[1].Due.UnixMilli() // a sweep found the first
	if points := (all[times-1].Due.UnixMilli()-second)/every + 1; points > 2*times {
		t.Errorf("%d occurrences took %d points of the grid", times-1, points)
	}
	s.settled()
	p.stop()
}

// What was missed while no timerd ran is skipped and counted, but for the occurrence that was pending.
func TestRepetitionAfterAPause(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	p.stop()
	first := s.do("FCALL", "timer_repeat", 1, "shop:stock:count:1", "", "EVERY", 200, "TIMES", 3).(int64)
	s.after(first + 1100)
	c := s.collect()
	p = s.start()
	all := s.events(c, 3)
	if due := all[0].Due.UnixMilli(); due != first {
		t.Errorf("the first one is due at %d, want %d: what was pending", due, first)
	}
	if wait := all[1].Due.UnixMilli() - first; wait < 1100 || wait%200 != 0 {
		t.Errorf("the second one is due %d ms after the first, want more than 1100 of the grid", wait)
	}
	s.settled()
	_, metrics, err := p.get("/metrics")
	if err != nil || !strings.Contains(metrics, "timerd_occurrences_skipped_total ") || strings.Contains(metrics, "timerd_occurrences_skipped_total 0\n") {
		t.Errorf("the metrics do not count what was skipped: %v", err)
	}
}

// A repetition by the second, with a retry of an occurrence beside the next one, and a zone that nobody knows.
func TestCronIsPlannedAndFires(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=50ms"
	p := s.start()
	c := s.collect()
	testenv.SetVariables(t, s.env)
	out := ok(t, "repeat", "shop:report:daily:1", "--cron", "* * * * * *", "--tz", "Asia/Kathmandu", "--times", "2", "x")
	if strings.Count(out, "\n") != 3 || !strings.Contains(out, "+05:45") {
		t.Errorf("timerd repeat:\n%s", out)
	}
	const text = "cron * * * * * * Asia/Kathmandu"
	if out := ok(t, "ls", "--repeating"); !strings.Contains(out, text) {
		t.Errorf("timerd ls --repeating:\n%s", out)
	}
	e := s.events(c, 1)[0]
	if e.Repeat != text || e.Occurrence != 1 || e.Due.UnixMilli()%1000 != 0 {
		t.Errorf("the first event is %+v", e)
	}
	s.retry(c.All()[0])
	for _, e := range s.events(c, 3)[1:] {
		if want := int64(3 - e.Attempt); e.Repeat != text || e.Occurrence != want {
			t.Errorf("attempt %d is occurrence %d of %q, want %d", e.Attempt, e.Occurrence, e.Repeat, want)
		}
	}
	s.settled()
	s.do("FCALL", "timer_repeat", 1, "shop:report:daily:2", "x", "CRON", "@hourly", "TZ", "Europe/Berln")
	letter := s.letters(1)[0]
	if want := `repeat: zone "Europe/Berln" is not in the time zone database`; !strings.HasPrefix(letter.DeadReason, want) {
		t.Errorf("the reason is %q, want %s", letter.DeadReason, want)
	}
	s.settled()
	c.Stays(3, 100*time.Millisecond)
	p.stop()
}

// While a namespace is held, one occurrence waits.
func TestHeldRepetition(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	s.says(0, "hold shop")
	first := s.do("FCALL", "timer_repeat", 1, "shop:stock:count:1", "", "EVERY", 100, "TIMES", 2).(int64)
	s.after(first + 500)
	testenv.Eventually(t, patience, func() bool { return strings.Contains(s.says(0, "ls --json"), `"state":"held"`) }, "it to be held")
	if n := strings.Count(s.says(0, "ls --json"), "\n"); n != 1 {
		t.Errorf("%d timers wait, want 1", n)
	}
	c.Stays(0, 100*time.Millisecond)
	s.says(0, "resume shop")
	if due := s.events(c, 2)[0].Due.UnixMilli(); due != first {
		t.Errorf("the first one is due at %d, want %d", due, first)
	}
	s.settled()
	p.stop()
}

// Whatever repeats fast, a hold and then a cancellation end all of a namespace.
func TestHeldRepetitionsAreCancelled(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	for i := range 200 {
		s.repeats(fmt.Sprintf("shop:stock:count:%d", i), "", 100)
	}
	c.WaitFunc(patience, atLeast(400))
	s.says(0, "hold shop")
	s.says(0, "cancel --all shop --yes", " cancelled, ")
	s.says(0, "resume shop")
	s.settled()
	if n := s.do("EXISTS", keys.Single.Repeat()); n != int64(0) {
		t.Error("something repeats")
	}
	c.Stays(len(c.All()), 300*time.Millisecond)
	p.stop()
}

// In a cluster, keys of many slots repeat.
func TestClusterRepetitions(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false)
	p := s.start()
	c := s.collect()
	const n, times = 20, 3
	for i := range n {
		args := []any{"p", "EVERY", 300}
		if i%2 == 0 {
			args = []any{"p", "CRON", "* * * * * *"}
		}
		key := fmt.Sprintf("a:b:c:%d", i)
		s.try("set a timer that repeats", func() error {
			return s.client.FCall(t.Context(), "timer_repeat", []string{key}, append(args, "TIMES", times)...).Err()
		})
	}
	counts := map[string]int64{}
	for _, e := range s.events(c, n*times) {
		counts[e.Key.ID]++
		if e.Occurrence != counts[e.Key.ID] {
			t.Errorf("event %d of %s is occurrence %d", counts[e.Key.ID], e.Key, e.Occurrence)
		}
	}
	s.emptied()
	c.Stays(n*times, 200*time.Millisecond)
	p.stop()
}
