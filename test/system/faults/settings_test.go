package faults_test

import (
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// timerd works with a Redis that lets nobody in without a certificate, by plain keys as by timer_set.
func TestRedisThatDemandsCertificates(t *testing.T) {
	t.Parallel()
	authority := testenv.NewAuthority(t)
	addr, opts := authority.RedisTLS(authority.Issue("redis", "127.0.0.1"))
	s := system.New(t, opts...)
	cert, key := authority.Issue("timerd")
	s.Env["TIMERD_REDIS_URL"] = "rediss://" + addr + "/0"
	s.Env["TIMERD_REDIS_CA"], s.Env["TIMERD_REDIS_CERT"], s.Env["TIMERD_REDIS_KEY"] = authority.File, cert, key
	p := s.Start()
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "a:b:c:explicit", "1", "PX", 300)
	s.Do("SET", "a:b:c:plain", "2", "PX", system.Soon)
	s.Adopted("a:b:c:plain")
	s.Expect(c, "a:b:c:explicit=1", "a:b:c:plain=2")
	s.Settled()
	p.Stop()
}
