package reconciler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Two timerds hear a server; others stop hearing a while after two of lower rank hear. A timerd that does not hear
// claims timers left unclaimed in two sweeps. One answer with too few listeners may be too early; two are believed.
// Without an answer, each timerd acts as the first.
func TestHearing(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		hears := true
		m := &members{bench: b, standing: schedule.Standing{Alive: []string{"a", "b", "c"}, Able: 3},
			hearing: heardBy("b", "c")}
		h := newBeater(b, m, "c")
		h.events = ears{func() bool { return hears }, func(hear bool) {
			if hears != hear {
				b.change(func() { b.note(fmt.Sprint("hear: ", hear)) })
			}
			hears = hear
		}}
		beats := func(want ...string) {
			t.Helper()
			time.Sleep(6 * time.Second)
			synctest.Wait()
			got := slices.DeleteFunc(b.happened(), func(s string) bool { return strings.Contains(s, " of ") })
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		defer start(h.run)()
		beats() // only one of lower rank hears
		if h.agenda.isPassive() {
			t.Error("passive while one other hears")
		}
		b.change(func() { m.hearing = heardBy("a", "b", "c") })
		beats("10s hear: false")
		at := b.in(-time.Millisecond)
		left := []schedule.Head{{Partition: keys.Single, Due: at}}
		h.agenda.wake(keys.Single, at)
		h.agenda.swept(schedule.DueScan{Heads: left}, true)
		if wait := h.agenda.wait(); wait <= 0 {
			t.Error("a passive timerd claims a timer that has just become due")
		}
		h.agenda.swept(schedule.DueScan{Heads: left}, true)
		if wait := h.agenda.wait(); wait > 0 {
			t.Error("a passive one leaves what nobody has claimed")
		}
		b.change(func() { m.hearing = heardBy("a") })
		time.Sleep(time.Second)
		b.change(func() { m.hearing = heardBy("a", "b") })
		beats() // one answer was too early
		b.change(func() { m.hearing = heardBy("a") })
		beats("21s hear: true")
		b.change(func() { m.hearing = heardBy("a", "b", "c") })
		h.agenda.setPlace(1) // of the next master this one is the first
		beats()
		h.agenda.setPlace(0)
		beats("35s hear: false")
		b.change(func() { m.hearing.Subscribed = 2 }) // one of the three is not subscribed
		beats("39s hear: true")
		b.change(func() { m.hearing.Subscribed = -1 }) // Redis does not say
		beats("47s hear: false")
		b.change(func() { m.hearErr = errors.New("away") })
		beats("53s hear: true")
		b.change(func() { m.hearErr = nil })
		beats("59s hear: false")
		b.change(func() { m.hearing, m.err = heardBy("a"), errors.New("away") }) // the node is another server
		beats("1m3s hear: true")
		if h.agenda.isPassive() || !h.agenda.isFirst() {
			t.Error("nobody answers, and this one leaves the work to others")
		}
	})
}

// Silence is measured in time, so calls that reach their deadline delay no decision.
func TestHearingWithoutAnswers(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		var heard []string
		m := &members{bench: b, standing: schedule.Standing{Alive: []string{"a", "b", "c"}, Able: 3},
			hearing: heardBy("a", "b")}
		h := newBeater(b, m, "c")
		h.events = ears{allEvents{}.Hears, func(hear bool) {
			b.change(func() { heard = append(heard, fmt.Sprint(time.Since(b.began).Round(time.Second), " ", hear)) })
		}}
		defer start(h.run)()
		time.Sleep(10*time.Second + time.Millisecond)
		b.change(func() { m.silent, heard = true, nil })
		time.Sleep(6 * time.Second)
		b.change(func() {
			if !slices.Contains(heard, "14s true") && !slices.Contains(heard, "15s true") {
				t.Errorf("heard %q; want it to listen 4 or 5 s after the last answer", heard)
			}
		})
	})
}

// Timerds unable to publish come last on every master of a cluster, and make no others stand by.
func TestRanksOfThoseThatCannotPublish(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		s := schedule.Standing{Alive: []string{"c", "d", "a", "b"}, Able: 2}
		for place, want := range []string{"c 0 0, d 1 0, a 2 1, b 3 1", "c 1 1, d 0 0, a 2 1, b 3 1"} {
			h := newBeater(b, nil, "")
			h.agenda.setPlace(place)
			var got []string
			for _, id := range s.Alive {
				rank, hearing := h.agenda.before(id, s, heardBy("a", "b", "d", "of another version"))
				got = append(got, fmt.Sprint(id, " ", rank, " ", hearing))
			}
			if !slices.Equal(got, strings.Split(want, ", ")) {
				t.Errorf("place %d: %q, want %s", place, got, want)
			}
		}
	})
}

// A starting timerd hears, although timerds that have just died still count as hearing.
func TestHearsFromTheStart(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		said := true
		h := newBeater(b, nil, "c")
		h.beatAt, h.askedAt = time.Now(), time.Now()
		h.events = ears{allEvents{}.Hears, func(hear bool) { said = hear }}
		for beat := 1; beat <= missedHeartbeats; beat++ {
			h.take(answer{standing: schedule.Standing{Alive: []string{"a", "b", "c"}, Able: 3},
				hearing: heardBy("a", "b")})
			if want := beat < missedHeartbeats; said != want {
				t.Errorf("after %d heartbeats: hear: %t, want %t", beat, said, want)
			}
		}
	})
}

// heardBy returns an answer: these timerds hear, and the same number is subscribed.
func heardBy(ids ...string) schedule.Hearing {
	return schedule.Hearing{IDs: ids, Subscribed: len(ids)}
}

// newBeater returns a beater of a timerd that hears, and can publish.
func newBeater(b *bench, m Membership, id string) *beater {
	return &beater{
		members: m, agenda: newAgenda(b), interval: time.Second, self: schedule.Self{Instance: id}, log: b.logger(),
		counts: func() *schedule.Counts { return nil }, canPublish: func() bool { return true },
		events: allEvents{}, metrics: noMetrics{},
	}
}

// ears are Events made of two functions.
type ears struct {
	hears func() bool
	hear  func(bool)
}

func (e ears) Hears() bool    { return e.hears() }
func (e ears) Hear(hear bool) { e.hear(hear) }

// members is a Membership.
type members struct {
	*bench
	standing     schedule.Standing
	hearing      schedule.Hearing
	err, hearErr error
	silent       bool   // no call is answered
	steady       []bool // Self.Steady of each heartbeat
}

// answers notes a call and returns *err, or waits for the call's end if m is silent.
func (m *members) answers(ctx context.Context, note string, err *error) error {
	var silent bool
	m.change(func() { silent = m.silent })
	if silent {
		<-ctx.Done()
		return ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note(note)
	return *err
}

func (m *members) Heartbeat(ctx context.Context, self schedule.Self, ttl time.Duration) (s schedule.Standing,
	err error) {
	err = m.answers(ctx, fmt.Sprintf("beat of %s for %s", self.Instance, ttl), &m.err)
	m.change(func() { s, m.steady = m.standing, append(m.steady, self.Steady) })
	return s, err
}

func (m *members) Hearing(ctx context.Context, self schedule.Self, hears bool,
	believed time.Duration) (h schedule.Hearing, err error) {
	err = m.answers(ctx, fmt.Sprintf("question of %s for %s, hears: %t", self.Instance, believed, hears), &m.hearErr)
	m.change(func() { h = m.hearing })
	return h, err
}

func (m *members) Deregister(_ context.Context, self schedule.Self) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.note("farewell of " + self.Instance)
	return nil
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		m := &members{bench: b, err: errors.New("away"),
			standing: schedule.Standing{Alive: []string{"b", "a"}, Able: 2}}
		h := newBeater(b, m, "a")
		beats := func(within time.Duration, want ...string) {
			t.Helper()
			time.Sleep(within)
			got := slices.DeleteFunc(b.happened(), func(s string) bool { return strings.Contains(s, "question of") })
			if !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		stop := start(h.run)
		beats(2500*time.Millisecond, "0s beat of a for 4s", "1s beat of a for 4s", "2s beat of a for 4s")
		b.change(func() { m.err = nil })
		beats(time.Second, "3s beat of a for 4s")
		if h.agenda.rank != 1 {
			t.Errorf("rank %d, want 1", h.agenda.rank)
		}
		stop()
		beats(0, "3.5s farewell of a")
		if n := strings.Count(b.log.String(), "heartbeat failed"); n != 1 {
			t.Errorf("%d lines:\n%s", n, &b.log)
		}
	})
}

// A timerd takes others for silent only once its own heartbeats were answered for the time after which a silent timerd
// counts as dead. It reports the length of its own silence if others noticed it.
func TestSteadyHeartbeats(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		m := &members{bench: b, standing: schedule.Standing{Alive: []string{"a", "b"}, Able: 2}}
		h := newBeater(b, m, "a")
		var missed []time.Duration
		h.metrics = counted{unanswered: func(silent time.Duration) { missed = append(missed, silent) }}
		stop := start(h.run)
		steady := func(within time.Duration, want string) {
			t.Helper()
			time.Sleep(within)
			got := ""
			b.change(func() {
				for _, one := range m.steady {
					got += map[bool]string{true: "s", false: "."}[one]
				}
				m.steady = nil
			})
			if got != want {
				t.Errorf("steady %q, want %q", got, want)
			}
		}
		steady(6500*time.Millisecond, "....sss")
		b.change(func() { m.err = errors.New("away") })
		steady(time.Second, "s")
		b.change(func() { m.err, m.standing.Missed = nil, true }) // by the clock of Redis, which went on
		steady(6*time.Second, "....ss")
		b.change(func() { m.err = errors.New("away") })
		steady(6*time.Second, "s.....")
		b.change(func() { m.err = nil })
		steady(6*time.Second, "....ss")
		stop()
		if len(missed) != 1 || missed[0].Round(time.Second) != 7*time.Second {
			t.Errorf("missed for %v, want once for 7 s", missed)
		}
	})
}
