package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/test/system"
)

// In a cluster, the commands and the metrics are about all nodes.
func TestCancelAllAndForecastInACluster(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	a, b := s.Start(), s.Start()
	const n = 150
	for i := range n {
		s.durably(fmt.Sprintf("shop:m:t:%d", i), "p", 5*time.Minute)
		if i%3 == 0 {
			s.durably(fmt.Sprintf("pay:m:t:%d", i), "p", 30*time.Minute)
		}
	}
	for _, p := range []*system.Daemon{a, b} {
		p.Measures(true, `timerd_due_timers\{within="10m"\} `+fmt.Sprint(n))
		p.Measures(true, `timerd_due_timers\{within="1h"\} `+fmt.Sprint(n+n/3))
	}
	if out := s.OK("forecast"); !strings.HasSuffix(out, fmt.Sprintf("\n%d timers, and 0 due already\n", n+n/3)) {
		t.Error(out)
	}
	if out := s.OK("forecast", "pay"); !strings.HasSuffix(out, fmt.Sprintf("\n%d timers, and 0 due already\n", n/3)) {
		t.Error(out)
	}
	if out := s.OK("cancel", "--all", "shop", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", n) {
		t.Error(out)
	}
	a.Measures(true, `timerd_due_timers\{within="10m"\} 0`)
	if out := s.OK("ls", "--limit", "0", "--json"); strings.Count(out, "\n") != n/3 {
		t.Errorf("%d timers are left", strings.Count(out, "\n"))
	}
	if out := s.OK("cancel", "--all", "pay", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", n/3) {
		t.Error(out)
	}
	s.emptied()
}
