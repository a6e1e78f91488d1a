package cluster_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// namesOnly looks at /readyz until a check fails that names the victim, and then for a time. It fails if the line of a
// check that fails names another server.
func (s *clusterSystem) namesOnly(p *system.Daemon, victim *testenv.RedisServer, check string, span time.Duration) {
	s.T.Helper()
	var since time.Time // when the victim was named first
	testenv.Eventually(s.T, system.Patience, func() error {
		_, body, err := p.Get("/readyz")
		if err != nil {
			return err
		}
		for line := range strings.Lines(body) {
			for _, node := range s.cluster.Nodes {
				if node != victim && strings.Contains(line, node.Addr()) {
					s.T.Fatalf("%s is away, and /readyz names %s:\n%s", victim.Addr(), node.Addr(), body)
				}
			}
			if since.IsZero() && strings.HasPrefix(line, check+": failed: "+victim.Addr()+": ") {
				since = time.Now()
			}
		}
		if since.IsZero() || time.Since(since) < span {
			return fmt.Errorf("/readyz: %s", body)
		}
		return nil
	}, "the check "+check+" to name the master that is away")
}

// quiet waits until each line of /readyz is ok: a finding that a timerd has published outlives its cause by seconds.
func (s *clusterSystem) quiet(p *system.Daemon) {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, func() error {
		_, body, err := p.Get("/readyz")
		for line := range strings.Lines(body) {
			if err == nil && !strings.HasSuffix(line, ": ok\n") {
				err = fmt.Errorf("/readyz: %s", line)
			}
		}
		return err
	}, "every check to be ok")
}

// A master that is silent takes no time from the questions to the others.
func TestClusterReadyNamesTheSilentMaster(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, devserver.Directive("cluster-require-full-coverage", "no"))
	p := s.Start()
	s.quiet(p)
	victim := s.cluster.Nodes[1]
	victim.Pause()
	s.namesOnly(p, victim, "redis", 5*time.Second)
	victim.Resume()
	p.ReadySays(http.StatusOK, "redis: ok")
	p.Stop()
}

// While a master is away, the cluster is down as each of the others says. That is no fault of theirs.
func TestClusterReadyNamesTheDeadMaster(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false)
	p := s.Start()
	s.quiet(p)
	victim := s.cluster.Nodes[1]
	victim.Kill()
	const down = "; the cluster is down: there are slots without a master"
	testenv.Eventually(t, system.Patience, func() error {
		_, body, err := p.Get("/readyz")
		if err == nil && !strings.Contains(body, down+"\n") {
			err = fmt.Errorf("/readyz: %s", body)
		}
		return err
	}, "the cluster to be down")
	s.namesOnly(p, victim, "redis", 3*time.Second)
	victim.Start()
	p.ReadySays(http.StatusOK, "redis: ok")
	p.Stop()
}

// A timerd that starts while a master is away, without which the cluster serves no slot, waits for it.
func TestClusterDownStartsOnceAMasterIsBack(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false)
	s.startsWithout(s.cluster.Master(keys.Slot(keys.Installation)), "a master of the cluster is away")
}

// startsWithout starts a timerd while a master is away, which it is to log, and is back then.
func (s *clusterSystem) startsWithout(victim *testenv.RedisServer, log string) {
	s.T.Helper()
	victim.Kill()
	p := s.Launch()
	testenv.Eventually(s.T, system.Patience, func() bool { return strings.Contains(p.Log.String(), log) },
		"timerd to try again")
	victim.Start()
	p.AwaitReady(true)
	c := s.Collect()
	s.durably("a:b:c:1", "p", 500*time.Millisecond)
	s.Expect(c, "a:b:c:1=p")
	p.Stop()
}
