package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// setInCrowd sets timers that are due at a time on Redis's clock and returns their keys and the events to expect.
func (s *system) setInCrowd(n int, at int64) (names, want []string) {
	s.t.Helper()
	for i := range n {
		names = append(names, fmt.Sprintf("a:b:c:%d", i))
		want = append(want, names[i]+"=p")
	}
	_, err := s.rdb.Pipelined(s.t.Context(), func(pipe redis.Pipeliner) error {
		for _, name := range names {
			pipe.FCall(s.t.Context(), "timer_set", []string{name}, "p", "PXAT", at)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return names, want
}

// Trigger keys are evicted while no timerd listens, and the operator mends the policy before one starts again.
func TestEvictedThenThePolicyMended(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	p.stop()
	at := s.now() + 15_000
	names, want := s.setInCrowd(500, at)
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
	names, _ := s.setInCrowd(3, s.now()+3600_000)
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
	names, _ := s.setInCrowd(200, s.now()+3600_000)
	p := s.start()
	for _, name := range names[:100] {
		s.do("DEL", name)
	}
	p.stop()
	testenv.Eventually(t, patience, func() bool { return s.do("ZCARD", keys.Single.Due()) == int64(100) }, "the deleted timers to be cancelled")
}
