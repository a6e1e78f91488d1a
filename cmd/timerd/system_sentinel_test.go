package main

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// The master dies with timers pending; its replica is promoted and has them.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	host, port, _ := strings.Cut(s.redis.Addr(), ":")
	replica := testenv.Redis(t, redisserver.Directive("replicaof", host, port))
	s.env["TIMERD_REDIS_MODE"] = "sentinel"
	s.env["TIMERD_REDIS_URL"] = testenv.Sentinel(t, s.redis)
	p := s.start()
	c := s.collect()

	s.do("FCALL", "timer_set", 1, "a:b:c:explicit", "1", "PX", 5000)
	s.do("SET", "a:b:c:plain", "2", "PX", 5500)
	s.adopted("a:b:c:plain")
	s.repeats("a:b:c:repeated", "5", 2000, "TIMES", 4, "CATCHUP", hour)
	if n := s.do("WAIT", 1, 5000); n != int64(1) {
		t.Fatalf("%v replicas have the timers", n)
	}
	s.redis.Kill()
	s.rdb = replica.Client()
	testenv.Eventually(t, patience, func() error {
		return s.rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:after"}, "3", "PX", 500).Err()
	}, "the replica to be promoted")
	s.do("SET", "a:b:c:audited", "4", "PX", 4000)
	s.expect(c, "a:b:c:explicit=1", "a:b:c:plain=2", "a:b:c:after=3", "a:b:c:audited=4",
		"a:b:c:repeated=5", "a:b:c:repeated=5", "a:b:c:repeated=5", "a:b:c:repeated=5")
	p.awaitReady(true)
	s.settled()

	// As if the failover had lost the identity: a timerd that starts meanwhile finds that the other one serves this Redis.
	s.do("DEL", keys.Installation)
	s.start().stop()
	p.awaitReady(true)
	p.stop()
}
