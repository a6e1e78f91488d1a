package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/late"
)

// late waits for exactly n dead letters of timers that were too late, and returns them by the ids of the timers.
func (s *system) late(n int) map[string]event.Event {
	s.t.Helper()
	all := map[string]event.Event{}
	for _, e := range s.letters(n) {
		if !strings.HasPrefix(e.DeadReason, event.ReasonLate) {
			s.t.Errorf("the reason of %s is %q", e.Key, e.DeadReason)
		}
		all[e.Key.ID] = e
	}
	return all
}

// Timers that became due while no timerd ran do not fire beyond their limits, their own or that of their namespace. A replay
// does.
func TestTimersThatAreTooLate(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_LATE"] = "shop:otp=1s drop; shop=1500ms; *=0"
	p := s.start()
	c := s.collect()
	const plain = "shop:order:timeout:plain"
	s.do("SET", plain, "plain", "PX", 3000)
	s.adopted(plain)
	p.stop()
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:default", `{"order":1}`, "PX", 500)
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:own", `{"order":2}`, "PX", 500, "LATE", 1000)
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:patient", `{"order":3}`, "PX", 500, "LATE", 3600000)
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:always", `{"order":4}`, "PX", 500, "LATE", 0)
	s.do("FCALL", "timer_set", 1, "shop:otp:sms:dropped", `{"order":5}`, "PX", 500)
	s.do("FCALL", "timer_set", 1, "other:order:timeout:other", `{"order":6}`, "PX", 500)
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:extended", `{"order":7}`, "PX", 500, "LATE", 1000, "DROP")
	s.do("PEXPIRE", "shop:order:timeout:extended", 600_000)
	s.after(s.due(plain) + 1600)
	p = s.start()

	s.expect(c, `shop:order:timeout:patient={"order":3}`, `shop:order:timeout:always={"order":4}`, `other:order:timeout:other={"order":6}`)
	letters := s.late(3)
	for id, most := range map[string]string{"plain": "1.5s", "default": "1.5s", "own": "1s"} {
		if e := letters[id]; !strings.HasSuffix(e.DeadReason, " after its due time, at most "+most) {
			t.Errorf("%s: the reason is %q", id, e.DeadReason)
		}
	}
	if got := letters["own"].Late; got != (late.Limit{Given: true, Most: time.Second}) {
		t.Errorf("the letter has the limit %+v", got)
	}
	if out := s.do("FCALL_RO", "timer_get", 1, "shop:order:timeout:extended"); !strings.Contains(fmt.Sprint(out), "late 1000") {
		t.Errorf("timer_get of the timer that was extended: %v", out)
	}
	s.do("FCALL", "timer_cancel", 1, "shop:order:timeout:extended")
	s.settled()
	_, metrics, err := p.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`timerd_late_total{action="dead"} 3` + "\n", `timerd_late_total{action="drop"} 1` + "\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	if log := p.log.String(); !strings.Contains(log, "timers are too late to fire") {
		t.Error("the log says nothing of them")
	}
}

// A retry has the limit of its timer, counted from its own due time, and a replay of what was too late fires however late.
func TestRetriesAndReplaysOfTimersWithLimits(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=1s,1s,1s"
	p := s.start()
	c := s.collect()
	const key, limit = "a:b:c:d", 2500 * time.Millisecond
	s.do("FCALL", "timer_set", 1, key, "x", "PX", 100, "LATE", limit.Milliseconds(), "DROP")
	want := late.Limit{Given: true, Most: limit, Drop: true}
	if e := s.events(c, 1)[0]; e.Late != want {
		t.Errorf("the event has the limit %+v, want %+v", e.Late, want)
	}
	// Long after the first due time the retry is on time.
	s.retry(c.All()[0], "Timer-Delay", "3s")
	if e := s.events(c, 2)[1]; e.Late != want || e.Attempt != 2 {
		t.Errorf("the retry is %+v, want the limit %+v", e, want)
	}
	s.settled()
	s.retry(c.All()[1], "Timer-Delay", "2s")
	s.noRequests()
	due := s.due(key)
	p.stop()
	s.after(due + limit.Milliseconds())
	// Without DROP this time.
	record := fmt.Sprint(s.do("HGET", "timerd:{t}:data", key))
	s.do("HSET", "timerd:{t}:data", key, strings.Replace(record, ";D=", ";L=", 1))
	s.start("TIMERD_LATE=*=1ms")
	letter := s.late(1)["d"]
	if letter.Attempt != 3 || letter.Late != (late.Limit{Given: true, Most: limit}) || !strings.HasSuffix(letter.DeadReason, ", at most 2.5s") {
		t.Errorf("the dead letter is %+v", letter)
	}

	testenv.SetVariables(t, s.env)
	if out := ok(t, "dead", "replay", "--id", letter.ID, "--yes"); !strings.HasSuffix(out, "\n1 replayed, 0 skipped\n") {
		t.Fatalf("dead replay: %s", out)
	}
	replay := s.events(c, 3)[2]
	if string(replay.Data) != "x" || replay.Attempt != 1 || replay.Late != (late.Limit{Given: true}) {
		t.Errorf("the replay is %+v", replay)
	}
	s.settled()
	c.Stays(3, 100*time.Millisecond)
}
