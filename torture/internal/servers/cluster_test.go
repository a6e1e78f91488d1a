package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// The cluster keeps its data through failovers, moves of slots, and the silence and the death of a master.
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
			slot, err := c.MoveSlot(t.Context(), 2, false)
			if err == nil && slot < 0 {
				err = fmt.Errorf("no slot was moved")
			}
			return err
		},
		"slots moved in one step": func() error {
			_, err := c.MoveSlot(t.Context(), 0, true)
			return err
		},
		"master killed": func() error {
			mend, err := c.Kill(t.Context(), 0)
			if err != nil {
				return err
			}
			return mend()
		},
		"master silent": func() error {
			slots, mend, err := c.Silence(t.Context(), 1)
			if err != nil {
				return err
			}
			return errors.Join(c.answers(t.Context(), n, slots), mend(), c.mastersAre(t.Context(), slots, 1))
		},
		"master slow": func() error {
			slots, mend, err := c.Slow(t.Context(), 2)
			if err != nil {
				return err
			}
			return errors.Join(c.has(t.Context(), n), mend(), c.mastersAre(t.Context(), slots, 2))
		},
		"master frozen": func() error {
			was := c.MasterNames(t.Context())
			mend, err := c.Freeze(t.Context(), 1)
			if err != nil {
				return err
			}
			err = mend()
			if err == nil && c.MasterNames(t.Context()) == was {
				err = errors.New("no replica has taken over")
			}
			return err
		},
	} {
		if err := fault(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.Refresh(t.Context())
		testenv.Eventually(t, startTimeout, func() error { return c.has(t.Context(), n) }, name)
	}
}

// answers checks that the master of some slots says nothing, and that the others answer.
func (c *ClusterRedis) answers(ctx context.Context, n int, silent []history.Slots) error {
	asked := false
	for i := range n {
		node, err := c.Node(ctx, key(i))
		if err != nil {
			return err
		}
		slot := keys.Slot(key(i))
		its := slices.ContainsFunc(silent, func(s history.Slots) bool { return s.From <= slot && slot <= s.To })
		switch {
		case !its:
			if err := node.Get(ctx, key(i)).Err(); err != nil {
				return fmt.Errorf("%s, of another master: %w", key(i), err)
			}
		case !asked: // once: it takes its time
			asked = true
			hasty := redis.NewClient(&redis.Options{Addr: node.Options().Addr, ReadTimeout: 100 * time.Millisecond,
				MaxRetries: -1})
			err := hasty.Get(ctx, key(i)).Err()
			if err := errors.Join(hasty.Close(), silence(err)); err != nil {
				return err
			}
		}
	}
	if !asked {
		return fmt.Errorf("no key is in %v", silent)
	}
	return nil
}

// silence returns an error unless err means only that nobody answered.
func silence(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return fmt.Errorf("a silent master answered: %w", err)
}

// mastersAre checks that the nth master has some slots.
func (c *ClusterRedis) mastersAre(ctx context.Context, slots []history.Slots, nth int) error {
	_, now, err := c.victim(ctx, nth)
	if err == nil && !slices.Equal(now, slots) {
		err = fmt.Errorf("master %d has the slots %v, had %v", nth, now, slots)
	}
	return err
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
