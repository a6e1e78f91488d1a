package cluster_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/test/system"
)

// One master of a cluster gets an older copy of its data while timerd is at work. Its timers that have fired since are
// ended, and cancelled ones fire. Nothing fires twice, and the other masters' timers go on.
func TestRestoredMasterIsCompared(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	s.Start().Stop()
	window := s.ShortestWindow()
	c := s.Collect()
	master := s.cluster.Nodes[1]
	node := &system.System{T: t, Redis: master, RDB: master.Client()}
	const fired, open = 30, 10
	cancelled := s.keysOn(master, "open", open)
	want := append(s.setOn(master, 20*time.Millisecond, s.keysOn(master, "fired", fired)...),
		s.setOn(master, 20*time.Millisecond, cancelled...)...)
	want = append(want, s.setOn(s.cluster.Nodes[0], time.Second, s.keysOn(s.cluster.Nodes[0], "other", fired)...)...)
	now := node.Now()
	node.After(now + 20)
	old := now + window.Milliseconds()/2 + 1000 // then a double would not be forgiven
	backup := node.BackUp()
	s.cluster.AwaitOK()
	for _, key := range cancelled {
		got, err := node.RDB.FCall(t.Context(), "timer_cancel", []string{key}).Text()
		if err != nil || got != "cancelled" {
			t.Fatalf("cancel: %v, %v", got, err)
		}
	}
	p := s.Start()
	c.WaitFunc(system.Patience, system.AtLeast(2*fired))
	s.emptied()

	node.After(old)
	node.PutBack(backup)
	want = append(want, s.setOn(s.cluster.Nodes[2], time.Second, s.keysOn(s.cluster.Nodes[2], "later", 1)...)...)
	s.Expect(c, want...)
	s.emptied()
	s.Balances()
	p.Stop()
	if log := p.Log.String(); !strings.Contains(log, fmt.Sprintf("ended=%d ", fired)) {
		t.Errorf("%d timers that have fired were not ended; its log:\n%s", fired, log)
	}
}
