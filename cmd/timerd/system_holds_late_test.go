package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/status"
)

// A timerd that was stopped before the hold, and is the only one left when it wakes, claims nothing of the namespace: the server
// judges, and no heartbeat of the stopped one is waited for.
func TestStoppedTimerdWakesUnderAHold(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	awake, stopped := s.start(), s.start()
	c := s.collect()
	stopped.signal(syscall.SIGSTOP)
	began := time.Now()
	s.says(0, "hold shop", "shop held")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	awake.kill()
	var held, others []string
	for i := range 300 {
		s.do("FCALL", "timer_set", 1, fmt.Sprint("shop:m:t:", i), i, "PX", 300)
		s.do("FCALL", "timer_set", 1, fmt.Sprint("other:m:t:", i), i, "PX", 300)
		held, others = append(held, fmt.Sprintf("shop:m:t:%d=%[1]d", i)), append(others, fmt.Sprintf("other:m:t:%d=%[1]d", i))
	}
	s.after(s.now() + 400)
	stopped.signal(syscall.SIGCONT)
	s.expect(c, others...)
	s.holds("shop", int64(len(held)))
	s.expect(c, others...)
	s.says(0, "resume shop", "shop resumed")
	s.expect(c, append(held, others...)...)
	s.settled()
}

// The limit on lateness counts from the true due time: after a plain resume what is over it is a dead letter, or dropped. After
// a shift it is in time again.
func TestLateUnderAHold(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	const limit = 1500
	s.says(0, "hold plain")
	s.says(0, "hold shifted")
	set := s.now() + 5000
	for _, app := range []string{"plain", "shifted"} {
		for id, options := range map[string][]any{"dead": {"LATE", limit}, "drop": {"LATE", limit, "DROP"}, "patient": {"LATE", 3600_000}, "none": nil} {
			s.do(append([]any{"FCALL", "timer_set", 1, app + ":m:t:" + id, id, "PXAT", set}, options...)...)
		}
	}
	s.holds("plain", 4)
	s.holds("shifted", 4)
	s.after(set + limit)
	s.says(0, "get plain:m:t:dead", "state    held")
	s.says(0, "resume plain", "plain resumed")
	s.says(0, "resume shifted --shift", "shifted resumed")

	all := s.expect(c, "plain:m:t:patient=patient", "plain:m:t:none=none",
		"shifted:m:t:dead=dead", "shifted:m:t:drop=drop", "shifted:m:t:patient=patient", "shifted:m:t:none=none")
	for _, e := range all {
		if due := e.Due.UnixMilli(); (e.Key.App == "plain") != (due == set) {
			t.Errorf("%s was due at %d, set for %d", e.ID, due, set)
		}
	}
	letter := s.late(1)["dead"]
	var by, most time.Duration
	reason := strings.NewReplacer(event.ReasonLate, "", ":", "", ",", "", "after its due time", "", "at most", "").Replace(letter.DeadReason)
	if words := strings.Fields(reason); len(words) == 2 {
		by, _ = time.ParseDuration(words[0])
		most, _ = time.ParseDuration(words[1])
	}
	if letter.Key.App != "plain" || by <= limit*time.Millisecond || most != limit*time.Millisecond {
		t.Errorf("the letter of %s says %q", letter.Key, letter.DeadReason)
	}
	p.measures(true, `timerd_late_total\{action="dead"\} 1`)
	p.measures(true, `timerd_late_total\{action="drop"\} 1`)
	s.settled()
}

// While NATS is away no timerd looks at what becomes due. What is held of it is told all the same, or that it is not known.
func TestHeldWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	c := s.collect()
	s.nats.Stop()
	s.says(0, "hold shop")
	want := s.setMany("shop", 300, 100*time.Millisecond)
	other := s.setMany("other", 1, 100*time.Millisecond)
	s.after(s.now() + 700)
	s.holds("shop", 300)
	s.says(1, "status", " 300 held, 1 owed, ", "owed for longest: other:m:t:0, ")
	s.says(1, "status --json", `"held":300`)

	want = append(want, s.setMany("pay", 1500, 100*time.Millisecond)...)
	s.after(s.now() + 700)
	said := s.says(1, "status", " ? held, ", "of those owed some may be held")
	if strings.Contains(said, " 0 held") {
		t.Errorf("status:\n%s", said)
	}
	var report status.Report
	if err := json.Unmarshal([]byte(s.says(1, "status --json")), &report); err != nil || report.Redis.Held != nil || report.Redis.Nodes[0].Held != nil {
		t.Errorf("%+v, %v", report.Redis, err)
	}
	s.holds("shop", 300) // which reads all of it

	s.nats.Start()
	s.expect(c, append(other, want[300:]...)...)
	s.holds("shop", 300)
	s.says(0, "status", fmt.Sprintf(" %d held, 0 owed, ", 300))
	s.says(0, "resume shop")
	s.expect(c, append(other, want...)...)
	s.settled()
}
