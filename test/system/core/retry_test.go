package core_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// Each retry is due after the policy's delay, to the ms, by a virtual clock.
func TestRetriesFollowThePolicy(t *testing.T) {
	t.Parallel()
	s := system.NewVirtual(t, "TIMERD_RETRY=app1:trans:notice=400ms,3h,48h")
	c := s.Collect()
	delays := []time.Duration{400 * time.Millisecond, 3 * time.Hour, 48 * time.Hour}
	const key, payload = "app1:trans:notice:1", "{ \"order\":\t42 }"

	for round := range 2 {
		if round == 0 {
			s.Do("FCALL", "timer_set", 1, key, payload, "PX", system.Hour)
			s.Advance(time.Hour)
		} else {
			id := s.Letters(1)[0].ID
			if out := s.OK("dead", "replay", "--id", id, "--yes"); !strings.HasSuffix(out,
				"\n1 replayed, 0 skipped\n") {
				t.Fatalf("dead replay: %s", out)
			}
		}
		var from, to time.Time
		for i := range len(delays) + 1 {
			all := s.Events(c, round*(len(delays)+1)+i+1)
			e := all[len(all)-1]
			if e.Attempt != i+1 || e.MaxAttempts != 4 || string(e.Data) != payload {
				t.Errorf("event %+v, want attempt %d of 4", e, i+1)
			}
			if i > 0 {
				if due := e.Due.Add(-delays[i-1]); due.Before(from.Truncate(time.Millisecond)) ||
					due.After(to.Add(time.Millisecond)) {
					t.Errorf("attempt %d is due %s after the request, want %s", i+1, e.Due.Sub(from), delays[i-1])
				}
			}
			from, to = s.Retry(c.All()[c.Len()-1], "Timer-Error", fmt.Sprintf("failure %d", i+1))
			if i < len(delays) {
				s.Advance(delays[i] + time.Second)
			}
		}
		letter := s.Letters(1)[0]
		if letter.Key.String() != key || letter.Attempt != 4 || letter.MaxAttempts != 4 ||
			letter.DeadReason != event.ReasonExhausted ||
			letter.LastError != "failure 4" || string(letter.Data) != payload {
			t.Errorf("dead letter %+v", letter)
		}
	}
	s.NoRequests()
	s.Settled()
	s.Advance(1000 * time.Hour)
	c.Stays(8, 100*time.Millisecond)
	_, metrics, err := s.Timerd.Get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"timerd_retries_total 6\n", `timerd_dead_letters_total{reason="exhausted"} 2` +
		"\n"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics lack %q", want)
		}
	}
}

func TestRetriesBesideNewerTimersAndCancelled(t *testing.T) {
	t.Parallel()
	for _, events := range []string{"on", "off"} {
		t.Run("events "+events, func(t *testing.T) {
			t.Parallel()
			s := system.New(t)
			s.Env["TIMERD_RETRY"], s.Env["TIMERD_KEYSPACE_EVENTS"] = "*=3s", events
			s.Start()
			c := s.Collect()
			set := []string{"beside", "cancelled"}
			if events == "on" { // or the deletion is found only by an audit
				set = append(set, "deleted")
			}
			want := []string{"app1:trans:notice:beside=old", "app1:trans:notice:beside=newer"}
			for _, id := range set {
				s.Do("FCALL", "timer_set", 1, "app1:trans:notice:"+id, "old", "PX", 50)
				want = append(want, "app1:trans:notice:"+id+"=old")
			}
			s.Events(c, len(set))
			s.Do("FCALL", "timer_set", 1, "app1:trans:notice:beside", "newer", "PX", 3200)
			for _, m := range c.All() {
				s.Retry(m)
			}
			s.NoRequests()
			if got := s.Do("FCALL", "timer_cancel", 1, "app1:trans:notice:cancelled"); got != "cancelled" {
				t.Errorf("timer_cancel: %v", got)
			}
			if got := s.Do("DEL", "app1:trans:notice:deleted"); got != int64(len(set)-2) {
				t.Errorf("DEL: %v", got)
			}
			s.Expect(c, want...)
			s.Settled()
		})
	}
}

func TestMalformedRetryRequestsOfTheWholeSystem(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.Do("SET", "app1:trans:notice:1", "\xff\x00", "PX", system.Soon)
	s.Events(c, 1)
	s.Retry(c.All()[0], "Timer-Delay", "tomorrow")
	if _, err := s.JS.Publish(t.Context(), "timers.retry.app1.trans.notice", []byte("again, please")); err != nil {
		t.Fatal(err)
	}
	letters := s.Letters(2)
	reasons := letters[0].DeadReason + "\n" + letters[1].DeadReason
	contents := string(letters[0].Data) + "\n" + string(letters[1].Data)
	for _, want := range []string{`Timer-Delay "tomorrow"`, "not a JSON object"} {
		if !strings.Contains(reasons, want) {
			t.Errorf("reasons %q lack %q", reasons, want)
		}
	}
	for _, want := range []string{"\xff\x00", "again, please"} {
		if !strings.Contains(contents, want) {
			t.Errorf("contents %q lack %q", contents, want)
		}
	}
	s.NoRequests()
	s.Settled()
	p.Stop()
}
