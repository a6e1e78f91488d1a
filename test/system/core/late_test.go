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
	s.Env["TIMERD_LATE"] = "shop:otp=200ms drop; shop=400ms; *=0"
	p := s.Start()
	c := s.Collect()
	const plain = "shop:order:timeout:plain"
	due := s.Expires(plain, "SET", plain, "plain", "PX", system.Soon)
	s.Adopted(plain)
	p.Stop()
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:default", `{"order":1}`, "PX", 500)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:own", `{"order":2}`, "PX", 500, "LATE", 300)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:patient", `{"order":3}`, "PX", 500, "LATE", 3600000)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:always", `{"order":4}`, "PX", 500, "LATE", 0)
	s.Do("FCALL", "timer_set", 1, "shop:otp:sms:dropped", `{"order":5}`, "PX", 500)
	s.Do("FCALL", "timer_set", 1, "other:order:timeout:other", `{"order":6}`, "PX", 500)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:extended", `{"order":7}`, "PX", system.Soon, "LATE", 1000, "DROP")
	s.Do("PEXPIRE", "shop:order:timeout:extended", 600_000)
	s.After(due + 500)
	p = s.Start()

	s.Expect(c, `shop:order:timeout:patient={"order":3}`, `shop:order:timeout:always={"order":4}`,
		`other:order:timeout:other={"order":6}`)
	letters := s.Late(3)
	for id, most := range map[string]string{"plain": "400ms", "default": "400ms", "own": "300ms"} {
		if e := letters[id]; !strings.HasSuffix(e.DeadReason, " after its due time, at most "+most) {
			t.Errorf("%s: the reason is %q", id, e.DeadReason)
		}
	}
	if got := letters["own"].Late; got != (policy.Limit{Given: true, Most: 300 * time.Millisecond}) {
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
			e.Subjects[0] == "shop:otp:sms:dropped" && e.Time.Sub(e.Due) > 200*time.Millisecond
	}, "the dropped timer in the history")
	if log := p.Log.String(); !strings.Contains(log, "timers are too late to fire") {
		t.Error("the log says nothing of them")
	}
}

// A retry has the limit of its timer, counted from its own due time, and a replay of a late timer fires however late.
// The clock is a virtual one, and the retry is late after a hold.
func TestRetriesAndReplaysOfTimersWithLimits(t *testing.T) {
	t.Parallel()
	s := system.NewVirtual(t, "TIMERD_RETRY=*=1s,1s,1s", "TIMERD_LATE=*=1ms")
	c := s.Collect()
	const key, limit = "a:b:c:d", time.Hour
	due := s.Do("FCALL", "timer_set", 1, key, "x", "PX", system.Hour, "LATE", limit.Milliseconds(), "DROP").(int64)
	want := policy.Limit{Given: true, Most: limit, Drop: true}
	s.Advance(time.Hour)
	if e := s.Events(c, 1)[0]; e.Late != want || e.Due.UnixMilli() != due {
		t.Errorf("the event is %+v, want it due at %d with the limit %+v", e, due, want)
	}
	// Long after the first due time the retry is on time.
	from, to := s.Retry(c.All()[0], "Timer-Delay", "72h")
	s.Advance(73 * time.Hour)
	e := s.Events(c, 2)[1]
	if asked := e.Due.Add(-72 * time.Hour); e.Late != want || e.Attempt != 2 || asked.Before(from) ||
		asked.After(to.Add(time.Millisecond)) {
		t.Errorf("the retry is %+v, want the limit %+v, asked for from %v to %v", e, want, from, to)
	}
	s.Settled()
	s.Retry(c.All()[1], "Timer-Delay", "3h")
	s.NoRequests()
	// Without DROP this time.
	record := fmt.Sprint(s.Do("HGET", "timerd:{t}:data", key))
	s.Do("HSET", "timerd:{t}:data", key, strings.Replace(record, ";D=", ";L=", 1))
	s.Says(0, "hold a")
	s.Advance(3*time.Hour + limit + time.Second)
	c.Stays(2, 100*time.Millisecond)
	s.Says(0, "resume a")
	letter := s.Late(1)["d"]
	if letter.Attempt != 3 || letter.Late != (policy.Limit{Given: true, Most: limit}) ||
		!strings.HasSuffix(letter.DeadReason, ", at most 1h0m0s") {
		t.Errorf("the dead letter is %+v", letter)
	}

	s.Says(0, "dead replay --id "+letter.ID+" --yes", "\n1 replayed, 0 skipped\n")
	replay := s.Events(c, 3)[2]
	if string(replay.Data) != "x" || replay.Attempt != 1 || replay.Late != (policy.Limit{Given: true}) {
		t.Errorf("the replay is %+v", replay)
	}
	s.Settled()
	s.Advance(1000 * time.Hour)
	c.Stays(3, 100*time.Millisecond)
}
