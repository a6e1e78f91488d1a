package schedule_test

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// retry sets a retry of k and returns its due time.
func (x *index) retry(id string, due int64, attempt int, payload string) int64 {
	x.t.Helper()
	key, err := keys.Parse(k)
	if err != nil {
		x.t.Fatal(err)
	}
	got, ok, err := x.Retry(x.t.Context(),
		schedule.Retry{EventID: id, Key: key, Due: schedule.Millis(due), Attempt: attempt, Payload: []byte(payload)})
	if err != nil {
		x.t.Fatal(err)
	}
	if !ok {
		return -1
	}
	return int64(got)
}

func TestRetryIsAnOrdinaryTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	due := x.redisNow() + brief
	if got := x.retry("id1", due, 2, "p"); got != due {
		t.Fatalf("due %d, want %d", got, due)
	}
	if at := x.do("PEXPIRETIME", k); at != due {
		t.Errorf("the trigger key runs out at %v, want %d", at, due)
	}
	for range 3 {
		if got := x.retry("id1", due+1000, 2, "p"); got != -1 {
			t.Fatalf("the same request again: due %d", got)
		}
	}
	x.observe(touched(k))
	x.awaitClock(due)
	firings := x.claims(k + " deadline p")
	if firings[0].Attempt != 2 {
		t.Errorf("attempt %d, want 2", firings[0].Attempt)
	}
	if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	if got := x.retry("id1", due+5000, 2, "p"); got != -1 {
		t.Fatalf("the same request after its retry fired: due %d", got)
	}
	x.isEmpty()

	due = x.redisNow() + 60000
	x.retry("id2", due, 3, "p")
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	x.isEmpty()
}

func TestRetryThatIsDueAlready(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.retry("id", x.redisNow()-1000, 2, "p")
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	x.claims(k + " deadline p")
}

func TestRetryWaitsBesideANewerTimer(t *testing.T) {
	t.Parallel()
	for _, newer := range [][]any{
		{"FCALL", "timer_set", 1, k, "newer", "PX", brief},
		{"SET", k, "newer", "PX", brief},
	} {
		x := newIndex(t)
		x.do(newer...)
		due := x.due(k)
		if got := x.retry("id", due, 2, "old"); newer[0] == "FCALL" && got != due+1 {
			t.Errorf("a retry due with the newer timer moved to %d, want %d", got, due+1)
		}
		x.observe(touched(k))
		if at := x.do("PEXPIRETIME", k); at != due {
			t.Errorf("the newer timer was clobbered: due %v, want %d", at, due)
		}
		x.awaitClock(due + 1)
		seen := map[string]bool{}
		firings, said := x.claimOnce()
		ids := map[string]bool{}
		for i, f := range firings {
			seen[said[i]] = true
			ids[keys.EventID(f.Key.String(), int64(f.Due), 2)] = true
		}
		if len(firings) != 2 || !seen[k+" deadline newer"] || !seen[k+" deadline old"] || len(ids) != 2 {
			t.Fatalf("%v: fired %q, want both, under different due times", newer, said)
		}
		if err := x.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
			t.Fatal(err)
		}
		x.isEmpty()
	}
}

func TestRetryBesideAKeyThatIsNoTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "somebody's")
	x.retry("id", x.redisNow()+60000, 2, "old")
	if got := x.do("GET", k); got != "somebody's" {
		t.Errorf("the key was clobbered: %v", got)
	}
}

func TestCancelReachesRetriesBeside(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	now := x.redisNow()
	x.retry("id1", now+70000, 2, "old")
	x.retry("id2", now+70000, 2, "older")
	x.do("DEL", k)
	x.observe(gone(k))
	if n := x.do("ZCARD", keys.Single.Due()); n != int64(2) {
		t.Fatalf("%v timers after DEL, want the two retries", n)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("timer_cancel: %v", got)
	}
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "unknown" {
		t.Errorf("timer_cancel again: %v", got)
	}
	x.isEmpty()
}

func TestTrimRetried(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.retry("id", x.redisNow()+60000, 2, "p")
	for _, c := range []struct {
		age  time.Duration
		left int64
	}{{time.Hour, 1}, {-time.Second, 0}} {
		if err := x.TrimRetried(t.Context(), c.age); err != nil {
			t.Fatal(err)
		}
		if n := x.do("ZCARD", keys.Single.Retried()); n != c.left {
			t.Errorf("%v ids left of those older than %s, want %d", n, c.age, c.left)
		}
	}
}

// An event's id is made of key, due time and attempt, whatever the source of the attempt, also while it is on its way.
func TestRetryNeverSharesAnID(t *testing.T) {
	t.Parallel()
	for name, set := range map[string][]any{
		"stated":             {"FCALL", "timer_set", 1, k, `{"attempt":2}`, "PX", 30},
		"stated in escapes":  {"SET", k, `{"\u0061ttempt":2}`, "PX", 300},
		"given to timer_set": {"FCALL", "timer_set", 1, k, "p", "PX", 30, "ATTEMPT", 2},
	} {
		t.Run(name, func(t *testing.T) {
			for _, when := range []string{"due", "claimed", "settled"} {
				x := newIndex(t)
				x.do(set...)
				x.observe(touched(k))
				due := x.due(k)
				x.awaitClock(due)
				if when != "due" {
					firings, _ := x.claimOnce()
					if when == "settled" {
						if err := x.Settle(t.Context(),
							schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if got := x.retry("id", due, 2, "r"); got != due-1 {
					t.Errorf("the other one is %s: the retry is due at %d, want %d", when, got, due-1)
				}
				if got := x.retry("id2", due, 2, "r"); got != due-2 {
					t.Errorf("the other one is %s: a second retry is due at %d, want %d", when, got, due-2)
				}
			}
		})
	}

	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60000)
	due := x.retry("id", x.redisNow()+100, 2, "r")
	x.do("FCALL", "timer_set", 1, k, `{"attempt":2}`, "PXAT", due)
	x.awaitClock(due)
	firings, _ := x.claimOnce()
	if len(firings) != 2 || firings[0].Due == firings[1].Due {
		t.Errorf("%+v, want two firings with different due times", firings)
	}
}
