package testenv_test

import (
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestClusterMovesSlotsAndMasters(t *testing.T) {
	t.Parallel()
	c := testenv.Cluster(t, 3, true)
	client := c.Client()
	ctx := t.Context()
	slot, err := client.ClusterKeySlot(ctx, "key").Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(ctx, "key", "value", 0).Err(); err != nil {
		t.Fatal(err)
	}
	from := c.Master(int(slot))
	to := c.Nodes[0]
	if from == to {
		to = c.Nodes[1]
	}
	c.OpenSlot(int(slot), from, to)
	c.CloseSlot(int(slot), from, to)
	if got := c.Master(int(slot)); got != to {
		t.Errorf("slot %d is at %s, want %s", slot, got.Addr(), to.Addr())
	}
	c.AwaitOK()
	for i, node := range c.Nodes[:3] {
		if node == to {
			c.Failover(c.Nodes[3+i])
			to = c.Nodes[3+i]
		}
	}
	if got := c.Master(int(slot)); got != to {
		t.Errorf("slot %d is at %s, want %s, which was the replica", slot, got.Addr(), to.Addr())
	}
	if got, err := client.Get(ctx, "key").Result(); err != nil || got != "value" {
		t.Errorf("the key is %q, %v", got, err)
	}
}
