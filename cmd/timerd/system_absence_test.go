package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Trigger keys are evicted while no timerd listens, and the operator mends the policy before one starts again.
func TestEvictedThenThePolicyMended(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	p.stop()
	at := s.now() + 15_000
	want := s.setCrowd("a", 500, at)
	names := namesIn(want)
	s.do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl", "maxmemory", "1mb")
	testenv.Eventually(t, patience, func() bool {
		_ = s.rdb.Set(t.Context(), "filler", strings.Repeat("x", 1000), 0).Err() // has Redis evict
		return s.rdb.Exists(t.Context(), names...).Val() == 0
	}, "keys to be evicted")
	s.do("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
	s.start()
	if s.now() >= at {
		t.Fatal("the timers were due before a timerd started: this shows nothing")
	}
	s.expect(c, want...)
}

// namesIn returns the keys in a list of what is to fire.
func namesIn(want []string) []string {
	names := make([]string, len(want))
	for i, line := range want {
		names[i], _, _ = strings.Cut(line, "=")
	}
	return names
}

// gone waits until keys are gone.
func (s *system) gone(names []string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() bool { return s.rdb.Exists(s.t.Context(), names...).Val() == 0 }, "keys to be gone")
}

// While no timerd listens, keys are deleted and nothing else happens to any: then that cancels their timers.
func TestDeletedWhileNobodyListened(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	names := namesIn(s.setCrowd("a", 3, s.now()+3600_000))
	testenv.Eventually(t, patience, func() bool { return len(s.do("KEYS", keys.MarkKey("*")).([]any)) == 1 }, "a mark")
	p.stop()
	s.do("DEL", names[1])
	s.start()
	testenv.Eventually(t, patience, func() bool {
		return errors.Is(s.rdb.ZScore(t.Context(), keys.Single.Due(), names[1]).Err(), redis.Nil)
	}, "the deleted timer to be cancelled")
	if left := s.do("ZCARD", keys.Single.Due()); left != int64(2) {
		t.Errorf("%v timers are left, want 2", left)
	}
}

// A timerd that starts beside another one cancels nothing that this one has not heard of, and what is deleted while the other
// one listens is cancelled.
func TestDeletedWhileAnotherStarts(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	names := namesIn(s.setCrowd("a", 200, s.now()+3600_000))
	p := s.start()
	for _, name := range names[:100] {
		s.do("DEL", name)
	}
	p.stop()
	testenv.Eventually(t, patience, func() bool { return s.do("ZCARD", keys.Single.Due()) == int64(100) }, "the deleted timers to be cancelled")
}
