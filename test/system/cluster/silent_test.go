package cluster_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
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
