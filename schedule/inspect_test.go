package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// inspect inspects a key.
func (x *index) inspect(name string) query.Inspection {
	x.t.Helper()
	key, err := keys.Parse(name)
	if err != nil {
		x.t.Fatal(err)
	}
	seen, err := query.Inspect(x.t.Context(), x.Schedule, key, 10)
	if err != nil {
		x.t.Fatal(err)
	}
	return seen
}

// shows fails unless a key has these timers: state, attempt and payload each, then flags and other details.
func (x *index) shows(name string, want ...string) query.Inspection {
	x.t.Helper()
	seen := x.inspect(name)
	var got []string
	for _, i := range seen.Timers {
		said := fmt.Sprintf("%s %d %s", i.State, i.Attempt, i.Payload)
		for flag, is := range map[string]bool{"beside": i.Beside, "perhaps": i.Perhaps, "unheard": i.Unheard,
			"unread": i.Unread} {
			if is {
				said += " " + flag
			}
		}
		if i.Parked != "" {
			said += " aside: " + string(i.Parked)
		}
		if i.Repeat != "" {
			said += fmt.Sprintf(" %s %d", i.Repeat, i.Occurrence)
		}
		if i.Hold != nil {
			said += " by " + i.Hold.Namespace.String()
		}
		got = append(got, said)
	}
	if !slices.Equal(got, want) {
		x.t.Errorf("%s shows\n\t%s\nwant\n\t%s", name, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return seen
}

// A key shows all of its timers, whatever their state.
func TestInspect(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	if seen := x.shows(k); seen.Trigger.Exists || !seen.Fired.IsZero() || seen.Repeats || seen.More || seen.Unsure {
		t.Errorf("nothing: %+v", seen)
	}
	x.do("SET", k, "plain", "PX", 60000)
	if seen := x.shows(k, "pending 0 plain unheard"); seen.Trigger.Expires.UnixMilli() != x.due(k) {
		t.Errorf("%+v, want %d", seen.Trigger, x.due(k))
	}
	x.observe(touched(k))
	x.do("SET", k, "and a longer value", "KEEPTTL")
	if seen := x.shows(k, "pending 0 and a long"); seen.Timers[0].Size != len("and a longer value") {
		t.Errorf("%+v", seen.Timers[0])
	}

	x.do("FCALL", "timer_set", 1, k, "one", "PX", 20, "LATE", 60000)
	x.awaitExpiry(k)
	x.shows(k, "owed 0 one")
	claimed := x.claimFor(time.Hour)
	x.do("FCALL", "timer_set", 1, k, "two", "PX", 20)
	x.awaitExpiry(k)
	x.observe(expired(k))
	x.do("FCALL", "timer_set", 1, k, "three", "PX", 60000, "ATTEMPT", 7)
	x.retry("event", x.redisNow()+30000, 2, "retry")
	seen := x.shows(k, "pending 2 retry beside", "pending 7 three", "owed 0 two", "firing 0 one")
	if last := seen.Timers[3]; last.Late.Most != time.Minute ||
		last.Until.UnixMilli() != claimed.At.Add(time.Hour).UnixMilli() {
		t.Errorf("%+v, claimed at %v", last, claimed.At)
	}
	if seen.Fired.IsZero() || seen.Now.Before(seen.Fired) {
		t.Errorf("fired at %v", seen.Fired)
	}

	x.hold("app1:trans")
	x.shows(k, "pending 2 retry beside", "pending 7 three", "held 0 two by app1:trans", "firing 0 one")
	x.claims()
	seen = x.shows(k, "pending 2 retry beside", "pending 7 three", "held 0 two by app1:trans", "firing 0 one")
	if h := seen.Timers[2].Hold; h.Reason != "a test" || h.Since == 0 {
		t.Errorf("%+v", h)
	}
	x.do("PERSIST", k)
	if seen := x.shows(k, "pending 2 retry beside", "held 0 two by app1:trans", "firing 0 one"); !seen.Trigger.Exists ||
		!seen.Trigger.Expires.IsZero() {
		t.Errorf("%+v", seen.Trigger)
	}
}

// Firings that were given back after perhaps being published are shown, with the time of their next claim; so are
// firings that NATS refused.
func TestInspectWhatWasGivenBack(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "one", "PX", 20)
	x.awaitExpiry(k)
	firings, _ := x.claimOnce()
	refused := firings[0].Outcome(schedule.OutcomeRefused)
	refused.Pause, refused.MayBeStored = time.Hour, true
	if err := x.Release(t.Context(), []schedule.Outcome{refused}); err != nil {
		t.Fatal(err)
	}
	seen := x.shows(k, "firing 0 one perhaps aside: refused")
	if until := seen.Timers[0].Until.Sub(seen.Now); until < 59*time.Minute || until > time.Hour {
		t.Errorf("until in %v", until)
	}
}

// Inspect shows that a timer is set aside, and the time of the next look; its key is out of sight.
func TestInspectWhatIsSetAside(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	x.do("FCALL", "timer_set", 1, denied, "p", "PX", 20)
	x.awaitExpiry(denied)
	x.setAside(1)
	seen := x.shows(denied, "owed 0 p aside: rights")
	if timer := seen.Timers[0]; timer.Due.UnixMilli() != x.due(denied) || timer.Until.Before(seen.Now) ||
		!seen.Trigger.Denied {
		t.Errorf("%+v, %+v", timer, seen.Trigger)
	}
}

// A key that repeats shows its occurrence, or the plan.
func TestInspectWhatRepeats(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "@hourly")
	if seen := x.shows(k, "pending 0 p cron @hourly UTC 1"); !seen.Repeats {
		t.Error("it does not repeat")
	}
	x.repeats("p", "EVERY", 60000)
	if seen := x.shows(k, "pending 0 p every 1m0s 1"); !seen.Repeats {
		t.Error("it does not repeat")
	}
	x.do("SET", k, "q", "KEEPTTL")
	x.shows(k, "pending 0 q every 1m0s 1")
}

// Inspect shows a limited number and size of a key's timers, and says that there are more.
func TestInspectIsBounded(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	x.do("FCALL", "timer_set", 1, k, "newer", "PX", 60_000)
	due := x.redisNow() + 30_000
	for i := range 120 {
		x.retry(fmt.Sprint(i), due+int64(i), 2, strings.Repeat("x", largePayload))
	}
	seen := x.inspect(k)
	if len(seen.Timers) != 100 || !seen.More {
		t.Fatalf("%d timers, more: %v", len(seen.Timers), seen.More)
	}
	if unread := seen.Timers[50]; !unread.Unread || unread.Size < largePayload || unread.Attempt != 2 {
		t.Errorf("%+v", unread)
	}
	if read := seen.Timers[0]; read.Unread || len(read.Payload) != 10 || read.Size != largePayload {
		t.Errorf("%+v", read)
	}
}
