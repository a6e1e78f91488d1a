package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// setAhead sets the clock of Redis ahead of the machine's, and waits until Redis shows it.
func (x *index) setAhead(clock *lab.Clock, by time.Duration) {
	x.t.Helper()
	if err := clock.Set(by); err != nil {
		x.t.Fatal(err)
	}
	testenv.Eventually(x.t, time.Minute, func() bool {
		off := x.redisNow() - time.Now().Add(by).UnixMilli()
		return off > -1000 && off < 1000
	}, "the clock of Redis to change")
}

// settleAll claims and settles the due timers, and returns their number.
func (x *index) settleAll() (settled int) {
	x.t.Helper()
	firings := x.claimFor(lease).Firings
	if err := x.Settle(x.t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		x.t.Fatal(err)
	}
	return len(firings)
}

// replans plans the occurrences again that a clock ahead had armed, and checks their number.
func (x *index) replans(want int) {
	x.t.Helper()
	if n, _, err := x.PutRight(x.t.Context(), lease); err != nil || n != want {
		x.t.Fatalf("%d planned again, %v; want %d", n, err, want)
	}
}

func newIndexWithClock(t *testing.T) (*index, *lab.Clock) {
	t.Helper()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return newIndex(t, devserver.Environment(clock.Environment()...)), clock
}

// Redis's clock is an hour ahead for a while: due occurrences fire, and that clock arms the next ones. Once it is back,
// these are planned again, on their grid, without an occurrence that has fired. Occurrences that lie ahead for another
// reason stay.
func TestOccurrencesArmedByAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	first := x.repeats("p", "EVERY", 60_000)
	set := func(key string, args ...any) int64 {
		return x.do(append([]any{"FCALL", "timer_repeat", 1, key, "p"}, args...)...).(int64)
	}
	due := func(key string) int64 { return int64(x.rdb.ZScore(t.Context(), keys.Single.Due(), key).Val()) }
	later := set("a:b:from:1", "EVERY", 60_000, "FROM", first+2*time.Hour.Milliseconds())
	set("a:b:moved:1", "EVERY", 60_000)
	set("a:b:hourly:1", "EVERY", time.Hour.Milliseconds())
	x.do("FCALL", "timer_repeat", 1, "a:b:cron:1", "p", "CRON", "* * * * *", "TZ", "Europe/Berlin")
	x.settleAll() // plans it
	cron := due("a:b:cron:1")

	x.setAhead(clock, time.Hour)
	if n := x.settleAll(); n != 4 {
		t.Fatalf("%d fired, want the three that repeat each minute, and the one each hour", n)
	}
	hourly := due("a:b:hourly:1")
	moved := due("a:b:moved:1") + 300_000
	x.do("PEXPIREAT", "a:b:moved:1", moved)
	x.observe(touched("a:b:moved:1"))
	if index, _ := x.pendingAt(); index < first+time.Hour.Milliseconds()-60_000 {
		t.Fatalf("due at %d, want an hour ahead", index)
	}
	x.replans(0) // the clock is not back yet

	x.setAhead(clock, 0)
	x.replans(2)
	x.replans(0)
	index, key := x.pendingAt()
	if index != first+60_000 || key != index {
		t.Errorf("due %d ms after the first one, by the key %d; want 60000", index-first, key-first)
	}
	if got := due("a:b:cron:1"); got != cron+60_000 {
		t.Errorf("the expression: due %d ms after the first one, want 60000", got-cron)
	}
	for key, want := range map[string]int64{"a:b:from:1": later, "a:b:moved:1": moved, "a:b:hourly:1": hourly} {
		if got := due(key); got != want {
			t.Errorf("%s: due at %d, want %d as before", key, got, want)
		}
	}
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); got == "" ||
		x.rdb.ZCard(t.Context(), keys.Single.Due()).Val() != 5 {
		t.Errorf("timer_get: %s", got)
	}
}

// The clock jumps again: within its earlier lead, further, or while it is ahead. Once it is back, each repetition goes
// on with its next time, and nothing fires twice.
func TestClockThatWasAheadAgain(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	for name, jumps := range map[string][][]time.Duration{ // each ends with the clock being right
		"by less":            {{hour}, {hour / 2}, {hour / 4}},
		"by more":            {{hour, hour + time.Minute, hour + 2*time.Minute}, {2 * hour, 2*hour + time.Minute}},
		"ahead of ahead":     {{hour, 2 * hour}, {3 * hour, 5 * hour}},
		"back by some":       {{2 * hour, hour, hour + time.Minute, hour / 2}, {hour / 2}},
		"again and again":    {{hour}, {hour}, {hour}, {hour}, {hour}},
		"by the same minute": {{hour, hour + time.Minute}, {hour, hour + time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, clock := newIndexWithClock(t)
			first := x.repeats("p", "EVERY", 60_000)
			fired := map[schedule.Millis]bool{}
			fire := func() {
				t.Helper()
				for _, f := range x.claimFor(lease).Firings {
					if fired[f.Due] {
						t.Errorf("%v after the first one fires again",
							time.Duration(int64(f.Due)-first)*time.Millisecond)
					}
					fired[f.Due] = true
					x.settle(f)
				}
			}
			for n, ahead := range jumps {
				for _, by := range ahead {
					x.setAhead(clock, by)
					if _, _, err := x.PutRight(t.Context(), lease); err != nil {
						t.Fatal(err)
					}
					fire()
				}
				x.setAhead(clock, 0)
				x.replans(1)
				x.replans(0)
				if index, key := x.pendingAt(); index > first+int64(n+1)*60_000 || key != index {
					t.Fatalf("after jump %d it is due %v after the first one, by the key %v", n+1,
						time.Duration(index-first)*time.Millisecond, time.Duration(key-first)*time.Millisecond)
				}
			}
			for by := time.Duration(0); by < 5*hour+10*time.Minute; by += time.Minute { // the time goes by
				x.setAhead(clock, by)
				fire()
			}
			for at := time.Duration(0); at < 5*hour; at += time.Minute {
				if due := schedule.Millis(first).Add(at); !fired[due] {
					t.Errorf("%v after the first one none has fired", at)
				}
			}
		})
	}
}

// An occurrence that has fired by a clock ahead does not fire again at its time.
func TestOccurrencesThatFiredAheadFireOnce(t *testing.T) {
	t.Parallel()
	x, clock := newIndexWithClock(t)
	x.repeats("p", "EVERY", 60_000)
	fired := map[schedule.Millis]bool{}
	fire := func() {
		t.Helper()
		firings := x.claimFor(lease).Firings
		if len(firings) != 1 || fired[firings[0].Due] {
			t.Fatalf("claimed %+v after %v", firings, fired)
		}
		fired[firings[0].Due] = true
		x.settle(firings[0])
	}
	x.setAhead(clock, time.Hour)
	fire()
	x.setAhead(clock, time.Hour+time.Minute)
	fire()
	x.setAhead(clock, time.Hour+2*time.Minute)
	fire()
	x.setAhead(clock, 0)
	x.replans(1)
	x.setAhead(clock, time.Hour-time.Minute) // the time goes by
	fire()
	for by := time.Hour; by < time.Hour+5*time.Minute; by += 30 * time.Second {
		x.setAhead(clock, by)
		if index, _ := x.pendingAt(); index <= x.redisNow() {
			fire()
		}
	}
	if len(fired) < 6 {
		t.Errorf("%d fired, want more after the ones that fired ahead", len(fired))
	}
}
