package cluster_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// withReplica returns a system that reaches its Redis by a sentinel, and the replica of that Redis.
func withReplica(t *testing.T) (*system.System, *testenv.RedisServer) {
	t.Helper()
	s := system.New(t)
	host, port, _ := strings.Cut(s.Redis.Addr(), ":")
	replica := testenv.Redis(t, devserver.Directive("replicaof", host, port))
	s.Env["TIMERD_REDIS_MODE"] = "sentinel"
	s.Env["TIMERD_REDIS_URL"] = testenv.Sentinel(t, s.Redis)
	return s, replica
}

// The master dies with timers pending; its replica is promoted and has them.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	s, replica := withReplica(t)
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

	// As if the failover had lost the identity: a timerd that starts meanwhile finds that the other one serves this
	// Redis.
	s.Do("DEL", keys.Installation)
	s.Start().Stop()
	p.AwaitReady(true)
	p.Stop()
}

// A fix that is pasted reaches the master that the sentinels name when it is run, which is no longer the server of
// before.
func TestSentinelFix(t *testing.T) {
	t.Parallel()
	s, replica := withReplica(t)
	const setting, evicts, keeps = "maxmemory-policy", "allkeys-lru", "noeviction"
	if err := replica.Client().ConfigSet(t.Context(), setting, evicts).Err(); err != nil {
		t.Fatal(err)
	}
	s.Redis.Kill()
	var fix string
	testenv.Eventually(t, system.Patience, func() bool {
		_, said, _ := s.Run("", "doctor")
		fix = regexp.MustCompile(`redis-cli .* CONFIG SET ` + setting + ` ` + keeps).FindString(said)
		return fix != ""
	}, "the replica to be promoted, and doctor to report it")
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", fix).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", fix, err, out)
	}
	is, err := replica.Client().ConfigGet(t.Context(), setting).Result()
	if err != nil || is[setting] != keeps {
		t.Errorf("after %s: %v, %v", fix, is, err)
	}
}
