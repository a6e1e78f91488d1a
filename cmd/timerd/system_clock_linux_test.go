package main

import (
	"testing"
	"time"

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

// ahead sets a clock ahead of the machine's.
func (s *system) ahead(clock *redisserver.Clock, by time.Duration) {
	s.t.Helper()
	if err := clock.Set(by); err != nil {
		s.t.Fatal(err)
	}
}
