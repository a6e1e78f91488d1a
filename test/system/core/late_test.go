package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// Timers that became due while no timerd ran do not fire beyond their limits, their own or that of their namespace. A
// replay does.
func TestTimersThatAreTooLate(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_LATE"] = "shop:otp=1s drop; shop=1500ms; *=0"
	p := s.Start()
	c := s.Collect()
	const plain = "shop:order:timeout:plain"
	due := s.Expires(plain, "SET", plain, "plain", "PX", 4000)
	s.Adopted(plain)
	p.Stop()
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:default", `{"order":1}`, "PX", 500)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:own", `{"order":2}`, "PX", 500, "LATE", 1000)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:patient", `{"order":3}`, "PX", 500, "LATE", 3600000)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:always", `{"order":4}`, "PX", 500, "LATE", 0)
	s.Do("FCALL", "timer_set", 1, "shop:otp:sms:dropped", `{"order":5}`, "PX", 500)
	s.Do("FCALL", "timer_set", 1, "other:order:timeout:other", `{"order":6}`, "PX", 500)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:extended", `{"order":7}`, "PX", 500, "LATE", 1000, "DROP")
	s.Do("PEXPIRE", "shop:order:timeout:extended", 600_000)
	s.After(due + 1600)
	p = s.Start()

	s.Expect(c, `shop:order:timeout:patient={"order":3}`, `shop:order:timeout:always={"order":4}`,
		`other:order:timeout:other={"order":6}`)
	letters := s.Late(3)
	for id, most := range map[string]string{"plain": "1.5s", "default": "1.5s", "own": "1s"} {
		if e := letters[id]; !strings.HasSuffix(e.DeadReason, " after its due time, at most "+most) {
			t.Errorf("%s: the reason is %q", id, e.DeadReason)
		}
	}
	if got := letters["own"].Late; got != (policy.Limit{Given: true, Most: time.Second}) {
		t.Errorf("the letter has the limit %+v", got)
	}
	if out := s.Do("FCALL_RO", "timer_get", 1, "shop:order:timeout:extended"); !strings.Contains(fmt.Sprint(out),
		"late 1000") {
		t.Errorf("timer_get of the timer that was extended: %v", out)
	}
	s.Do("FCALL", "timer_cancel", 1, "shop:order:timeout:extended")
	s.Settled()
	_, metrics, err := p.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`timerd_late_total{action="dead"} 3` + "\n", `timerd_late_total{action="drop"} 1` +
		"\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	js := s.NATS.JetStream()
	testenv.Eventually(t, time.Minute, func() bool {
		data, _, err := history.Last(t.Context(), js, "TIMERS_HISTORY", "timers.history.shop.otp.sms")
		e, fault := event.ParseEntry(data)
		return err == nil && fault == nil && e.Kind == event.EntryDropped && e.Attempt < 2 &&
			e.Subjects[0] == "shop:otp:sms:dropped" && e.Time.Sub(e.Due) > time.Second
	}, "the dropped timer in the history")
	if log := p.Log.String(); !strings.Contains(log, "timers are too late to fire") {
		t.Error("the log says nothing of them")
	}
}

// A retry has the limit of its timer, counted from its own due time, and a replay of a late timer fires however late.
func TestRetriesAndReplaysOfTimersWithLimits(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=1s,1s,1s"
	p := s.Start()
	c := s.Collect()
	const key, limit = "a:b:c:d", 2500 * time.Millisecond
	s.Do("FCALL", "timer_set", 1, key, "x", "PX", 100, "LATE", limit.Milliseconds(), "DROP")
	want := policy.Limit{Given: true, Most: limit, Drop: true}
	if e := s.Events(c, 1)[0]; e.Late != want {
		t.Errorf("the event has the limit %+v, want %+v", e.Late, want)
	}
	// Long after the first due time the retry is on time.
	s.Retry(c.All()[0], "Timer-Delay", "3s")
	if e := s.Events(c, 2)[1]; e.Late != want || e.Attempt != 2 {
		t.Errorf("the retry is %+v, want the limit %+v", e, want)
	}
	s.Settled()
	s.Retry(c.All()[1], "Timer-Delay", "3s")
	s.NoRequests()
	due := s.Due(key)
	p.Stop()
	s.After(due + limit.Milliseconds())
	// Without DROP this time.
	record := fmt.Sprint(s.Do("HGET", "timerd:{t}:data", key))
	s.Do("HSET", "timerd:{t}:data", key, strings.Replace(record, ";D=", ";L=", 1))
	s.Start("TIMERD_LATE=*=1ms")
	letter := s.Late(1)["d"]
	if letter.Attempt != 3 || letter.Late != (policy.Limit{Given: true, Most: limit}) ||
		!strings.HasSuffix(letter.DeadReason, ", at most 2.5s") {
		t.Errorf("the dead letter is %+v", letter)
	}

	if out := s.OK("dead", "replay", "--id", letter.ID, "--yes"); !strings.HasSuffix(out, "\n1 replayed, 0 skipped\n") {
		t.Fatalf("dead replay: %s", out)
	}
	replay := s.Events(c, 3)[2]
	if string(replay.Data) != "x" || replay.Attempt != 1 || replay.Late != (policy.Limit{Given: true}) {
		t.Errorf("the replay is %+v", replay)
	}
	s.Settled()
	c.Stays(3, 100*time.Millisecond)
}
