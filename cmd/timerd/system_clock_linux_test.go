package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/redisserver"
)

// Keys run out before their time while no timerd listens: Redis's clock is ahead for some seconds, at its start or later, or
// somebody has cut their TTLs.
func TestRanOutEarlyWhileNobodyListened(t *testing.T) {
	t.Parallel()
	for name, runOut := range map[string]func(s *system, clock *redisserver.Clock, names []string){
		"clock ahead at the start": func(s *system, clock *redisserver.Clock, names []string) {
			s.redis.Stop()
			s.ahead(clock, time.Minute)
			s.redis.Start()
			s.gone(names)
			s.ahead(clock, 0)
		},
		"clock ahead for a while": func(s *system, clock *redisserver.Clock, names []string) {
			s.ahead(clock, time.Minute)
			s.gone(names)
			s.ahead(clock, 0)
		},
		"TTL cut": func(s *system, _ *redisserver.Clock, names []string) {
			for _, name := range names {
				s.do("PEXPIRE", name, 1)
			}
			s.gone(names)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock, err := redisserver.NewClock(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			s := newSystem(t, redisserver.WithClock(clock))
			p := s.start()
			c := s.collect()
			at := s.now() + 15_000
			want := s.setCrowd("a", 50, at)
			names := namesIn(want)
			p.stop()
			runOut(s, clock, names)
			s.start()
			if s.now() >= at {
				t.Fatal("the timers were due before a timerd started: this shows nothing")
			}
			s.expect(c, want...)
		})
	}
}

// No timerd runs for a day: the occurrence that was pending fires unless it is too late, then those of the last CATCHUP in their
// order. The rest is skipped, and counted.
func TestRepetitionsMissedForADay(t *testing.T) {
	t.Parallel()
	clock, err := redisserver.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := newSystem(t, redisserver.WithClock(clock))
	p := s.start()
	p.stop()
	c := s.collect()
	rows := []struct {
		name    string
		options []any
		fires   []int64 // which points of the grid, the first being 0
		skipped int64   // up to the one that is pending then, which is point 24
	}{
		{"none", nil, []int64{0}, 23},
		{"some", []any{"CATCHUP", 3 * hour}, []int64{0, 21, 22, 23}, 20},
		{"all", []any{"CATCHUP", 48 * hour, "TIMES", 30}, nil, 0},
		{"late", []any{"CATCHUP", 3 * hour, "LATE", hour * 7 / 4}, []int64{22, 23}, 20},
		{"dropped", []any{"CATCHUP", 3 * hour, "LATE", hour * 7 / 4, "DROP"}, []int64{22, 23}, 20},
	}
	for point := range int64(24) {
		rows[2].fires = append(rows[2].fires, point)
	}
	firsts, fire, skipped := map[string]int64{}, 0, int64(0)
	for _, row := range rows {
		firsts[row.name] = s.repeats("shop:repeat:missed:"+row.name, "p", hour, row.options...)
		fire, skipped = fire+len(row.fires), skipped+row.skipped
	}
	const planned = "shop:repeat:missed:planned"
	s.do("FCALL", "timer_repeat", 1, planned, "p", "CRON", "0 0 30 12 *", "TZ", "Europe/Berlin", "UNTIL", s.now()+9*365*24*hour)
	s.ahead(clock, 24*time.Hour+30*time.Minute)
	p = s.start()
	all := s.events(c, fire)
	for _, row := range rows {
		key, first, want := "shop:repeat:missed:"+row.name, firsts[row.name], []string(nil)
		for i, point := range row.fires {
			want = append(want, fmt.Sprintf("%d %d p", point*hour, i+1))
		}
		if got := occurred(all, key, first); !slices.Equal(got, want) {
			t.Errorf("%s: fired %q, want %q", row.name, got, want)
		}
		limit := ""
		if slices.Contains(row.options, any("LATE")) {
			limit = fmt.Sprintf(" late %d", hour*7/4)
		}
		s.next(key, first+24*hour, fmt.Sprintf("payload p state pending%s repeat every 1h0m0s occurrence %d", limit, len(want)+1))
	}
	for i, e := range s.letters(2) {
		if want := []int64{0, 21}[i]; e.Key.ID != "late" || e.Due.UnixMilli() != firsts["late"]+want*hour || e.Occurrence != 1 ||
			!strings.HasPrefix(e.DeadReason, event.ReasonLate) {
			t.Errorf("dead letter %d is %+v", i, e)
		}
	}
	if at := time.UnixMilli(s.due(planned)).UTC(); at.Hour() != 23 || at.YearDay() < 363 {
		t.Errorf("planned for %s, want midnight of Berlin", at)
	}
	p.measures(true, fmt.Sprintf("timerd_occurrences_skipped_total %d", skipped))
	c.Stays(fire, 100*time.Millisecond)
	p.stop()
}

// ahead sets a clock ahead of the machine's.
func (s *system) ahead(clock *redisserver.Clock, by time.Duration) {
	s.t.Helper()
	if err := clock.Set(by); err != nil {
		s.t.Fatal(err)
	}
}
