package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// A step of Redis's clock is reported, and once in the history, though two timerds see it.
func TestOutagesOfTheClock(t *testing.T) {
	t.Parallel()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	x := newScene(t, devserver.Environment(clock.Environment()...))
	other := x.Start()
	ahead := func(by time.Duration) func(*scene) { return func(*scene) { ahead(x.System, clock, by) } }
	stepped := outage{level: diag.Warn, check: diag.CheckClock,
		text: `that of Redis is off by (59|1m).*; it was stepped forward by (59|1m).* to \d`}
	right := stepped
	right.text = `that of Redis was stepped forward by (59|1m).* to .*, back by (59|1m).* to \d`
	x.quiet()
	ahead(time.Minute)(x)
	_, took := x.tells(stepped)
	t.Logf("the clock of Redis was stepped: told after %v", took)
	ahead(0)(x)
	_, took = x.tells(right)
	t.Logf("the clock of Redis was put right: told after %v", took)
	for _, direction := range []string{"forward", "back"} {
		x.p.Log.Wait(t, system.Patience,
			`msg="the clock of Redis was stepped; due times follow it" redis=`+x.Redis.Addr()+` direction=`+direction)
	}
	x.happened(event.EntryClock, "forward by ", "back by ")
	other.Stop()
	x.p.Stop() // it forgets the steps after ten minutes
	x.start()
	x.quiet()
	x.p.Stop()
}

// Keys run out before their time while no timerd listens: Redis's clock is ahead for some seconds, at its start or
// later, or somebody has cut their TTLs.
func TestRanOutEarlyWhileNobodyListened(t *testing.T) {
	t.Parallel()
	for name, runOut := range map[string]func(s *system.System, clock *lab.Clock, names []string){
		"clock ahead at the start": func(s *system.System, clock *lab.Clock, names []string) {
			s.Redis.Stop()
			ahead(s, clock, time.Minute)
			s.Redis.Start()
			gone(s, names)
			ahead(s, clock, 0)
		},
		"clock ahead for a while": func(s *system.System, clock *lab.Clock, names []string) {
			ahead(s, clock, time.Minute)
			gone(s, names)
			ahead(s, clock, 0)
		},
		"TTL cut": func(s *system.System, _ *lab.Clock, names []string) {
			for _, name := range names {
				s.Do("PEXPIRE", name, 1)
			}
			gone(s, names)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, err := lab.NewClock(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			s := system.New(t, devserver.Environment(clock.Environment()...))
			p := s.Start()
			c := s.Collect()
			const delay = 15_000
			at := s.Now() + delay
			want := setCrowd(s, "a", 50, delay)
			names := namesIn(want)
			p.Stop()
			runOut(s, clock, names)
			s.Start()
			if s.Now() >= at {
				t.Fatal("the timers were due before a timerd started: this shows nothing")
			}
			s.Expect(c, want...)
		})
	}
}

// No timerd runs for a day: the occurrence that was pending fires unless it is too late, then those of the last CATCHUP
// in their order. The rest is skipped, and counted.
func TestRepetitionsMissedForADay(t *testing.T) {
	t.Parallel()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := system.New(t, devserver.Environment(clock.Environment()...))
	p := s.Start()
	p.Stop()
	c := s.Collect()
	rows := []struct {
		name    string
		options []any
		fires   []int64 // which points of the grid, the first being 0
		skipped int64   // up to the pending one, point 24
	}{
		{"none", nil, []int64{0}, 23},
		{"some", []any{"CATCHUP", 3 * system.Hour}, []int64{0, 21, 22, 23}, 20},
		{"all", []any{"CATCHUP", 48 * system.Hour, "TIMES", 30}, nil, 0},
		{"late", []any{"CATCHUP", 3 * system.Hour, "LATE", system.Hour * 7 / 4}, []int64{22, 23}, 20},
		{"dropped", []any{"CATCHUP", 3 * system.Hour, "LATE", system.Hour * 7 / 4, "DROP"}, []int64{22, 23}, 20},
	}
	for point := range int64(24) {
		rows[2].fires = append(rows[2].fires, point)
	}
	firsts, fire, skipped := map[string]int64{}, 0, int64(0)
	for _, row := range rows {
		firsts[row.name] = s.Repeats("shop:repeat:missed:"+row.name, "p", system.Hour, row.options...)
		fire, skipped = fire+len(row.fires), skipped+row.skipped
	}
	const planned = "shop:repeat:missed:planned"
	s.Do("FCALL", "timer_repeat", 1, planned, "p", "CRON", "0 0 30 12 *", "TZ", "Europe/Berlin", "UNTIL",
		s.Now()+9*365*24*system.Hour)
	ahead(s, clock, 24*time.Hour+30*time.Minute)
	p = s.Start()
	all := s.Events(c, fire)
	for _, row := range rows {
		key, first, want := "shop:repeat:missed:"+row.name, firsts[row.name], []string(nil)
		for i, point := range row.fires {
			want = append(want, fmt.Sprintf("%d %d p", point*system.Hour, i+1))
		}
		if got := system.Occurred(all, key, first); !slices.Equal(got, want) {
			t.Errorf("%s: fired %q, want %q", row.name, got, want)
		}
		limit := ""
		if slices.Contains(row.options, any("LATE")) {
			limit = fmt.Sprintf(" late %d", system.Hour*7/4)
		}
		s.Next(key, first+24*system.Hour, fmt.Sprintf("payload p state pending%s repeat every 1h0m0s occurrence %d",
			limit, len(want)+1))
	}
	for i, e := range s.Letters(2) {
		if want := []int64{0, 21}[i]; e.Key.ID != "late" || e.Due.UnixMilli() != firsts["late"]+want*system.Hour ||
			e.Occurrence != 1 ||
			!strings.HasPrefix(e.DeadReason, event.ReasonLate) {
			t.Errorf("dead letter %d is %+v", i, e)
		}
	}
	if at := time.UnixMilli(s.Due(planned)).UTC(); at.Hour() != 23 || at.YearDay() < 363 {
		t.Errorf("planned for %s, want midnight of Berlin", at)
	}
	p.Measures(true, fmt.Sprintf("timerd_occurrences_skipped_total %d", skipped))
	c.Stays(fire, 100*time.Millisecond)
	p.Stop()
}

// ahead sets a clock ahead of the machine's.
func ahead(s *system.System, clock *lab.Clock, by time.Duration) {
	s.T.Helper()
	if err := clock.Set(by); err != nil {
		s.T.Fatal(err)
	}
}

// Redis's clock is an hour ahead for two seconds. What repeats goes on once it is back, and nothing fires twice.
func TestRepetitionsGoOnAfterAClockWasAhead(t *testing.T) {
	t.Parallel()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := system.New(t, devserver.Environment(clock.Environment()...))
	p := s.Start()
	c := s.Collect()
	s.Repeats("shop:repeat:each:second", "p", 1000)
	s.Do("FCALL", "timer_repeat", 1, "shop:repeat:each:cron", "p", "CRON", "* * * * * *")
	c.WaitFunc(system.Patience, system.AtLeast(4))
	ahead(s, clock, time.Hour)
	back := time.Now().Add(2 * time.Second)
	testenv.Eventually(t, system.Patience, func() bool { return time.Now().After(back) }, "two seconds")
	ahead(s, clock, 0)
	early := time.Now().Add(30 * time.Minute)
	testenv.Eventually(t, system.Patience, func() error {
		after := map[string]int{}
		for _, m := range c.All() {
			if e, err := event.Parse(m.Data); err == nil && e.Due.After(back) && e.Due.Before(early) {
				after[e.Key.String()]++
			}
		}
		if len(after) < 2 || after["shop:repeat:each:second"] < 3 || after["shop:repeat:each:cron"] < 3 {
			return fmt.Errorf("fired since: %v", after)
		}
		return nil
	}, "what repeats to go on")
	p.Measures(true, "timerd_occurrences_replanned_total [2-9]")
	p.Stop()
	if twice := c.DuplicateIDs(); len(twice) > 0 {
		t.Errorf("stored twice: %q", twice)
	}
}

// Redis's clock is an hour ahead, as after a bad start, until two timerds with claims in hand are killed. Once it is
// back, nothing that they left behind counts for longer than it can: two others hear plain timers, and the claims are
// over after a lease.
func TestTimerdsKilledWhileAClockWasAheadCluster(t *testing.T) {
	t.Parallel()
	clock, err := lab.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := system.New(t, devserver.Environment(clock.Environment()...))
	s.Env["TIMERD_SWEEP_INTERVAL"] = "500ms"
	proxy := testenv.NewProxy(t, s.NATS.Addr())
	ahead(s, clock, time.Hour)
	viaProxy := "TIMERD_NATS_URL=nats://" + proxy.Addr()
	doomed := []*system.Daemon{s.Start(viaProxy), s.Start(viaProxy)}
	c := s.Collect()
	proxy.Blackhole()
	want := setCrowd(s, "claimed", 20, 20)
	testenv.Eventually(t, system.Patience, func() bool {
		return s.Do("ZCARD",
			keys.Single.Firing()) == int64(len(want))
	}, "claims")
	for _, p := range doomed {
		p.Kill()
	}
	ahead(s, clock, 0)
	others := []*system.Daemon{s.Start(), s.Start()}
	// Both would stand by after four answers with two other listeners.
	s.After(s.Now() + 5_000)
	for i := range 20 {
		key := fmt.Sprintf("plain:b:c:%d", i)
		s.Do("SET", key, "p", "PX", 3000)
		want = append(want, key+"=p")
	}
	var all []event.Event // some of timers that are not due yet by the clock that is right
	for _, m := range c.Wait(len(want), system.Patience) {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	slices.Sort(want)
	if got := system.Payloads(all); !slices.Equal(got, want) {
		t.Errorf("fired %q, want %q", got, want)
	}
	s.Settled()
	for _, p := range others {
		p.Stop()
	}
}
