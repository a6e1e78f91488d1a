package cluster_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// spread sets n timers of an app on a node, by its own clock, due one after the other within a second.
func (s *clusterSystem) spread(node *testenv.RedisServer, app string, n int) {
	s.T.Helper()
	for i, key := range s.keysOn(node, app, n) {
		s.setOn(node, 500*time.Millisecond+time.Second*time.Duration(i)/time.Duration(n), key)
	}
}

// punctual waits for n events of an app that were set since a watch was started, and fails if one was late by more than
// a second.
func (s *clusterSystem) punctual(c *testenv.Collector, watch testenv.Stopwatch, app string, n int) {
	s.T.Helper()
	var late []time.Duration
	for _, m := range c.WaitFunc(system.Patience, fromApp(app, n)) {
		e, err := event.Parse(m.Data)
		if err != nil {
			s.T.Fatal(err)
		}
		if e.Key.App == app {
			late = append(late, e.Time.Sub(e.Due))
		}
	}
	watch.Late(s.T, slices.Max(late), time.Second, "timers of "+app)
}

// The master that has the heartbeats and the list of holds is silent, and the first timerd in rank dies: the others'
// timers fire on time.
func TestClusterSilentListDelaysNoOther(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, partial())
	first := s.Start()
	s.Start()
	s.Start()
	c := s.Collect()
	victim := s.owner(keys.Single.Slot())
	s.SaysAtLast("hold held", "held held") //nolint:dupword // of a namespace of that name
	for _, node := range s.othersOf(victim) {
		s.spread(node, "held", 20)
	}
	victim.Pause()
	first.Kill()
	const each = 100
	for round := range 4 {
		app, watch := fmt.Sprintf("round-%d", round), testenv.StartStopwatch()
		for _, node := range s.othersOf(victim) {
			s.spread(node, app, each)
		}
		s.punctual(c, watch, app, 2*each)
	}
	for _, m := range c.All() {
		if e, err := event.Parse(m.Data); err != nil || e.Key.App == "held" {
			t.Errorf("%s fired, %v", m.ID(), err)
		}
	}
	victim.Resume()
}

// stutter stops a server again and again, so that its answers take long, until the returned function is called.
func stutter(node *testenv.RedisServer, stopped, atWork time.Duration) (end func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			node.Pause()
			<-time.After(stopped)
			node.Resume()
			select {
			case <-over:
				return
			case <-time.After(atWork):
			}
		}
	}()
	return func() {
		close(over)
		<-ended
	}
}

// A master answers, but slowly, and thousands of retries are asked for there. Retries on the other masters, in slots
// without any yet, are carried out before most of them, however slow the machine, and the others' timers fire on time.
func TestClusterSlowMasterDelaysNoOther(t *testing.T) {
	t.Parallel()
	const slow, good = 3000, 50
	s := newClusterSystem(t, false, partial())
	s.Env["TIMERD_RETRY"] = "*=50ms"
	s.Start()
	c := s.Collect()
	victim := s.cluster.Nodes[1]
	bad := s.keysOn(victim, "bad", slow)
	s.Ask(bad[:20]...) // it is known to work
	c.WaitFunc(system.Patience, fromApp("bad", 20))
	end := stutter(victim, 300*time.Millisecond, 15*time.Millisecond)
	defer end()
	s.Ask(bad[20:]...)
	for round := range 3 {
		app, watch := fmt.Sprintf("round-%d", round), testenv.StartStopwatch()
		for _, node := range s.othersOf(victim) {
			s.spread(node, app+"-timer", good)
		}
		var all []string
		for _, node := range s.othersOf(victim) {
			all = append(all, s.keysOn(node, app, good)...)
		}
		before := c.Len()
		s.Ask(all...)
		meanwhile := c.WaitFunc(system.Patience, fromApp(app, len(all)))[before:]
		n := 0
		for _, m := range meanwhile {
			if strings.HasPrefix(m.ID(), "bad:") {
				n++
			}
		}
		if n > slow/2 { // behind each other they would come after all that are left
			t.Errorf("%d retries of the slow master fired before %d of the others", n, len(all))
		}
		s.punctual(c, watch, app+"-timer", 2*good)
	}
}
