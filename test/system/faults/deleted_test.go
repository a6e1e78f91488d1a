package faults_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// Trigger keys are evicted while no timerd listens, and the operator mends the policy before one starts again.
func TestEvictedTimersAfterANewPolicy(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	p.Stop()
	at := s.Now() + 15_000
	want := setCrowd(s, "a", 500, 15_000)
	names := namesIn(want)
	s.Do("CONFIG", "SET", "maxmemory-policy", "volatile-ttl", "maxmemory", "1mb")
	testenv.Eventually(t, system.Patience, func() bool {
		_ = s.RDB.Set(t.Context(), "filler", strings.Repeat("x", 1000), 0).Err() // has Redis evict
		return s.RDB.Exists(t.Context(), names...).Val() == 0
	}, "keys to be evicted")
	s.Do("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction")
	s.Start()
	if s.Now() >= at {
		t.Fatal("the timers were due before a timerd started: this shows nothing")
	}
	s.Expect(c, want...)
}

// namesIn returns the keys in a list of expected firings.
func namesIn(want []string) []string {
	names := make([]string, len(want))
	for i, line := range want {
		names[i], _, _ = strings.Cut(line, "=")
	}
	return names
}

// gone waits until keys are gone.
func gone(s *system.System, names []string) {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, func() bool { return s.RDB.Exists(s.T.Context(), names...).Val() == 0 },
		"keys to be gone")
}

// While no timerd listens, keys are deleted and nothing else happens to any: then that cancels their timers.
func TestDeletedWhileNobodyListened(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	names := namesIn(setCrowd(s, "a", 3, 3600_000))
	testenv.Eventually(t, system.Patience, func() bool { return len(s.Do("KEYS", keys.MarkKey("*")).([]any)) == 1 },
		"a mark")
	p.Stop()
	s.Do("DEL", names[1])
	s.Start()
	testenv.Eventually(t, system.Patience, func() bool {
		return errors.Is(s.RDB.ZScore(t.Context(), keys.Single.Due(), names[1]).Err(), redis.Nil)
	}, "the deleted timer to be cancelled")
	if left := s.Do("ZCARD", keys.Single.Due()); left != int64(2) {
		t.Errorf("%v timers are left, want 2", left)
	}
}

// A timerd that starts beside another one cancels no timer unknown to itself, and a key deleted while the other one
// listens is cancelled.
func TestDeletedWhileAnotherStarts(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	names := namesIn(setCrowd(s, "a", 200, 3600_000))
	p := s.Start()
	for _, name := range names[:100] {
		s.Do("DEL", name)
	}
	p.Stop()
	testenv.Eventually(t, system.Patience, func() bool { return s.Do("ZCARD", keys.Single.Due()) == int64(100) },
		"the deleted timers to be cancelled")
}
