package faults_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

func TestEvictedTimersFire(t *testing.T) {
	t.Parallel()
	s := system.New(t, devserver.Directive("maxmemory-policy", "volatile-ttl"))
	s.Start()
	c := s.Collect()
	const n = 50
	var want []string
	at := s.Now() + 10_000
	for i := range n {
		key := fmt.Sprintf("a:b:c:%d", i)
		s.Do("SET", key, "payload", "PXAT", at)
		want = append(want, key+"=payload")
	}
	s.Adopted(fmt.Sprintf("a:b:c:%d", n-1))
	s.Do("CONFIG", "SET", "maxmemory", "1mb")
	testenv.Eventually(t, system.Patience, func() bool {
		// Any command with a payload has Redis evict; it is over its limit anyway.
		_ = s.RDB.Set(t.Context(), "filler", strings.Repeat("x", 1000), time.Hour).Err()
		return s.RDB.Exists(t.Context(), "a:b:c:0").Val() == 0
	}, "keys to be evicted")
	s.Do("CONFIG", "SET", "maxmemory", "0")
	if s.Now() >= at {
		t.Fatal("the timers were due before they were evicted: this shows nothing")
	}
	s.Expect(c, want...)
}
