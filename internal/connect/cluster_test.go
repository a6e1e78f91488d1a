package connect_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/testenv"
)

// A node closes connections that have been idle for as long as its setting timeout says, or when it restarts. Whoever
// asks it next does not notice.
func TestConnectionsClosedByANode(t *testing.T) {
	testenv.NoLeaks(t)
	cluster := testenv.Cluster(t, 1, false)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": cluster.URL(),
		"TIMERD_REDIS_MODE": string(config.Cluster)})
	conf, err := config.Read(config.SectionRedis)
	if err != nil {
		t.Fatal(err)
	}
	var logs testenv.Output
	rdb, err := connector(&logs, time.Minute).Redis(t.Context(), conf.Redis)
	if err != nil {
		t.Fatalf("%v\n%s", err, &logs)
	}
	defer func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	}()
	admin := cluster.Master(0).Client()
	// closed has the node close connections of the client, as many as a command is sent again for.
	closed := func(ctx context.Context, node *redis.Client) {
		var waiting sync.WaitGroup
		const connections = 3
		for range connections {
			waiting.Go(func() {
				if err := node.BLPop(ctx, time.Minute, "{a}list").Err(); err != nil {
					t.Errorf("BLPOP: %v", err)
				}
			})
		}
		testenv.Eventually(t, time.Minute, func() bool {
			info, err := admin.Info(ctx, "clients").Result()
			return err == nil && strings.Contains(info, fmt.Sprintf("blocked_clients:%d\r", connections))
		}, "all to wait, each on a connection of its own")
		if err := admin.RPush(ctx, "{a}list", "1", "2", "3").Err(); err != nil {
			t.Error(err)
		}
		waiting.Wait()
		if killed, err := admin.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Result(); err != nil ||
			killed < connections {
			t.Errorf("killed %d connections: %v", killed, err)
		}
	}
	err = rdb.(*redis.ClusterClient).ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		closed(ctx, node)
		if err := node.Set(ctx, "{a}", "v", 0).Err(); err != nil {
			return fmt.Errorf("a command: %w", err)
		}
		closed(ctx, node)
		var got *redis.StringCmd
		_, err := node.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			got = pipe.Get(ctx, "{a}")
			return pipe.Append(ctx, "{a}", "w").Err()
		})
		if err == nil && got.Val() != "v" {
			err = fmt.Errorf("the answer is %q", got.Val())
		}
		if err != nil {
			return fmt.Errorf("a pipeline: %w", err)
		}
		return nil
	})
	if err != nil {
		t.Errorf("after the node has closed its connections: %v", err)
	}
}

// A node that has left its cluster reports that no slot has a master. Then the others are asked: go-redis remembers it
// for another minute.
func TestNodeOutsideItsClusterIsNotAsked(t *testing.T) {
	testenv.NoLeaks(t)
	cluster := testenv.Cluster(t, 1, true)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": cluster.URL(),
		"TIMERD_REDIS_MODE": string(config.Cluster)})
	conf, err := config.Read(config.SectionRedis)
	if err != nil {
		t.Fatal(err)
	}
	rdb := connect.NewRedisClient(conf.Redis).(*redis.ClusterClient)
	defer rdb.Close()
	masters := func() int64 {
		var n atomic.Int64
		err := rdb.ForEachMaster(t.Context(), func(context.Context, *redis.Client) error {
			n.Add(1)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return n.Load()
	}
	masters()
	if err := cluster.Nodes[1].Client().Do(t.Context(), "CLUSTER", "RESET", "HARD").Err(); err != nil {
		t.Fatal(err)
	}
	for range 30 { // each time it asks one of the nodes
		if n := masters(); n != 1 {
			t.Fatalf("%d masters", n)
		}
	}
}
