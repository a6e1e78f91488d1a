package faults_test

import (
	"net/http"
	"testing"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// Redis answers, but no claim works, and no hint is taken in: /readyz says so, and is 200 again once they work.
func TestNotReadyWhileClaimsOrHintsFail(t *testing.T) {
	t.Parallel()
	s := system.New(t, devserver.ACL(system.LeastPrivileged(t)))
	s.Env["TIMERD_REDIS_URL"] = s.Redis.UserURL("timerd", "secret", 0)
	p := s.Start()
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "app1:b:c:1", "p", "PX", 3600_000)
	s.Do("RENAME", keys.Single.Due(), "elsewhere")
	s.Do("SET", keys.Single.Due(), "no sorted set")
	s.Do("SET", "app1:b:plain:1", "p", "EX", 3600)
	p.ReadySays(http.StatusServiceUnavailable, "redis: ok",
		"claims: failed: looking for due timers has been failing for ",
		"keyspace events: failed: processing keyspace events has been failing for ")
	s.Do("DEL", keys.Single.Due())
	s.Do("RENAME", "elsewhere", keys.Single.Due())
	p.ReadySays(http.StatusOK, "claims: ok", "keyspace events: ok")
	s.Adopted("app1:b:plain:1")
	s.Do("FCALL", "timer_set", 1, "app1:b:c:1", "p", "PX", 20)
	s.Expect(c, "app1:b:c:1=p")
	p.Stop()
}
