package holds_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// A timerd that was stopped before the hold, and is the only one left when it wakes, claims nothing of the namespace:
// the server judges, and no heartbeat of the stopped one is waited for.
func TestStoppedTimerdWakesUnderAHold(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	awake, stopped := s.Start(), s.Start()
	c := s.Collect()
	stopped.Signal(syscall.SIGSTOP)
	watch := testenv.StartStopwatch()
	s.Says(0, "hold shop", "shop held")
	watch.AtMost(t, 5*time.Second, "the hold")
	awake.Kill()
	var held, others []string
	for i := range 300 {
		s.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:m:t:", i), i, "PX", 300)
		s.Do("FCALL", "timer_set", 1, fmt.Sprint("other:m:t:", i), i, "PX", 300)
		held, others = append(held, fmt.Sprintf("shop:m:t:%d=%[1]d", i)),
			append(others, fmt.Sprintf("other:m:t:%d=%[1]d", i))
	}
	s.After(s.Now() + 400)
	stopped.Signal(syscall.SIGCONT)
	s.Expect(c, others...)
	s.Holds("shop", int64(len(held)))
	s.Expect(c, others...)
	s.Says(0, "resume shop", "shop resumed")
	s.Expect(c, append(held, others...)...)
	s.Settled()
}

// The limit on lateness counts from the true due time: after a plain resume a timer over the limit is a dead letter, or
// dropped. After a shift it is in time again. The clock is a virtual one.
func TestLateUnderAHold(t *testing.T) {
	t.Parallel()
	s := system.NewVirtual(t)
	c := s.Collect()
	const limit = time.Hour
	s.Says(0, "hold plain")
	s.Says(0, "hold shifted")
	set := s.Now() + system.Hour
	for _, app := range []string{"plain", "shifted"} {
		for id, options := range map[string][]any{"dead": {"LATE", limit.Milliseconds()},
			"drop": {"LATE", limit.Milliseconds(), "DROP"}, "patient": {"LATE", 24 * system.Hour}, "none": nil} {
			s.Do(append([]any{"FCALL", "timer_set", 1, app + ":m:t:" + id, id, "PXAT", set}, options...)...)
		}
	}
	s.Advance(time.Hour)
	s.Holds("plain", 4)
	s.Holds("shifted", 4)
	s.Advance(limit)
	s.Says(0, "get plain:m:t:dead", "state    held")
	s.Says(0, "resume plain", "plain resumed")
	s.Says(0, "resume shifted --shift", "shifted resumed")
	s.Advance(2 * time.Hour) // they were on hold for two hours, and are due as much later

	all := s.Expect(c, "plain:m:t:patient=patient", "plain:m:t:none=none",
		"shifted:m:t:dead=dead", "shifted:m:t:drop=drop", "shifted:m:t:patient=patient", "shifted:m:t:none=none")
	for _, e := range all {
		if due := e.Due.UnixMilli(); (e.Key.App == "plain") != (due == set) {
			t.Errorf("%s was due at %d, set for %d", e.ID, due, set)
		}
	}
	letter := s.Late(1)["dead"]
	var by, most time.Duration
	reason := strings.NewReplacer(event.ReasonLate, "", ":", "", ",", "", "after its due time", "", "at most",
		"").Replace(letter.DeadReason)
	if words := strings.Fields(reason); len(words) == 2 {
		by, _ = time.ParseDuration(words[0])
		most, _ = time.ParseDuration(words[1])
	}
	if letter.Key.App != "plain" || by <= limit || most != limit {
		t.Errorf("the letter of %s says %q", letter.Key, letter.DeadReason)
	}
	s.Timerd.Measures(true, `timerd_late_total\{action="dead"\} 1`)
	s.Timerd.Measures(true, `timerd_late_total\{action="drop"\} 1`)
	s.Settled()
}

// While NATS is away no timerd looks at timers that become due. The number on hold is still shown, or as unknown.
func TestHeldWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	s.NATS.Stop()
	s.Says(0, "hold shop")
	want := s.SetMany("shop", 300, 100*time.Millisecond)
	other := s.SetMany("other", 1, 100*time.Millisecond)
	s.After(s.Now() + 700)
	s.Holds("shop", 300)
	s.Says(1, "status", " 300 held, 1 owed, ", "owed for longest: other:m:t:0, ")
	s.Says(1, "status --json", `"held":300`)

	want = append(want, s.SetMany("pay", 1500, 100*time.Millisecond)...)
	s.After(s.Now() + 700)
	said := s.Says(1, "status", " ? held, ", "some of those owed may be held")
	if strings.Contains(said, " 0 held") {
		t.Errorf("status:\n%s", said)
	}
	var report status.Report
	if err := json.Unmarshal([]byte(s.Says(1, "status --json")), &report); err != nil || report.Redis.Held != nil ||
		report.Redis.Nodes[0].Held != nil {
		t.Errorf("%+v, %v", report.Redis, err)
	}
	s.Holds("shop", 300) // which reads all of it

	s.NATS.Start()
	s.Expect(c, append(other, want[300:]...)...)
	s.Holds("shop", 300)
	s.StatusSays(0, " 300 held, 0 owed, ")
	s.Says(0, "resume shop")
	s.Expect(c, append(other, want...)...)
	s.Settled()
}
