package cluster_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// The master dies with timers pending; its replica is promoted and has them.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	host, port, _ := strings.Cut(s.Redis.Addr(), ":")
	replica := testenv.Redis(t, devserver.Directive("replicaof", host, port))
	s.Env["TIMERD_REDIS_MODE"] = "sentinel"
	s.Env["TIMERD_REDIS_URL"] = testenv.Sentinel(t, s.Redis)
	p := s.Start()
	c := s.Collect()

	s.Do("FCALL", "timer_set", 1, "a:b:c:explicit", "1", "PX", 5000)
	s.Do("SET", "a:b:c:plain", "2", "PX", 5500)
	s.Adopted("a:b:c:plain")
	s.Repeats("a:b:c:repeated", "5", 2000, "TIMES", 4, "CATCHUP", system.Hour)
	if n := s.Do("WAIT", 1, 5000); n != int64(1) {
		t.Fatalf("%v replicas have the timers", n)
	}
	s.Redis.Kill()
	s.RDB = replica.Client()
	testenv.Eventually(t, system.Patience, func() error {
		return s.RDB.FCall(t.Context(), "timer_set", []string{"a:b:c:after"}, "3", "PX", 500).Err()
	}, "the replica to be promoted")
	s.Do("SET", "a:b:c:audited", "4", "PX", 4000)
	s.Expect(c, "a:b:c:explicit=1", "a:b:c:plain=2", "a:b:c:after=3", "a:b:c:audited=4",
		"a:b:c:repeated=5", "a:b:c:repeated=5", "a:b:c:repeated=5", "a:b:c:repeated=5")
	p.AwaitReady(true)
	s.Settled()

	// As if the failover had lost the identity: a timerd that starts meanwhile finds that the other one serves this Redis.
	s.Do("DEL", keys.Installation)
	s.Start().Stop()
	p.AwaitReady(true)
	p.Stop()
}
