package retry_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// postpone asks for an event again as the same attempt.
func (f *fixture) postpone(e event.Event, delay string) {
	f.t.Helper()
	f.request(retrySubject, e.AppendJSON(nil), "Timer-Postpone", "1", "Timer-Delay", delay)
}

// countPostponed returns how to count the timers that a consumer postpones, and a function that sets that up.
func countPostponed() (count chan struct{}, configure func(*retry.Consumer)) {
	count = make(chan struct{}, 1000)
	return count, func(c *retry.Consumer) { c.OnPostponed = func() { count <- struct{}{} } }
}

// A postponed timer keeps its attempt, also the last one and one that the policy does not even allow, however often.
func TestConsumerPostpones(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	postponed, configure := countPostponed()
	f.start("10s", configure)
	for attempt := 1; attempt <= 4; attempt++ {
		e := firedEvent(fmt.Sprint(attempt), attempt, []byte("x"))
		before := time.Now()
		f.postpone(e, "90s")
		after := time.Now()
		f.waitEmpty()
		p := f.pending()[e.Key.String()]
		if p.Attempt != attempt || string(p.Payload) != "x" {
			t.Fatalf("attempt %d became %+v", attempt, p)
		}
		if stored := p.Due.Add(-90 * time.Second); stored.Before(before.Truncate(time.Millisecond)) ||
			stored.After(after.Add(2*time.Millisecond)) {
			t.Errorf("due %s after the request, want 90s", p.Due.Sub(before))
		}
	}
	e := firedEvent("often", 2, []byte("x"))
	e.Late, e.Guards = policy.Limit{Given: true, Most: time.Hour}, policy.Guards{Unless: "paid:1", If: "live"}
	origin := e.ID
	const times = 5
	for range times {
		f.postpone(e, "1ms")
		firing := f.schedule.Claim(1, lease)[0]
		if err := f.schedule.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firing)); err != nil {
			t.Fatal(err)
		}
		e.Due = firing.Due.Time()
		e.ID = keys.EventID(e.Key.String(), int64(firing.Due), 2)
		e.SetOrigin(firing.Origin.Due.Time(), firing.Origin.Attempt)
		if firing.Attempt != 2 || firing.Late != e.Late || firing.Guards != e.Guards || e.Origin != origin {
			t.Errorf("fires as %+v, with the origin %s; want %s", firing, e.Origin, origin)
		}
	}
	f.waitEmpty()
	if retried, ignored, malformed, exhausted := f.hooks.counts(); retried+ignored+malformed+exhausted != 0 ||
		len(postponed) != 4+times {
		t.Errorf("hooks counted %d, %d, %d, %d, and %d postponed; want those alone, %d", retried, ignored, malformed,
			exhausted, len(postponed), 4+times)
	}
}

func TestConsumerPostponesOnceHoweverOftenAsked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := firedEvent("1", 1, []byte("x"))
	for range 4 {
		c := f.start("1h", func(c *retry.Consumer) { c.AckWait, c.Window = 200*time.Millisecond, 3 })
		for range 10 {
			f.postpone(e, "1h")
		}
		c.kill()
	}
	f.request(retrySubject, e.AppendJSON(nil)) // a retry of the same event
	f.start("1h", mortal)
	f.start("1h", mortal)
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending != 1 || firing != 0 {
		t.Errorf("%d pending and %d firing, want one timer", pending, firing)
	}
	if p := f.pending()[e.Key.String()]; p.Attempt != 1 {
		t.Errorf("it is attempt %d, want 1", p.Attempt)
	}
}

func TestConsumerDiesBetweenPostponingAndAcknowledging(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := testenv.NewProxy(t, f.nats.Addr())
	set := make(chan struct{}, 10)
	dying := f.startAt("nats://"+proxy.Addr(), afterRetry{f.schedule, func() {
		proxy.Cut()
		set <- struct{}{}
	}}, "1h", mortal)
	e := firedEvent("1", 1, []byte("x"))
	f.postpone(e, "1ms") // so that it fires before the request is delivered again
	<-set
	dying.stop()
	firings := f.schedule.Claim(1, lease)
	if err := f.schedule.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	if f := firings[0]; f.Attempt != 1 || f.Due == schedule.MillisOf(e.Due) {
		t.Errorf("fired %+v", f)
	}
	f.start("1h", mortal)
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending+firing != 0 {
		t.Errorf("%d pending and %d firing, want none", pending, firing)
	}
}

func TestConsumerNeverClobbersByPostponing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1s", nil)
	e := firedEvent("1", 1, []byte("older"))
	if err := f.schedule.Client.FCall(t.Context(), "timer_set", []string{e.Key.String()}, "newer", "PX",
		900).Err(); err != nil {
		t.Fatal(err)
	}
	f.postpone(e, "900ms")
	f.waitEmpty()
	got := map[string]int{}
	for _, f := range f.schedule.Claim(2, lease) {
		got[string(f.Payload)] = f.Attempt
	}
	if len(got) != 2 || got["newer"] != 0 || got["older"] != 1 {
		t.Errorf("fired %v, want newer and older, the older one as attempt 1", got)
	}
}

func TestConsumerBuriesBadPostponements(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("10s", nil)
	e := firedEvent("1", 1, []byte("payload"))
	bad := [][]string{
		{"Timer-Postpone", "1"},
		{"Timer-Postpone", "0", "Timer-Delay", "1s"},
		{"Timer-Postpone", "true", "Timer-Delay", "1s"},
		{"Timer-Postpone", "", "Timer-Delay", "1s"},
		{"Timer-Postpone", strings.Repeat("1", 5000), "Timer-Delay", "1s"},
		{"timer-postpone", "2", "Timer-Delay", "1s"},
		{"Timer-Postpone", "1", "Timer-Postpone", "1", "Timer-Delay", "1s"},
		{"Timer-Postpone", "1", "Timer-Delay", "soon"},
	}
	for i, headers := range bad {
		for range 2 {
			f.request(retrySubject, e.AppendJSON(nil), append(headers, "Timer-Error", "boom")...)
		}
		f.waitEmpty()
		letter := f.letters(i + 1)[i]
		if !strings.HasPrefix(letter.DeadReason, event.ReasonRefused+"Timer-") || len(letter.DeadReason) > 1400 ||
			letter.Key != e.Key ||
			letter.Attempt != 1 || string(letter.Data) != "payload" || letter.LastError != "boom" ||
			letter.Origin != e.ID {
			t.Errorf("%.40q: dead letter %+v", headers, letter)
		}
	}
	if pending, firing := f.schedule.Count(); pending+firing != 0 {
		t.Errorf("%d pending and %d firing, want none", pending, firing)
	}
	f.request(retrySubject, e.AppendJSON(nil), "timer-postpone", " 1 ", "timer-delay", "1h")
	f.waitEmpty()
	if p := f.pending()[e.Key.String()]; p.Attempt != 1 {
		t.Errorf("a good one became %+v", p)
	}
}

// An origin is kept through retries, however many, to the dead letter and beyond its replay; that of an event without
// one, as earlier versions publish it, is the event itself.
func TestOriginOfRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1ms,1ms,1ms", nil)
	for i, id := range []string{"1", "a b@5.1", strings.Repeat("x", 700)} {
		e := firedEvent(id, 1, []byte("x"))
		e.Due = e.Due.Add(time.Duration(i) * time.Millisecond)
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), 1)
		origin := e.ID
		next := func(firing schedule.Firing, attempt int) {
			t.Helper()
			if firing.Attempt != attempt {
				t.Fatalf("attempt %d, want %d", firing.Attempt, attempt)
			}
			e.Due, e.Attempt = firing.Due.Time(), attempt
			e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), attempt)
			if e.SetOrigin(firing.Origin.Due.Time(), firing.Origin.Attempt); e.Origin != origin {
				t.Fatalf("attempt %d has the origin %s, want %s", attempt, e.Origin, origin)
			}
			if e.Replayed = (time.Time{}); firing.Replayed != 0 {
				e.Replayed = firing.Replayed.Time()
			}
			if err := f.schedule.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firing)); err != nil {
				t.Fatal(err)
			}
		}
		for attempt := 2; attempt <= 4; attempt++ {
			f.request(retrySubject, e.AppendJSON(nil))
			next(f.schedule.Claim(1, lease)[0], attempt)
		}
		f.request(retrySubject, e.AppendJSON(nil))
		letter := f.letters(i + 1)[i]
		if letter.Origin != origin || letter.Attempt != 4 {
			t.Fatalf("the letter of attempt %d has the origin %s, want %s", letter.Attempt, letter.Origin, origin)
		}
		replay := retry.Replay(letter, schedule.MillisOf(time.Now()))
		if _, ok, err := f.schedule.Retry(t.Context(), replay); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if !letter.Replayed.IsZero() {
			t.Errorf("a letter of a timer that nobody replayed says %v", letter.Replayed)
		}
		next(f.schedule.Claim(1, lease)[0], 1)
		f.request(retrySubject, e.AppendJSON(nil))
		next(f.schedule.Claim(1, lease)[0], 2)
		f.postpone(e, "1ms")
		next(f.schedule.Claim(1, lease)[0], 2)
		if want := replay.Due.Time(); !e.Begun().Equal(want) {
			t.Errorf("what follows a replay began at %v, want %v, when it was replayed", e.Begun(), want)
		}
	}
}

// Nobody gives a timer the first event of another one: the request is malformed, and kept.
func TestForgedOrigin(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	e, victim := firedEvent("1", 1, []byte("x")), firedEvent("2", 1, nil)
	e.Origin = victim.ID
	f.request(retrySubject, e.AppendJSON(nil))
	letter := f.letters(1)[0]
	if !strings.HasPrefix(letter.DeadReason, event.ReasonMalformed) || !strings.Contains(letter.DeadReason, "origin") ||
		!bytes.Equal(letter.Data, e.AppendJSON(nil)) || letter.Origin != "" {
		t.Errorf("dead letter %+v", letter)
	}
	if pending, firing := f.schedule.Count(); pending+firing != 0 {
		t.Errorf("%d pending and %d firing, want none", pending, firing)
	}
}

// An attempt that failed is counted once, for the consumer that asks: a retry, and the last attempt, which makes a dead
// letter. A postponement is none.
func TestFailedAttemptsAreCounted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	failed := make(chan streams.Failure, 100)
	begun := time.Now()
	f.start("1h", func(c *retry.Consumer) {
		c.OnFailed = func(one streams.Failure) {
			if one.At.Before(begun.Add(-time.Minute)) || one.At.After(time.Now().Add(time.Minute)) {
				t.Errorf("%s failed at %v", one.Key, one.At)
			}
			one.At = time.Time{}
			failed <- one
		}
	})
	first, last := firedEvent("first", 1, nil), firedEvent("last", 2, nil)
	for range 2 { // the second time it is ignored
		f.request(retrySubject, first.AppendJSON(nil), event.ConsumerHeader, "mine", event.ErrorHeader, "502")
	}
	f.request(retrySubject, last.AppendJSON(nil))
	f.request(retrySubject, []byte("malformed"), event.ConsumerHeader, "mine")
	f.postpone(firedEvent("postponed", 1, nil), "90s")
	f.waitEmpty()
	all := map[streams.Failure]int{}
	for len(failed) > 0 {
		all[<-failed]++
	}
	if len(all) != 2 || all[streams.Failure{Key: first.Key, Consumer: "mine", Error: "502"}] != 1 ||
		all[streams.Failure{Key: last.Key}] != 1 {
		t.Errorf("failed: %v", all)
	}
}
