package connect_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/testenv"
)

// A node closes connections that have been idle for as long as its setting timeout says, or when it restarts. Whoever asks it
// next does not notice.
func TestConnectionsClosedByANode(t *testing.T) {
	testenv.NoLeaks(t)
	cluster := testenv.Cluster(t, 1, false)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": cluster.URL(), "TIMERD_REDIS_MODE": string(config.Cluster)})
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
	err = rdb.(*redis.ClusterClient).ForEachMaster(t.Context(), func(ctx context.Context, node *redis.Client) error {
		var waiting sync.WaitGroup
		for range 3 { // at once, so each has a connection of its own
			waiting.Go(func() {
				if err := node.BLPop(ctx, 100*time.Millisecond, "{a}").Err(); err != redis.Nil { //nolint:errorlint // nothing wraps it
					t.Errorf("BLPOP: %v", err)
				}
			})
		}
		waiting.Wait()
		killed, err := cluster.Master(0).Client().ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Result()
		if err != nil || killed < 3 {
			t.Errorf("killed %d connections: %v", killed, err)
		}
		return node.Set(ctx, "{a}", "v", 0).Err()
	})
	if err != nil {
		t.Errorf("after the node has closed its connections: %v", err)
	}
}
