package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// The grid survives kill -9: none is doubled, and what is not there was missed and counted, or fell into the kill.
func TestRepetitionThroughCrashes(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_LEASE"] = "1s"
	p, other := s.start(), s.start()
	c := s.collect()
	const key, every, times = "shop:stock:count:1", 100, 40
	first := s.do("FCALL", "timer_repeat", 1, key, `{"all":true}`, "EVERY", every, "TIMES", times, "CATCHUP", 60_000).(int64)
	for n := 1; n <= 3; n++ {
		c.Wait(10*n, patience)
		p.kill()
		p, other = other, s.start()
	}
	for i, e := range s.events(c, times) {
		if e.Repeat != "every 100ms" || e.Occurrence != int64(i+1) || e.Due.UnixMilli() != first+int64(i)*every || string(e.Data) != `{"all":true}` {
			t.Errorf("event %d is occurrence %d of %q, due %d ms after the first", i+1, e.Occurrence, e.Repeat, e.Due.UnixMilli()-first)
		}
	}
	s.settled()
	if n := s.do("EXISTS", key, "timerd:{t}:repeat"); n != int64(0) {
		t.Error("the repetition is not over")
	}
	c.Stays(times, 300*time.Millisecond)
	p.stop()
	other.stop()
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
