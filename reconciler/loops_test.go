package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// bench is a time and a log for loops that talk to no server.
type bench struct {
	began time.Time

	mu    sync.Mutex
	log   strings.Builder
	notes []string // what happened, and when
}

// loop runs one in a bubble until the test ends.
func loop(t *testing.T, test func(t *testing.T, b *bench, start func(run func(context.Context)) (stop func()))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{began: time.Now()}
		test(t, b, func(run func(context.Context)) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				run(ctx)
			}()
			return func() {
				cancel()
				<-done
			}
		})
	})
}

// pass lets some of the bubble's time pass.
func (*bench) pass(d time.Duration) { time.Sleep(d) }

// change changes what the loops see.
func (b *bench) change(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// note notes that something happens now. b.mu is held.
func (b *bench) note(what string) {
	b.notes = append(b.notes, fmt.Sprintf("%s %s", time.Since(b.began), what))
}

// saw compares what happened within a time, and forgets it.
func (b *bench) saw(t *testing.T, within time.Duration, want ...string) {
	t.Helper()
	time.Sleep(within)
	if got := b.happened(); !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// happened returns what happened since it was called last.
func (b *bench) happened() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	notes := b.notes
	b.notes = nil
	return notes
}

func (b *bench) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&b.log, nil)) }

// It is the server too, with the clock of the bubble and every partition.
func (*bench) Name() string                           { return "" }
func (*bench) Owns(keys.Partition) bool               { return true }
func (*bench) Now() schedule.Millis                   { return schedule.MillisOf(time.Now()) }
func (*bench) Until(at schedule.Millis) time.Duration { return time.Until(at.Time()) }

// in returns a due time.
func (b *bench) in(d time.Duration) schedule.Millis { return b.Now().Add(d) }

// claims is a Claimer and a Scanner that notes the claims. The next fails with err.
type claims struct {
	*bench
	err    error
	brings []schedule.Firing // by each claim
	next   schedule.Millis   // what the last claim told
	scan   schedule.DueScan
}

func (c *claims) Sweep(_ context.Context, l schedule.Look) (schedule.DueScan, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(fmt.Sprintf("scan %s", l.Within))
	scan := c.scan
	scan.Heads = slices.Clone(c.scan.Heads)
	return scan, c.err
}

func (c *claims) Claim(_ context.Context, requests []schedule.ClaimRequest, _ time.Duration) (results []schedule.ClaimResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range requests {
		c.note("claim")
		results = append(results, schedule.ClaimResult{Partition: r.Partition, At: time.Now(), Firings: c.brings, Next: c.next, Err: c.err})
	}
	c.next = schedule.Nothing
	return results
}

// keeper is a Keeper.
type keeper struct {
	*bench
	behind bool
}

func (*keeper) EnsureLibrary(context.Context) (bool, int, error) { return false, 0, nil }
func (k *keeper) IsBehind() (behind bool) {
	k.change(func() { behind = k.behind })
	return behind
}

func (k *keeper) PutRight(context.Context, time.Duration) (int, int, error) {
	k.change(func() { k.note("put right") })
	return 1, 1, nil
}

// Sweeps are made at each tick, and when partitions were taken over. What they find is claimed, or waited for.
func TestSweeps(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		c, k, takenOver := &claims{bench: b}, &keeper{bench: b}, make(chan struct{}, 1)
		s := sweeper{
			scanner: c, keeper: k, agenda: newAgenda(b), health: newHealth(), takenOver: takenOver, interval: time.Second, lease: time.Minute,
			log: b.logger(), onTorn: func([]schedule.Torn) {}, onScanned: func(schedule.DueScan) {}, onReplanned: func(int) {},
			onSetBack: func() { b.change(func() { b.note("set back") }) },
		}
		defer start(s.run)()
		b.saw(t, 1500*time.Millisecond, "0s scan 4s", "0s put right", "1s scan 4s")
		signal(takenOver)
		b.change(func() { c.scan.Heads = []schedule.Head{{Partition: keys.Single, Due: b.in(1100 * time.Millisecond)}} })
		b.saw(t, 600*time.Millisecond, "1.5s scan 4s", "2s scan 4s")
		if wait := s.agenda.wait(); wait != 500*time.Millisecond {
			t.Errorf("%s until the next claim, want 500ms", wait)
		}
		b.change(func() { c.scan.Heads[0].Due = schedule.AtOnce })
		b.change(func() { k.behind = true })
		b.saw(t, time.Second, "3s scan 4s", "3s set back", "3s put right")
		if wait := s.agenda.wait(); wait > 0 {
			t.Errorf("%s until the claim of what is owed", wait)
		}
		b.change(func() { k.behind, c.err = false, errors.New("away") })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := strings.Count(b.log.String(), "sweep failed"); n != 1 {
			t.Errorf("%d lines of a failure that lasts:\n%s", n, &b.log)
		}
		if err := s.health.err(b); err == nil || !strings.Contains(err.Error(), "looking for due timers has been failing for") {
			t.Errorf("health: %v", err)
		}
	})
}

// Two timerds hear a server, and others go on for a while once two before them do. What does not hear claims what is left over in two
// sweeps. One answer by which too few hear may be too early; two are believed. Where no answer comes, each does what the first does.
func TestHearing(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		hears := true
		m := &members{bench: b, standing: schedule.Standing{Alive: []string{"a", "b", "c"}, Able: 3}, hearing: heardBy("b", "c")}
		h := newBeater(b, m, "c")
		h.hears = func() bool { return hears }
		h.onHear = func(hear bool) {
			if hears != hear {
				b.change(func() { b.note(fmt.Sprint("hear: ", hear)) })
			}
			hears = hear
		}
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
		beats() // of those before it, one hears
		if h.agenda.isPassive() {
			t.Error("passive while one other hears")
		}
		b.change(func() { m.hearing = heardBy("a", "b", "c") })
		beats("10s hear: false")
		at := b.in(-time.Millisecond)
		left := []schedule.Head{{Partition: keys.Single, Due: at}}
		h.agenda.wake(keys.Single, at)
		h.agenda.found(schedule.DueScan{Heads: left}, true)
		if wait := h.agenda.wait(); wait <= 0 {
			t.Error("a passive one claims what has just become due")
		}
		h.agenda.found(schedule.DueScan{Heads: left}, true)
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

// Silence is measured by time: calls that take until their deadline delay no decision.
func TestHearingWithoutAnswers(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		var heard []string
		m := &members{bench: b, standing: schedule.Standing{Alive: []string{"a", "b", "c"}, Able: 3}, hearing: heardBy("a", "b")}
		h := newBeater(b, m, "c")
		h.onHear = func(hear bool) {
			b.change(func() { heard = append(heard, fmt.Sprint(time.Since(b.began).Round(time.Second), " ", hear)) })
		}
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

// A timerd that starts hears, though heartbeats of others that have just died say that these do.
func TestHearsFromTheStart(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		said := true
		h := newBeater(b, nil, "c")
		h.beatAt, h.askedAt = time.Now(), time.Now()
		h.onHear = func(hear bool) { said = hear }
		for beat := 1; beat <= missedHeartbeats; beat++ {
			h.take(answer{standing: schedule.Standing{Alive: []string{"a", "b", "c"}, Able: 3}, hearing: heardBy("a", "b")})
			if want := beat < missedHeartbeats; said != want {
				t.Errorf("after %d heartbeats: hear: %t, want %t", beat, said, want)
			}
		}
	})
}

// heardBy is an answer by which some timerds hear, and as many are subscribed.
func heardBy(ids ...string) schedule.Hearing {
	return schedule.Hearing{IDs: ids, Subscribed: len(ids)}
}

// newBeater returns a beater of a timerd that hears, and can publish.
func newBeater(b *bench, m Membership, id string) *beater {
	return &beater{
		members: m, agenda: newAgenda(b), interval: time.Second, self: schedule.Self{Instance: id}, log: b.logger(),
		counts: func() *schedule.Counts { return nil }, canPublish: func() bool { return true }, hears: func() bool { return true }, onHear: func(bool) {},
		onMissed: func(time.Duration) {},
	}
}

// members is a Membership.
type members struct {
	*bench
	standing     schedule.Standing
	hearing      schedule.Hearing
	err, hearErr error
	silent       bool   // no call is answered
	steady       []bool // what each heartbeat said
}

// answers waits for the end of a call that is not answered.
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

func (m *members) Heartbeat(ctx context.Context, self schedule.Self, ttl time.Duration) (s schedule.Standing, err error) {
	err = m.answers(ctx, fmt.Sprintf("beat of %s for %s", self.Instance, ttl), &m.err)
	m.change(func() { s, m.steady = m.standing, append(m.steady, self.Steady) })
	return s, err
}

func (m *members) Hearing(ctx context.Context, self schedule.Self, hears bool, believed time.Duration) (h schedule.Hearing, err error) {
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
		m := &members{bench: b, err: errors.New("away"), standing: schedule.Standing{Alive: []string{"b", "a"}, Able: 2}}
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

// A timerd finds others silent only once its own heartbeats were answered for as long as makes one dead, and says for how long others
// have missed it.
func TestSteadyHeartbeats(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		m := &members{bench: b, standing: schedule.Standing{Alive: []string{"a", "b"}, Able: 2}}
		h := newBeater(b, m, "a")
		var missed []time.Duration
		h.onMissed = func(silent time.Duration) { missed = append(missed, silent) }
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

// keysAlone is an Auditor that does not know yet whether events are heard, so that the keys alone are audited.
type keysAlone struct {
	*bench
	takes time.Duration
	err   error
}

func (k *keysAlone) ScanDue(context.Context, time.Duration, time.Duration) (schedule.DueScan, error) {
	return schedule.DueScan{}, nil
}

func (*keysAlone) BeginAudit(context.Context) (*schedule.Audit, error)     { return nil, nil }
func (*keysAlone) RecordAudit(context.Context, schedule.AuditReport) error { return nil }

func (k *keysAlone) ScanKeys(_ context.Context, _ string, yield func([]string) error) error {
	var err error
	var takes time.Duration
	k.change(func() { takes, err = k.takes, k.err })
	time.Sleep(takes)
	if err != nil {
		return err
	}
	return yield([]string{"a:b:c:d", "z:b:c:d"})
}

func (k *keysAlone) Observe(_ context.Context, hints []schedule.Hint, _ time.Time) (seen schedule.Observed, err error) {
	seen.Adopted = len(hints)
	return seen, nil
}

// Audits follow the start, each gap, and one another: how soon is decided by what is known of the events.
func TestAuditsFollowWhatIsKnownOfEvents(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		k, cover := &keysAlone{bench: b}, newCoverage(b.Now)
		cover.OnGap = func(reason string) { b.change(func() { b.note("gap: " + reason) }) }
		a := auditor{
			server: b, node: k, agenda: newAgenda(b), coverage: cover, auditing: new(atomic.Bool),
			namespaces: keys.Namespaces{{App: "a"}}, instance: "a", interval: time.Second, log: b.logger(),
			onAudit: func(reason string, seen schedule.Observed, took time.Duration) {
				b.change(func() { b.note(fmt.Sprintf("%s (%d) in %s", reason, seen.Adopted, took)) })
			},
		}
		defer start(a.run)()
		b.saw(t, time.Minute, "500ms start (1) in 0s")
		select {
		case <-cover.Audited():
		default:
			t.Error("nobody is told that apps may be forgotten")
		}
		b.saw(t, 10*time.Minute, "10m0.5s regular (1) in 0s")
		cover.Gap("test")
		b.saw(t, 5*time.Minute, "11m0s gap: test", "11m0s test (1) in 0s")

		cover.SetBeyond(true) // for the timers alone
		b.saw(t, 2*time.Minute+time.Second, "16m0s keys not followed (0) in 0s", "17m0s keys not followed (0) in 0s", "18m0s keys not followed (0) in 0s")
		b.saw(t, 3*time.Minute, "19m0s keys not followed (0) in 0s", "20m0s keys not followed (0) in 0s", "21m0s regular (1) in 0s")
		cover.SetBeyond(false)
		b.saw(t, 59*time.Second, "22m0s keys not followed (0) in 0s")

		// While they stand in for events they take a tenth of the time, and follow sweeps at the most.
		cover.SetComplete(false)
		b.saw(t, 2500*time.Millisecond, "22m0s events incomplete (1) in 0s", "22m1s regular (1) in 0s", "22m2s regular (1) in 0s")
		b.change(func() { k.takes = time.Second })
		b.saw(t, 12*time.Second, "22m4s regular (1) in 1s", "22m14s regular (1) in 1s")
		cover.SetComplete(true)
		b.change(func() { k.takes = 2 * time.Second })
		cover.Gap("one")
		b.saw(t, time.Second, "22m14.5s gap: one")
		cover.Gap("two") // asks for one more audit, and so does
		cover.Gap("three")
		b.saw(t, time.Minute, "22m15.5s gap: two", "22m15.5s gap: three", "22m16.5s one (1) in 2s", "22m18.5s two (1) in 2s")
		cover.mu.Lock()
		if cover.gaps != 5 || cover.lastGap != "three" { // with the incomplete events
			t.Errorf("%d gaps, the last one %q", cover.gaps, cover.lastGap)
		}
		cover.mu.Unlock()

		// One of what is taken over waits until audits have taken a tenth of the time.
		cover.ask(reasonTakenOver)
		b.saw(t, 17*time.Second)
		b.saw(t, 3*time.Second+time.Millisecond, "23m35.5s slots moved (1) in 2s")
	})
}

// An audit that fails is made again with pauses that grow; an audit of the timers alone does not take its place.
func TestAuditsAreTriedAgain(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		k, cover := &keysAlone{bench: b, err: errors.New("away")}, newCoverage(b.Now)
		a := auditor{
			server: b, node: k, agenda: newAgenda(b), coverage: cover, auditing: new(atomic.Bool),
			interval: time.Second, log: b.logger(), onAudit: func(reason string, _ schedule.Observed, _ time.Duration) {
				b.change(func() { b.notes = append(b.notes, reason) })
			},
		}
		cover.Gap("subscribed")
		defer start(a.run)()
		b.saw(t, time.Minute)
		cover.SetBeyond(true)
		b.change(func() { k.err = nil })
		b.saw(t, longestPause, "subscribed")
		if n := strings.Count(b.log.String(), "audit failed"); n != 1 {
			t.Errorf("%d lines:\n%s", n, &b.log)
		}
	})
}
