package main

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// clusterSystem is a system on a Redis Cluster of three masters.
type clusterSystem struct {
	*system
	cluster *testenv.RedisCluster
	client  *redis.ClusterClient
}

func newClusterSystem(t testing.TB, replicas bool) *clusterSystem {
	t.Helper()
	s := &clusterSystem{system: &system{t: t, nats: testenv.NATS(t)}, cluster: testenv.Cluster(t, 3, replicas)}
	s.client, s.js = s.cluster.Client(), s.nats.JetStream()
	s.env = map[string]string{
		"TIMERD_REDIS_URL":  s.cluster.URL(),
		"TIMERD_REDIS_MODE": "cluster",
		"TIMERD_NATS_URL":   s.nats.URL(),
		"TIMERD_NAMESPACES": "*",
		"TIMERD_LEASE":      "2s",
	}
	return s
}

// try repeats a command that a cluster refuses while a slot is moving or a master
// missing, as a client has to.
func (s *clusterSystem) try(what string, command func() error) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, command, what)
}

// set sets a plain timer.
func (s *clusterSystem) set(key, payload string, ttl time.Duration) {
	s.t.Helper()
	s.try("SET "+key, func() error { return s.client.Set(s.t.Context(), key, payload, ttl).Err() })
}

// durably sets a timer by the function library, and returns when it is due.
func (s *clusterSystem) durably(key, payload string, delay time.Duration) (due int64) {
	s.t.Helper()
	s.try("timer_set "+key, func() (err error) {
		due, err = s.client.FCall(s.t.Context(), "timer_set", []string{key}, payload, "PX", delay.Milliseconds()).Int64()
		return err
	})
	return due
}

// load sets n timers of both kinds that are due within a span of time, and returns
// what must fire. Each has its time at its end at the earliest.
func (s *clusterSystem) load(prefix string, n int, first, span time.Duration) []string {
	s.t.Helper()
	var want []string
	began := time.Now()
	for i := range n {
		key := fmt.Sprintf("load:%s:t:%d", prefix, i)
		delay := first + time.Duration(i)*span/time.Duration(n) - time.Since(began)
		if i%4 == 0 {
			s.durably(key, fmt.Sprint(i), delay)
		} else {
			s.set(key, fmt.Sprint(i), delay)
		}
		want = append(want, fmt.Sprintf("%s=%d", key, i))
	}
	return want
}

// emptied waits until the index holds nothing but tombstones.
func (s *clusterSystem) emptied() {
	s.t.Helper()
	plan := schedule.New(s.client, schedule.DefaultMaxPayload)
	testenv.Eventually(s.t, patience, func() error {
		var errs []error
		masters, err := plan.Masters(s.t.Context())
		for _, m := range masters {
			server, _ := m.Server.(*redis.Client)
			shard := plan.Shard(server)
			if _, err := shard.SetPartitions(s.t.Context(), m.Partitions); err != nil {
				errs = append(errs, err)
				continue
			}
			found, err := shard.Survey(s.t.Context(), time.Hour, time.Hour)
			if found.Pending+found.Firing > 0 || len(found.Moving) > 0 {
				err = fmt.Errorf("%s: %+v", m.Addr, found)
			}
			errs = append(errs, err)
		}
		return errors.Join(append(errs, err)...)
	}, "the index to be empty")
}

// A master is replaced in good order and slots move, while timers are pending and
// fire.
func TestClusterFailoverAndMigration(t *testing.T) {
	s := newClusterSystem(t, true)
	p := s.start()
	c := s.collect()
	want := s.load("plain", 2000, 4*time.Second, 6*time.Second)
	s.cluster.Failover(s.cluster.Nodes[3])
	from, to := s.cluster.Nodes[1], s.cluster.Nodes[2]
	for slot := 6000; slot < 6300; slot++ {
		s.cluster.OpenSlot(slot, from, to)
		s.cluster.CloseSlot(slot, from, to)
	}
	s.expect(c, want...)
	s.emptied()
	p.awaitReady(true)
	p.stop()
}
