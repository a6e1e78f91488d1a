package reconciler

import (
	"context"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// master is a server of a cluster, with its clock and every partition.
type master struct{ *bench }

func (master) Name() string { return "127.0.0.1:1" }

// The agenda looks for a lease found by a sweep once, at its end, whatever else is due in the partition before. The
// claim after a claim in full looks too.
func TestLeasesOfSweeps(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		const p = keys.Partition("hhhhhh")
		a := newAgenda(master{b})
		claim := func(after time.Duration, looks bool, result schedule.ClaimResult) {
			t.Helper()
			b.pass(after)
			requests := a.takeDue(1)
			if len(requests) != 1 || requests[0].Leases != looks {
				t.Fatalf("%s after the start: %+v, want one that looks for leases: %t", time.Since(b.began), requests,
					looks)
			}
			result.Partition, result.At = p, time.Now()
			a.claimed(&result)
		}
		nothing := schedule.ClaimResult{Next: schedule.Nothing}
		a.swept(schedule.DueScan{
			Heads:  []schedule.Head{{Partition: p, Due: b.in(time.Second)}},
			Leases: []schedule.Head{{Partition: p, Due: b.in(3 * time.Second)}},
		}, true)
		claim(time.Second, false, nothing)
		claim(2*time.Second, true, schedule.ClaimResult{Full: true, Next: b.in(3 * time.Second)})
		// other work in the partition
		a.putBack(schedule.ClaimRequest{Partition: p, Known: schedule.Never}, false)
		claim(0, false, nothing)
		claim(time.Second, true, nothing)
		if wait := a.wait(); wait != longestSleep {
			t.Errorf("%s until the next claim, want none", wait)
		}
	})
}

// A timerd other than the first leaves timers claimed by others alone, and claims only for the rest or another reason.
// The first relies on nobody.
func TestClaimsOfOthers(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		const p = keys.Partition("hhhhhh")
		const owed = -time.Hour
		other := func(due time.Duration) func(*agenda) {
			return func(a *agenda) {
				a.queue.forget(p, schedule.Never)
				if due > 0 {
					a.wake(p, b.in(due))
				}
			}
		}
		later := []schedule.Head{{Partition: p, Due: b.in(time.Minute)}}
		for name, c := range map[string]struct {
			rank   int
			before func(a *agenda)
			at     time.Duration // of the claim, relative to 5 ms after the due time
			next   time.Duration // likewise; 0 for nothing
			want   time.Duration // until its own next claim, without a standby's delay
		}{
			"nothing is left":      {1, nil, -5 * time.Millisecond, 0, longestSleep - standbyStep},
			"another is due later": {1, nil, -time.Millisecond, 8 * time.Second, 8 * time.Second},
			"not all was claimed": {1, nil, -time.Millisecond, -5 * time.Millisecond,
				-5 * time.Millisecond},
			"claimed before it was due": {1, nil, -6 * time.Millisecond, 8 * time.Second,
				-5 * time.Millisecond},
			"claimed in the future, as it says": {1, other(time.Second), time.Hour, 0, time.Second},
			"something is owed there": {1, func(a *agenda) { a.wake(p, schedule.AtOnce) }, -time.Millisecond,
				0, owed},
			"a sweep has found something": {1, func(a *agenda) {
				a.swept(schedule.DueScan{Heads: []schedule.Head{{Partition: p}}}, true)
			}, -time.Millisecond, 0, owed},
			"an answer overtook the message": {1, func(a *agenda) { a.wake(p, later[0].Due) }, -time.Millisecond, 0,
				-5 * time.Millisecond},
			"a sweep overtook the message": {1, func(a *agenda) { a.swept(schedule.DueScan{Heads: later}, true) },
				-time.Millisecond, 0, -5 * time.Millisecond},
			"another was known long before": {1, func(a *agenda) {
				other(time.Second)(a)
				a.wake(p, later[0].Due)
				b.pass(time.Second)
			}, 0, 0, longestSleep - standbyStep},
			"a lease of an earlier claim ends": {1, func(a *agenda) { a.leases[p] = b.in(3 * time.Second) },
				-time.Millisecond, 8 * time.Second, 3 * time.Second},
			"it is the first": {0, nil, -time.Millisecond, 0, -5*time.Millisecond - standbyStep},
			"nothing was known of the partition": {1, other(0), -time.Millisecond, 8 * time.Second,
				longestSleep - standbyStep},
		} {
			a := newAgenda(master{b})
			a.setRank(c.rank, false)
			a.wake(p, b.in(time.Second))
			b.pass(time.Second + 5*time.Millisecond)
			if c.before != nil {
				c.before(a)
			}
			next := schedule.Nothing
			if c.next != 0 {
				next = b.in(c.next)
			}
			a.peerClaimed(p, b.in(c.at), next)
			if wait := a.wait() - standbyStep; wait != c.want && (c.want != owed || wait > owed) {
				t.Errorf("%s: %s until the next claim, want %s", name, wait, c.want)
			}
		}
	})
}

// A passive timerd of a cluster claims its own timers unless others do, and timers found due in two looks, however many
// sweeps find other partitions meanwhile.
func TestPassiveInACluster(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		a := newAgenda(master{b})
		a.setRank(2, true)
		a.wake("hhhhhh", b.in(time.Second))
		if wait := a.wait(); wait != longestSleep {
			t.Errorf("woken by others: %s until the next claim, want none", wait)
		}
		a.armed("hhhhhh", b.in(time.Second))
		if wait := a.wait(); wait != time.Second+2*standbyStep {
			t.Errorf("%s until the claim of its own timer, want 1.05s", wait)
		}
		a.takeDue(1)
		due := schedule.DueScan{Heads: []schedule.Head{{Partition: "hhhhhi", Due: b.in(-time.Second)}}}
		a.swept(due, true)
		a.swept(schedule.DueScan{}, true)
		b.pass(2 * time.Second)
		if requests := a.takeDue(1); len(requests) != 1 || requests[0].Partition != "hhhhhh" {
			t.Errorf("claims from %+v", requests)
		}
		a.swept(due, true)
		if requests := a.takeDue(1); len(requests) != 1 || requests[0].Partition != "hhhhhi" {
			t.Errorf("claims from %+v, want what nobody has claimed", requests)
		}
	})
}

// Sweeps look at each partition twice in a lease; the second timerd looks once. A formerly passive timerd looks
// everywhere first.
func TestLooksOfSweeps(t *testing.T) {
	t.Parallel()
	loop(t, func(t *testing.T, b *bench, _ func(func(context.Context)) func()) {
		looks := &looker{}
		s := sweeper{scanner: looks, agenda: newAgenda(master{b}), health: newHealth(), interval: time.Second,
			lease: 4 * time.Second, metrics: noMetrics{}, onTorn: func([]schedule.Torn) {}}
		for _, as := range []struct {
			rank    int
			passive bool
			every   time.Duration
			all     bool
		}{{0, false, 2 * time.Second, false}, {1, false, 4 * time.Second, false}, {2, true, 2 * time.Second, false}, {1,
			false, 4 * time.Second, true}, {1, false, 4 * time.Second, false}} {
			s.agenda.setRank(as.rank, as.passive)
			s.skipped = true
			if err := s.scanDue(t.Context()); err != nil || looks.Every != as.every || looks.All != as.all {
				t.Errorf("%+v: looks for %+v, %v", as, looks.Look, err)
			}
		}
	})
}

// looker is a Scanner that keeps its last Look.
type looker struct{ schedule.Look }

func (l *looker) Sweep(_ context.Context, look schedule.Look) (schedule.DueScan, error) {
	l.Look = look
	return schedule.DueScan{}, nil
}
