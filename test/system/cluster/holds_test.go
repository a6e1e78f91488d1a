package cluster_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// In a cluster, with a failover while timers are held and another while they are released.
func TestClusterHolds(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, true, patient())
	p := s.Start()
	s.Start()
	c := s.Collect()
	wrong, told := s.Command("hold", "load")
	wrong.Env = append(wrong.Env, "TIMERD_REDIS_MODE=standalone", "TIMERD_REDIS_URL="+s.cluster.Nodes[0].URL(0))
	if err := wrong.Run(); err == nil || !strings.Contains(told.String(), "set TIMERD_REDIS_MODE=cluster") {
		t.Errorf("hold on a node as on a single server: %v\n%s", err, told)
	}
	s.SaysAtLast("hold load:held", "load:held held")
	want := s.load("held", 400, 2*time.Second, 2*time.Second)
	others := s.load("free", 200, 2*time.Second, 2*time.Second)
	s.Expect(c, others...)
	s.cluster.Failover(s.cluster.Nodes[3])
	s.Holds("load:held", 400)
	s.Says(0, "cancel load:held:t:4", "cancelled")
	want = slices.DeleteFunc(want, func(w string) bool { return w == "load:held:t:4=4" })
	began := s.client.Time(t.Context()).Val()
	cmd, said := s.Command("resume", "load:held", "--rate", "100/s")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.WaitFunc(system.Patience, system.AtLeast(len(others)+100))
	s.cluster.Failover(s.cluster.Nodes[4])
	p.Kill()
	all := s.Expect(c, append(want, others...)...)
	if err := cmd.Wait(); err != nil {
		t.Errorf("resume: %v\n%s", err, said)
	}
	all = slices.DeleteFunc(all, func(e event.Event) bool { return e.Key.Module == "free" })
	slices.SortFunc(all, func(a, b event.Event) int { return a.Time.Compare(b.Time) })
	if took := all[len(all)-1].Time.Sub(began); took < 3500*time.Millisecond {
		t.Errorf("399 at 100 a second took %s", took)
	}
	s.emptied()
	if views := s.HeldNow(); len(views) > 0 {
		t.Errorf("still held: %+v", views)
	}
}
