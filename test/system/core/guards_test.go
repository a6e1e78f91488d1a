package core_test

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/test/system"
)

// A paid order fires no timeout, and the retry of an order that was paid meanwhile does not fire either.
func TestGuardedTimersDoNotFire(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=1s,1s,1s"
	p := s.Start()
	c := s.Collect()
	const paid, unpaid = "shop:order:timeout:paid", "shop:order:timeout:unpaid"
	s.Do("SET", "order:paid", "yes")
	s.Do("FCALL", "timer_set", 1, paid, "1", "PX", 300, "UNLESS", "order:paid")
	s.Do("FCALL", "timer_set", 1, unpaid, "2", "PX", 300, "UNLESS", "order:unpaid", "IF", "order:paid")
	e := s.Events(c, 1)[0]
	if e.Key.String() != unpaid || e.Guards != (policy.Guards{Unless: "order:unpaid", If: "order:paid"}) {
		t.Fatalf("fired %+v", e)
	}
	s.Settled()
	s.Do("SET", "order:unpaid", "paid by now")
	s.Retry(c.All()[0])
	s.NoRequests()
	s.Settled()
	c.Stays(1, 100*time.Millisecond)
	if got := s.Do("FCALL_RO", "timer_get", 1, unpaid); got != nil {
		t.Errorf("timer_get of the retry: %v", got)
	}
	_, metrics, err := p.Get("/metrics")
	if want := "timerd_guarded_total 2\n"; err != nil || !strings.Contains(metrics, want) {
		t.Errorf("the metrics lack %s (%v)", want, err)
	}
}
