package schedule_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// newPartialCluster is newClusterIndex with masters that go on when one is gone: gone is the first by address.
func newPartialCluster(t *testing.T) (x *clusterIndex, gone *testenv.RedisServer, others []*testenv.RedisServer) {
	t.Helper()
	cluster := testenv.Cluster(t, 3, false, devserver.Directive("cluster-require-full-coverage", "no"))
	x = &clusterIndex{Schedule: schedule.New(cluster.Client(), 1000), t: t, cluster: cluster, rdb: cluster.Client()}
	if _, err := x.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	others = slices.SortedFunc(slices.Values(cluster.Nodes), func(a, b *testenv.RedisServer) int {
		if a.Addr() < b.Addr() {
			return -1
		}
		return 1
	})
	return x, others[0], others[1:]
}

// partitionsOf returns a partition of each server.
func (x *clusterIndex) partitionsOf(servers ...*testenv.RedisServer) (all []keys.Partition) {
	x.t.Helper()
	for _, server := range servers {
		for slot := 0; ; slot += 1000 {
			if x.cluster.Master(slot) == server {
				all = append(all, keys.SlotPartition(slot))
				break
			}
		}
	}
	return all
}

// Trimming forgets old ids on the masters that answer, in whatever order these come.
func TestClusterTrimRetriedBesideADeadMaster(t *testing.T) {
	t.Parallel()
	x, gone, others := newPartialCluster(t)
	partitions := x.partitionsOf(others...)
	for _, p := range partitions {
		x.rdb.ZAdd(t.Context(), p.Retried(), redis.Z{Score: 1, Member: "old"})
	}
	gone.Kill()
	err := x.TrimRetried(t.Context(), time.Hour)
	away, ok := errors.AsType[*schedule.AwayError](err)
	if !ok || len(away.Masters) != 1 || away.Masters[0].Addr != gone.Addr() {
		t.Errorf("got %v, want that %s is away", err, gone.Addr())
	}
	for i, p := range partitions {
		if n := others[i].Client().Exists(t.Context(), p.Retried()).Val(); n != 0 {
			t.Errorf("%s remembers old retries", others[i].Addr())
		}
	}
}

// A server that answers with an error is not away.
func TestAwayTellsRefusals(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t, devserver.Directive("rename-command", "FUNCTION", "")).Client()
	_, err := schedule.New(rdb, 1000).Load(t.Context())
	if want := rdb.Options().Addr + " refuses: "; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

// A command goes on with the masters that answer; a step on the other one returns an error that names it.
func TestClusterPassOver(t *testing.T) {
	t.Parallel()
	x, gone, others := newPartialCluster(t)
	there, away := x.partitionsOf(others...), x.partitionsOf(gone)[0]
	if found, err := x.PassOver(t.Context(), time.Minute); err != nil || len(found) > 0 {
		t.Fatalf("all are there: got %v, %v", found, err)
	}
	gone.Kill()
	found, err := x.PassOver(t.Context(), time.Minute)
	if err != nil || len(found) != 1 || found[0].Addr != gone.Addr() {
		t.Fatalf("got %v, %v; want that %s is away", found, err, gone.Addr())
	}
	nodes, err := x.Nodes(t.Context())
	if err != nil || len(nodes) != 2 ||
		slices.ContainsFunc(nodes, func(n *schedule.Node) bool { return n.Name() == gone.Addr() }) {
		t.Errorf("%d nodes, %v; want the two others", len(nodes), err)
	}
	for _, p := range there {
		if err := x.Settle(t.Context(),
			schedule.Outcomes(schedule.OutcomeFired, schedule.Firing{Ref: "1:1:a:b:c:d", Partition: p})); err != nil {
			t.Errorf("a step on another master: %v", err)
		}
	}
	err = x.Settle(t.Context(),
		schedule.Outcomes(schedule.OutcomeFired, schedule.Firing{Ref: "1:1:a:b:c:d", Partition: away}))
	if one, ok := errors.AsType[schedule.Away](err); !ok || one.Addr != gone.Addr() {
		t.Errorf("a step on the one that is gone: %v", err)
	}
}
