package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// says waits until /readyz has a status, and a line that begins with each text.
func (p *daemon) says(want int, lines ...string) {
	p.t.Helper()
	testenv.Eventually(p.t, patience, func() error {
		status, body, err := p.get("/readyz")
		if err != nil {
			return err
		}
		for _, line := range lines {
			if status != want || !strings.Contains("\n"+body, "\n"+line) {
				return fmt.Errorf("/readyz: %d %s", status, body)
			}
		}
		return nil
	}, fmt.Sprintf("/readyz to be %d with %q", want, lines))
}

// Redis answers, but no claim works, or no hint is taken in: /readyz says so, and is 200 again once they work.
func TestNotReadyWhileClaimsOrHintsFail(t *testing.T) {
	t.Parallel()
	s := newSystem(t, redisserver.ACL(leastPrivileged(t)))
	s.env["TIMERD_REDIS_URL"] = s.redis.UserURL("timerd", "secret", 0)
	p := s.start()
	c := s.collect()
	const hints, claims = "keyspace events: failed: taking keyspace events in has been failing for ", "claims: failed: "

	s.do("ACL", "SETUSER", "timerd", "-zadd")
	s.do("SET", "app1:b:plain:1", "p", "EX", 3600)
	s.do("FCALL", "timer_set", 1, "app1:b:c:1", "p", "PX", 100)
	p.says(http.StatusServiceUnavailable, "redis: ok", claims+"claiming due timers has been failing for ", hints)
	s.do("ACL", "SETUSER", "timerd", "+zadd")
	p.says(http.StatusOK, "claims: ok", "keyspace events: ok")

	s.do("ACL", "SETUSER", "timerd", "-evalsha")
	p.says(http.StatusServiceUnavailable, "redis: ok", claims+"looking for due timers has been failing for ")
	s.do("ACL", "SETUSER", "timerd", "+evalsha")
	p.says(http.StatusOK, "claims: ok", "keyspace events: ok")
	s.adopted("app1:b:plain:1")
	s.expect(c, "app1:b:c:1=p")
	p.stop()
}
