package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
	"github.com/timerd-io/timerd/test/system"
)

// clusterSystem is a system on a Redis Cluster of three masters.
type clusterSystem struct {
	*system.System
	cluster *testenv.RedisCluster
	client  *redis.ClusterClient
}

func newClusterSystem(t testing.TB, replicas bool, opts ...devserver.RedisOption) *clusterSystem {
	t.Helper()
	s := &clusterSystem{System: &system.System{T: t, NATS: testenv.NATS(t)},
		cluster: testenv.Cluster(t, 3, replicas, opts...)}
	s.client, s.JS = s.cluster.Client(), s.NATS.JetStream()
	t.Cleanup(s.tell)
	s.Env = map[string]string{
		"TIMERD_REDIS_URL":  s.cluster.URL(),
		"TIMERD_REDIS_MODE": "cluster",
		"TIMERD_NATS_URL":   s.NATS.URL(),
		"TIMERD_NAMESPACES": "*",
		"TIMERD_LEASE":      "2s",
	}
	return s
}

// tell logs the masters' timers after a failure: the missing ones may be there.
func (s *clusterSystem) tell() {
	if !s.T.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	found, err := schedule.New(s.client, schedule.DefaultMaxPayload).Nodes(ctx)
	if err != nil {
		s.T.Logf("what the masters have: %v", err)
	}
	for _, n := range found {
		scan, err := n.ScanDue(ctx, time.Hour, time.Hour)
		s.T.Logf("%s has %+v, %v", n.Name(), scan, err)
	}
}

// patient has the nodes of a cluster consider one failed only after a long silence. Otherwise a stall of a second makes
// a replica take over from a living master, and loses the master's acknowledged writes since.
func patient() devserver.RedisOption { return devserver.Directive("cluster-node-timeout", "20000") }

// try repeats a command that a cluster refuses while a slot is moving or a master missing, as clients must.
func (s *clusterSystem) try(what string, command func() error) {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, command, what)
}

// set sets a plain timer.
func (s *clusterSystem) set(key, payload string, ttl time.Duration) {
	s.T.Helper()
	s.try("SET "+key, func() error { return s.client.Set(s.T.Context(), key, payload, ttl).Err() })
}

// durably sets a timer by the function library, and returns when it is due.
func (s *clusterSystem) durably(key, payload string, delay time.Duration) (due int64) {
	s.T.Helper()
	s.try("timer_set "+key, func() (err error) {
		due, err = s.client.FCall(s.T.Context(), "timer_set", []string{key}, payload, "PX",
			delay.Milliseconds()).Int64()
		return err
	})
	return due
}

// load sets n timers of both kinds that are due within a span of time, and returns the firings that must come. If
// setting them takes long, they are due later.
func (s *clusterSystem) load(prefix string, n int, first, span time.Duration) []string {
	s.T.Helper()
	var want []string
	began := time.Now()
	const some = 100
	for from := 0; from < n; from += some {
		pipe := s.client.Pipeline()
		until := min(from+some, n)
		for i := from; i < until; i++ {
			key := fmt.Sprintf("load:%s:t:%d", prefix, i)
			delay := max(first+time.Duration(i)*span/time.Duration(n)-time.Since(began), leastPlain)
			if i%4 == 0 {
				pipe.FCall(s.T.Context(), "timer_set", []string{key}, i, "PX", delay.Milliseconds())
			} else {
				pipe.Set(s.T.Context(), key, i, delay)
			}
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
		commands, _ := pipe.Exec(s.T.Context())
		for _, command := range commands {
			if command.Err() != nil { // the cluster refuses it for now
				s.try(fmt.Sprint(command.Args()), func() error {
					return s.client.Do(s.T.Context(), command.Args()...).Err()
				})
			}
		}
	}
	return want
}

// leastPlain is the least time of a plain timer: one that runs out before timerd has seen it fires without its payload.
const leastPlain = 3 * time.Second

// repeated sets n timers that repeat and fire three times, and returns the firings that must come.
func (s *clusterSystem) repeated(prefix string, n int, first, every time.Duration) (want []string) {
	s.T.Helper()
	from := s.client.Time(s.T.Context()).Val().Add(first).UnixMilli()
	for i := range n {
		key := fmt.Sprintf("load:%s:repeated:%d", prefix, i)
		s.try("timer_repeat "+key, func() error {
			return s.client.FCall(s.T.Context(), "timer_repeat", []string{key}, i, "EVERY", every.Milliseconds(),
				"FROM", from, "TIMES", 3, "CATCHUP", system.Hour).Err()
		})
		for range 3 {
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
	}
	return want
}

// scans returns each master's counts.
func (s *clusterSystem) scans() map[string]schedule.DueScan {
	s.T.Helper()
	all := map[string]schedule.DueScan{}
	plan := schedule.New(s.client, schedule.DefaultMaxPayload)
	s.try("scan", func() error {
		clear(all)
		found, err := plan.Nodes(s.T.Context())
		for _, n := range found {
			scan, err2 := n.ScanDue(s.T.Context(), time.Hour, time.Hour)
			all[n.Name()] = scan
			err = errors.Join(err, err2)
		}
		return err
	})
	return all
}

// emptied waits until the index holds nothing but tombstones.
func (s *clusterSystem) emptied() {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, func() error {
		for addr, found := range s.scans() {
			if found.Pending+found.Firing > 0 || len(found.Moving) > 0 {
				return fmt.Errorf("%s: %+v", addr, found)
			}
		}
		return nil
	}, "the index to be empty")
}

// A master is replaced in good order and slots move, while timers are pending and
// fire.
func TestClusterFailoverAndMigration(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, true, patient())
	p := s.Start()
	c := s.Collect()
	want := s.load("plain", 900, 4*time.Second, 4*time.Second) // three of four are plain
	want = append(want, s.repeated("moved", 100, 2*time.Second, 2*time.Second)...)
	s.cluster.Failover(s.cluster.Nodes[3])
	from, to := s.cluster.Nodes[1], s.cluster.Nodes[2]
	for slot := 6000; slot < 6100; slot++ {
		s.cluster.OpenSlot(slot, from, to)
		s.cluster.CloseSlot(slot, from, to)
	}
	s.Expect(c, want...)
	s.emptied()
	p.AwaitReady(true)
	p.Stop()
}

// A master is killed; its replica's timers go on, and plain timers set after the failover are adopted.
func TestClusterMasterKilled(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, true)
	p := s.Start()
	c := s.Collect()
	want := s.load("before", 300, 20*time.Second, 2*time.Second) // none is due before all are adopted
	want = append(want, s.repeated("before", 30, 20*time.Second, time.Second)...)
	s.adoptedAll(330)
	victim := s.cluster.Nodes[1]
	if n := victim.Client().Do(t.Context(), "WAIT", 1, 10000).Val(); n != int64(1) {
		t.Fatalf("%v replicas have the timers", n)
	}
	orphan := ""
	for i := 0; orphan == "" || s.cluster.Master(keys.Slot(orphan)) != victim; i++ {
		orphan = fmt.Sprintf("a:b:c:%d", i)
	}
	victim.Kill()
	p.AwaitReady(false)
	s.durably(orphan, "p", 2*time.Second)
	want = append(want, orphan+"=p")
	// due when timerd listens to the new master
	want = append(want, s.load("after", 150, 12*time.Second, time.Second)...)
	p.AwaitReady(true)
	s.Expect(c, want...)
	s.emptied()
	victim.Start()
	s.cluster.AwaitOK()
	s.set("a:b:c:last", "p", 500*time.Millisecond)
	s.Expect(c, append(want, "a:b:c:last=p")...)
	p.Stop()
}

// adoptedAll waits until n timers are pending.
func (s *clusterSystem) adoptedAll(n int64) {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, func() error {
		var pending int64
		for _, found := range s.scans() {
			pending += found.Pending
		}
		if pending != n {
			return fmt.Errorf("%d are pending, want %d", pending, n)
		}
		return nil
	}, "adoption")
}

// Three timerds share a cluster; one dies, and one master loses its functions, its
// scripts, its flags and its subscribers.
func TestClusterSeveralTimerds(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	var daemons []*system.Daemon
	for range 3 {
		daemons = append(daemons, s.Start())
	}
	c := s.Collect()
	want := s.load("several", 300, 3*time.Second, 3*time.Second)
	node := s.cluster.Nodes[2].Client()
	for _, command := range [][]any{
		{"FUNCTION", "FLUSH"}, {"SCRIPT", "FLUSH"}, {"CONFIG", "SET", "notify-keyspace-events", ""},
		{"CLIENT", "KILL", "TYPE", "pubsub"},
	} {
		if err := node.Do(t.Context(), command...).Err(); err != nil {
			t.Fatalf("%v: %v", command, err)
		}
	}
	daemons[0].Kill()
	want = append(want, s.load("flushed", 60, 10*time.Second, time.Second)...) // due when timerd has put all that back
	s.Expect(c, want...)
	s.emptied()
	for _, p := range daemons[1:] {
		p.AwaitReady(true)
		p.Stop()
	}
}

// A slot stays open for longer than a lease: its timers wait, all others do not, and
// nothing is lost or doubled.
func TestClusterSlotLongOpen(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	began := time.Now()
	p := s.Start()
	soon := 6*time.Second + time.Since(began) // after the slot is open, also on a machine where all of this takes long
	c := s.Collect()
	slot := keys.Slot("a:{x}:c:1")
	from := s.cluster.Master(slot)
	to := s.cluster.Nodes[0]
	if to == from {
		to = s.cluster.Nodes[1]
	}
	due := s.durably("a:{x}:c:durable", "1", soon)
	s.set("a:{x}:c:plain", "2", soon)
	s.set("a:{x}:c:deleted", "3", time.Hour)
	s.set("a:{x}:c:later", "4", soon+7*time.Second)
	s.adoptedAll(4)
	s.cluster.OpenSlot(slot, from, to)
	for s.cluster.MoveKeys(slot, 1, from, to) > 0 {
		s.try("DEL", func() error { return s.client.Del(t.Context(), "a:{x}:c:deleted").Err() })
	}
	others := s.load("others", 100, time.Second, time.Second)
	s.set("a:{x}:c:meanwhile", "5", soon+6*time.Second)
	s.set("a:{x}:c:short", "6", 500*time.Millisecond)
	s.Expect(c, others...)
	testenv.Eventually(t, system.Patience, func() bool {
		return s.client.Time(
			t.Context()).Val().UnixMilli() > due+3500
	}, "the time to pass")
	s.Expect(c, others...)
	s.cluster.CloseSlot(slot, from, to)
	// What ran out in the meantime was never read.
	s.Expect(c, append(others, "a:{x}:c:durable=1", "a:{x}:c:plain=2", "a:{x}:c:later=4", "a:{x}:c:meanwhile=5",
		"a:{x}:c:short=<missing>")...)
	s.emptied()
	p.Stop()
}

func TestClusterCommands(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	p := s.Start()
	want := []string{}
	for i := range 30 {
		key := fmt.Sprintf("shop:order:timeout:%d", i)
		s.OK("set", key, fmt.Sprintf("%dm", 60+i), fmt.Sprint(i)) // after the test, however long each command takes
		want = append(want, key)
	}
	var listed []string
	for line := range strings.Lines(s.OK("ls", "shop", "--json", "--limit", "0")) {
		var view timerView
		if err := json.Unmarshal([]byte(line), &view); err != nil {
			t.Fatal(err)
		}
		listed = append(listed, view.Key)
	}
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	if out := s.OK("get", "shop:order:timeout:7", "--raw"); out != "7" {
		t.Errorf("payload %q", out)
	}
	if out := s.OK("cancel", "shop:order:timeout:7"); out != "cancelled\n" {
		t.Errorf("cancel: %q", out)
	}
	audited := s.OK("audit", "--json")
	out := s.OK("doctor")
	for _, node := range s.cluster.Nodes {
		if !strings.Contains(audited, `"server":"`+node.Addr()+`"`) {
			t.Errorf("audit is without %s:\n%s", node.Addr(), audited)
		}
		if want := "ok    redis cluster     " + node.Addr() +
			": 3 masters; all 16384 slots are served"; !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	if !strings.Contains(out, "cluster-require-full-coverage is yes") || strings.Contains(out, "fail  ") {
		t.Errorf("the doctor finds\n%s", out)
	}
	p.Stop()
}

// A consumer asks for its timer again, in a cluster.
func TestClusterRetry(t *testing.T) {
	t.Parallel()
	s := newClusterSystem(t, false, patient())
	s.Env["TIMERD_RETRY"] = "*=200ms,300ms"
	p := s.Start()
	c := s.Collect()
	s.durably("a:b:c:1", "p", 100*time.Millisecond)
	for attempt := range 2 {
		m := c.Wait(attempt+1, system.Patience)[attempt]
		if _, err := s.JS.Publish(t.Context(), "timers.retry.a.b.c", m.Data); err != nil {
			t.Fatal(err)
		}
	}
	var attempts []int
	for _, e := range s.Events(c, 3) {
		attempts = append(attempts, e.Attempt)
	}
	if !slices.Equal(attempts, []int{1, 2, 3}) {
		t.Errorf("attempts %v", attempts)
	}
	s.emptied()
	p.Stop()
}
