package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// partial has the other masters of a cluster serve their slots while one is away.
func partial() redisserver.Option {
	return redisserver.Directive("cluster-require-full-coverage", "no")
}

// owner returns the node that a slot was given to at the start of a cluster. It asks nobody.
func (s *clusterSystem) owner(slot int) *testenv.RedisServer {
	nodes := s.cluster.Nodes
	i := len(nodes) - 1
	for slot < i*keys.Slots/len(nodes) {
		i--
	}
	return nodes[i]
}

// keysOn returns n keys of timers on a node.
func (s *clusterSystem) keysOn(node *testenv.RedisServer, prefix string, n int) (all []string) {
	for i := 0; len(all) < n; i++ {
		if key := fmt.Sprintf("%s:b:c:%d", prefix, i); s.owner(keys.Slot(key)) == node {
			all = append(all, key)
		}
	}
	return all
}

// setOn sets timers on a node, without asking another one.
func (s *clusterSystem) setOn(node *testenv.RedisServer, in time.Duration, all ...string) (want []string) {
	s.T.Helper()
	client := node.Client()
	for _, key := range all {
		s.try("timer_set "+key, func() error {
			return client.FCall(s.T.Context(), "timer_set", []string{key}, "p", "PX", in.Milliseconds()).Err()
		})
		want = append(want, key+"=p")
	}
	return want
}

// A timerd that starts while a master is away serves the others within 10 s, and that one when it is back.
func TestClusterStartsWithoutAMaster(t *testing.T) {
	t.Parallel()
	installation, list := keys.Slot(keys.Installation), keys.Single.Slot()
	for _, test := range []struct {
		name   string
		slot   int  // whose master is away
		silent bool // it does not answer; else it refuses
		first  bool // no timerd has run before
	}{
		{"refuses", list, false, false},
		{"is silent", list, true, false},
		{"is silent at the first start", installation, true, true},
		{"refuses the first start", installation, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newClusterSystem(t, false, partial())
			if !test.first {
				s.Start().Stop()
			}
			victim := s.owner(test.slot)
			other := s.cluster.Nodes[0]
			if other == victim {
				other = s.cluster.Nodes[1]
			}
			if test.silent {
				victim.Pause()
			} else {
				victim.Kill()
			}
			watch := testenv.StartStopwatch()
			p := s.Launch()
			c := s.Collect()
			want := s.setOn(other, 10*time.Millisecond, s.keysOn(other, "early", 20)...)
			s.Expect(c, want...)
			watch.AtMost(t, 10*time.Second, "the start, until timers fire")
			p.ReadySays(http.StatusServiceUnavailable, "redis: failed: "+victim.Addr()+": ")
			if test.silent {
				victim.Resume()
			} else {
				victim.Start()
			}
			p.AwaitReady(true)
			want = append(want, s.setOn(victim, 10*time.Millisecond, s.keysOn(victim, "late", 20)...)...)
			s.Expect(c, want...)
			p.Stop()
		})
	}
}

// othersOf returns the nodes but one.
func (s *clusterSystem) othersOf(victim *testenv.RedisServer) (others []*testenv.RedisServer) {
	for _, node := range s.cluster.Nodes {
		if node != victim {
			others = append(others, node)
		}
	}
	return others
}

// fromApp waits for n events of an app.
func fromApp(app string, n int) func([]testenv.Message) error {
	return func(all []testenv.Message) error {
		got := 0
		for _, m := range all {
			if strings.HasPrefix(m.ID(), app+":") {
				got++
			}
		}
		if got < n {
			return fmt.Errorf("%d of %d events of %s", got, n, app)
		}
		return nil
	}
}

// A master that is silent keeps no other one's timers from repeating, and no other one's retries from being carried out. What is its own
// follows when it is back.
func TestClusterSilentMasterDelaysNoOther(t *testing.T) {
	t.Parallel()
	const every, lasts = 400, 6 * time.Second
	s := newClusterSystem(t, false, partial())
	s.Env["TIMERD_RETRY"] = "*=50ms"
	p := s.Start()
	c := s.Collect()
	victim := s.cluster.Nodes[1]
	healthy := map[string]int{} // occurrences of repeating timers on the others
	for _, node := range s.cluster.Nodes {
		client := node.Client()
		n, interval := 15, every
		if node == victim { // so that some of its firings wait to be settled when it falls silent
			n, interval = 60, every/2
		}
		for _, key := range s.keysOn(node, "repeats", n) {
			if err := client.FCall(t.Context(), "timer_repeat", []string{key}, "p", "EVERY", interval).Err(); err != nil {
				t.Fatal(err)
			}
			if node != victim {
				healthy[key] = 0
			}
		}
	}
	c.WaitFunc(system.Patience, system.AtLeast(200)) // all repeat
	victim.Pause()
	paused := time.Now()
	var fired int
	testenv.Eventually(t, system.Patience, func() bool { fired = c.Len(); return time.Since(paused) > time.Second }, "the silence")

	lost := s.keysOn(victim, "lost", 600)
	s.Ask(lost...)
	app := "good"
	var good []string
	for _, node := range s.othersOf(victim) {
		good = append(good, s.keysOn(node, app, 100)...)
	}
	asked := testenv.StartStopwatch()
	s.Ask(good...)
	testenv.Eventually(t, system.Patience, func() bool { return time.Since(paused) > lasts }, "the silence to last")
	meanwhile := c.All()[fired:]
	c.WaitFunc(system.Patience, fromApp(app, len(good)))
	asked.AtMost(t, lasts, "retries on the others")
	for _, m := range meanwhile {
		e, err := event.Parse(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if _, is := healthy[e.Key.String()]; is {
			healthy[e.Key.String()]++
		}
	}
	least := int((lasts-time.Second)/(every*time.Millisecond)) / 2 // the machine may be slow
	for key, n := range healthy {
		if n < least {
			t.Errorf("%s has fired %d times beside a silent master, want at least %d", key, n, least)
		}
	}
	victim.Resume()
	c.WaitFunc(system.Patience, fromApp("lost", len(lost)))
	s.NoRequests()
	p.AwaitReady(true)
	p.Stop()
}
