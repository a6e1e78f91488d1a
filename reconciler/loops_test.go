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

// bench is a clock and a log for loops that talk to no server.
type bench struct {
	began time.Time

	mu    sync.Mutex
	log   strings.Builder
	notes []string // events with their times
}

// loop runs test with a bench in a bubble; start runs a loop until stop.
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

// change changes the state that the loops see.
func (b *bench) change(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// note records an event that happens now. b.mu is held.
func (b *bench) note(what string) {
	b.notes = append(b.notes, fmt.Sprintf("%s %s", time.Since(b.began), what))
}

// saw compares the events within a time with want, and forgets them.
func (b *bench) saw(t *testing.T, within time.Duration, want ...string) {
	t.Helper()
	time.Sleep(within)
	if got := b.happened(); !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
}

// happened returns the events since its last call.
func (b *bench) happened() []string {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	notes := b.notes
	b.notes = nil
	return notes
}

func (b *bench) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&b.log, nil)) }

// bench is the server too, with the clock of the bubble and every partition.
func (*bench) Name() string                           { return "" }
func (*bench) Owns(keys.Partition) bool               { return true }
func (*bench) Now() schedule.Millis                   { return schedule.MillisOf(time.Now()) }
func (*bench) Until(at schedule.Millis) time.Duration { return time.Until(at.Time()) }

// in returns the due time d from now.
func (b *bench) in(d time.Duration) schedule.Millis { return b.Now().Add(d) }

// claims is a Claimer and a Scanner that notes the calls. They fail with err.
type claims struct {
	*bench
	err    error
	brings []schedule.Firing // by each claim
	next   schedule.Millis   // of the last claim
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

func (c *claims) Claim(_ context.Context, requests []schedule.ClaimRequest,
	_ time.Duration) (results []schedule.ClaimResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range requests {
		c.note("claim")
		results = append(results,
			schedule.ClaimResult{Partition: r.Partition, At: time.Now(), Firings: c.brings, Next: c.next, Err: c.err})
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

func (k *keeper) KeepAccount(context.Context) ([]schedule.AccountDifference, error) {
	k.change(func() { k.note("account") })
	return nil, nil
}

// A sweep runs at each tick and after a takeover of partitions. Its findings are claimed, or waited for.
func TestSweeps(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		c, k, takenOver := &claims{bench: b}, &keeper{bench: b}, make(chan struct{}, 1)
		s := sweeper{
			scanner: c, keeper: k, agenda: newAgenda(b), health: newHealth(), takenOver: takenOver,
			interval: time.Second, lease: time.Minute,
			log: b.logger(), metrics: noMetrics{}, onTorn: func([]schedule.Torn) {},
			onSetBack: func() { b.change(func() { b.note("set back") }) },
		}
		defer start(s.run)()
		b.saw(t, 1500*time.Millisecond, "0s scan 4s", "0s put right", "0s account", "1s scan 4s")
		signal(takenOver)
		b.change(func() {
			c.scan.Heads = []schedule.Head{{Partition: keys.Single, Due: b.in(1100 * time.Millisecond)}}
		})
		b.saw(t, 600*time.Millisecond, "1.5s scan 4s", "2s scan 4s")
		if wait := s.agenda.wait(); wait != 500*time.Millisecond {
			t.Errorf("%s until the next claim, want 500ms", wait)
		}
		b.change(func() { c.scan.Heads[0].Due = schedule.AtOnce })
		b.change(func() { k.behind = true })
		b.saw(t, time.Second, "3s scan 4s", "3s set back", "3s put right")
		if wait := s.agenda.wait(); wait > 0 {
			t.Errorf("%s until the claim of an owed timer", wait)
		}
		b.change(func() { k.behind, c.err = false, errors.New("away") })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := strings.Count(b.log.String(), "sweep failed"); n != 1 {
			t.Errorf("%d lines of a failure that lasts:\n%s", n, &b.log)
		}
		if err := s.health.err(b); err == nil ||
			!strings.Contains(err.Error(), "looking for due timers has been failing for") {
			t.Errorf("health: %v", err)
		}
	})
}

// The first timerd compares the accounts at its start and then within each minute, whatever the interval of its sweeps.
func TestAccountsAreComparedEachMinute(t *testing.T) {
	t.Parallel()
	for interval, want := range map[time.Duration][]string{
		time.Second:      {"0s", "49s", "1m38s", "2m27s"},
		20 * time.Second: {"0s", "40s", "1m20s", "2m0s", "2m40s"},
		40 * time.Second: {"0s", "40s", "1m20s", "2m0s", "2m40s"},
		time.Minute:      {"0s", "1m0s", "2m0s", "3m0s"},
	} {
		loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
			s := sweeper{
				scanner: &claims{bench: b}, keeper: &keeper{bench: b}, agenda: newAgenda(b), health: newHealth(),
				interval: interval, lease: time.Minute, log: b.logger(), metrics: noMetrics{},
				onTorn: func([]schedule.Torn) {},
			}
			defer start(s.run)()
			time.Sleep(3*time.Minute + time.Second)
			var compared []string
			for _, note := range b.happened() {
				if at, ok := strings.CutSuffix(note, " account"); ok {
					compared = append(compared, at)
				}
			}
			if !slices.Equal(compared, want) {
				t.Errorf("sweeps each %s: compared at %q, want %q", interval, compared, want)
			}
		})
	}
}

// keysAlone is an Auditor that audits the keys alone, as it does not know yet whether events are heard.
type keysAlone struct {
	*bench
	takes time.Duration
	torn  []schedule.Torn // found by the next scan for due timers
	err   error
}

func (k *keysAlone) ScanDue(context.Context, time.Duration, time.Duration) (found schedule.DueScan, err error) {
	k.change(func() { found.Torn = k.torn })
	return found, nil
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

// counted is a Metrics that hands some counts to functions.
type counted struct {
	noMetrics
	audited    func(reason string, seen schedule.Observed, took time.Duration)
	vanished   func(missing int64)
	unanswered func(silent time.Duration)
	gap        func(reason string)
}

func (c counted) Audited(reason string, seen schedule.Observed, took time.Duration) {
	c.audited(reason, seen, took)
}
func (c counted) Vanished(missing int64)          { c.vanished(missing) }
func (c counted) Unanswered(silent time.Duration) { c.unanswered(silent) }
func (c counted) Gap(reason string)               { c.gap(reason) }

// Audits follow the start, each gap, and one another, at intervals that depend on the coverage of the events.
func TestAuditsFollowWhatIsKnownOfEvents(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		k, cover := &keysAlone{bench: b}, newCoverage(b.Now)
		cover.Metrics = counted{gap: func(reason string) { b.change(func() { b.note("gap: " + reason) }) }}
		a := auditor{
			server: b, node: k, agenda: newAgenda(b), coverage: cover, auditing: new(atomic.Bool), asked: new(asked),
			namespaces: keys.Namespaces{{App: "a"}}, instance: "a", interval: time.Second, log: b.logger(),
			metrics: counted{audited: func(reason string, seen schedule.Observed, took time.Duration) {
				b.change(func() { b.note(fmt.Sprintf("%s (%d) in %s", reason, seen.Adopted, took)) })
			}},
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
		b.saw(t, 2*time.Minute+time.Second, "16m0s keys not followed (0) in 0s", "17m0s keys not followed (0) in 0s",
			"18m0s keys not followed (0) in 0s")
		b.saw(t, 3*time.Minute, "19m0s keys not followed (0) in 0s", "20m0s keys not followed (0) in 0s",
			"21m0s regular (1) in 0s")
		cover.SetBeyond(false)
		b.saw(t, 59*time.Second, "22m0s keys not followed (0) in 0s")

		// While audits stand in for events, they take a tenth of the time, and at most follow each sweep.
		cover.SetComplete(false)
		b.saw(t, 2500*time.Millisecond, "22m0s events incomplete (1) in 0s", "22m1s regular (1) in 0s",
			"22m2s regular (1) in 0s")
		b.change(func() { k.takes = time.Second })
		b.saw(t, 12*time.Second, "22m4s regular (1) in 1s", "22m14s regular (1) in 1s")
		cover.SetComplete(true)
		b.change(func() { k.takes = 2 * time.Second })
		cover.Gap("one")
		b.saw(t, time.Second, "22m14.5s gap: one")
		cover.Gap("two") // asks for one more audit, shared with the next gap
		cover.Gap("three")
		b.saw(t, time.Minute, "22m15.5s gap: two", "22m15.5s gap: three", "22m16.5s one (1) in 2s",
			"22m18.5s two (1) in 2s")
		cover.mu.Lock()
		if cover.gaps != 5 || cover.lastGap != "three" { // with the incomplete events
			t.Errorf("%d gaps, the last one %q", cover.gaps, cover.lastGap)
		}
		cover.mu.Unlock()

		// An audit after a takeover waits until audits take only a tenth of the time.
		cover.ask(reasonTakenOver)
		b.saw(t, 17*time.Second)
		b.saw(t, 3*time.Second+time.Millisecond, "23m35.5s slots moved (1) in 2s")
	})
}

// A requested audit first restores all partitions, and reports its failures. The next full audit that knows whether
// events arrive completes it.
func TestAuditsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		k, cover := &keysAlone{bench: b}, newCoverage(b.Now)
		h := &halves{bench: b, restored: schedule.Restored{Timers: 2, Bare: 1}, once: true}
		r := restorer{node: h, agenda: newAgenda(b), coverage: cover, log: b.logger(),
			metrics: counted{vanished: func(n int64) {
				b.change(func() { b.note(fmt.Sprint(n, " missing")) })
			}}}
		rec := Reconciler{Coverage: cover}
		a := auditor{
			server: b, node: k, agenda: newAgenda(b), coverage: cover, auditing: new(atomic.Bool), asked: &rec.asked,
			restore:    r.restore,
			namespaces: keys.Namespaces{{App: "a"}}, interval: time.Second, log: b.logger(),
			metrics: counted{audited: func(reason string, _ schedule.Observed,
				_ time.Duration) {
				b.change(func() { b.note(reason) })
			}},
		}
		defer start(a.run)()
		b.saw(t, time.Minute, "500ms start")
		b.change(func() { k.takes, k.torn = time.Second, []schedule.Torn{{Partition: keys.Single, Missing: 3}} })
		rec.Audit("one")
		rec.Audit("two")
		if got := rec.Asked(); got.ID != "two" || got.Done || got.Doing == "" {
			t.Errorf("asked for: %+v", got)
		}
		b.saw(t, 1500*time.Millisecond, "1m0s restore", "1m0s 3 missing", "1m1s asked for", "1m1s restore")
		if got := rec.Asked(); got.ID != "two" || got.Done {
			t.Errorf("as long as it is not known whether events are heard: %+v", got)
		}
		b.saw(t, time.Second, "1m2s asked for")
		b.change(func() { k.err = errors.New("away") })
		cover.ask("subscribed")
		b.pass(time.Minute)
		if got := rec.Asked(); got.ID != "two" || got.Done || !strings.Contains(got.Fault, "away") {
			t.Errorf("while it is tried again: %+v", got)
		}
	})
}

// A failed audit is repeated with growing pauses; an audit of the timers alone does not take its place.
func TestAuditsAreTriedAgain(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, start func(func(context.Context)) func()) {
		k, cover := &keysAlone{bench: b, err: errors.New("away")}, newCoverage(b.Now)
		a := auditor{
			server: b, node: k, agenda: newAgenda(b), coverage: cover, auditing: new(atomic.Bool), asked: new(asked),
			interval: time.Second, log: b.logger(), metrics: counted{audited: func(reason string, _ schedule.Observed,
				_ time.Duration) {
				b.change(func() { b.notes = append(b.notes, reason) })
			}},
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
