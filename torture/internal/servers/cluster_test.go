package servers

import (
	"context"
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// The cluster keeps what is in it through failovers, moves of slots and the death of a master.
func TestClusterIsWholeAfterEachFault(t *testing.T) {
	testenv.NoLeaks(t)
	c, err := newCluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	const n = 60
	for i := range n {
		node, err := c.Node(t.Context(), key(i))
		if err != nil {
			t.Fatal(err)
		}
		if err := node.Set(t.Context(), key(i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if err := node.Wait(t.Context(), 1, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for name, fault := range map[string]func() error{
		"failover": func() error { return c.Failover(t.Context(), 1) },
		"slots moved": func() error {
			slot, err := c.MoveSlot(t.Context(), 2)
			if err == nil && slot < 0 {
				err = fmt.Errorf("no slot was moved")
			}
			return err
		},
		"master killed": func() error {
			mend, err := c.Kill(t.Context(), 0)
			if err != nil {
				return err
			}
			return mend()
		},
	} {
		if err := fault(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Refresh(t.Context())
		testenv.Eventually(t, startTimeout, func() error { return c.has(t.Context(), n) }, name)
	}
}

func key(i int) string { return fmt.Sprintf("a:b:c:%d", i) }

// has checks that all keys are there.
func (c *ClusterRedis) has(ctx context.Context, n int) error {
	for i := range n {
		node, err := c.Node(ctx, key(i))
		if err != nil {
			return err
		}
		if value, err := node.Get(ctx, key(i)).Int(); err != nil || value != i {
			return fmt.Errorf("%s is %d: %w", key(i), value, err)
		}
	}
	return nil
}
