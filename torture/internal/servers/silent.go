package servers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// The turns of a slow master: the time for which it is stopped, and the time for which it then works.
const (
	stopped = 150 * time.Millisecond
	atWork  = 30 * time.Millisecond
)

// Silence stops one master, which then neither answers nor refuses, and returns its slots. If the repair comes well
// within ClusterNodeTimeout, the server stays a master.
func (c *ClusterRedis) Silence(ctx context.Context, n int) (slots []history.Slots, mend func() error, err error) {
	victim, slots, err := c.victim(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	return slots, func() error { return errors.Join(victim.Resume(), c.awaitWhole(ctx)) }, victim.Pause()
}

// Slow stops one master again and again until its repair, so that each answer takes long. It returns the master's
// slots.
func (c *ClusterRedis) Slow(ctx context.Context, n int) (slots []history.Slots, mend func() error, err error) {
	victim, slots, err := c.victim(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	var turns sync.WaitGroup
	var failed error
	end := make(chan struct{})
	turns.Go(func() { failed = inTurns(victim, end) })
	return slots, func() error {
		close(end)
		turns.Wait()
		return errors.Join(failed, c.awaitWhole(ctx))
	}, nil
}

// inTurns stops a server and lets it go on, in turns, until end is closed. After that the server works, unless there
// was an error.
func inTurns(s *devserver.Redis, end <-chan struct{}) error {
	for {
		if err := s.Pause(); err != nil {
			return err
		}
		<-time.After(stopped)
		if err := s.Resume(); err != nil {
			return err
		}
		select {
		case <-end:
			return nil
		case <-time.After(atWork):
		}
	}
}

// Freeze stops one master. The repair waits until the replica is promoted, and then lets the old master go on as its
// replica.
func (c *ClusterRedis) Freeze(ctx context.Context, n int) (mend func() error, err error) {
	victim, _, err := c.victim(ctx, n)
	if err != nil {
		return nil, err
	}
	return func() error {
		promoted := devserver.Until(ctx, startTimeout, func() error { return c.withoutMaster(ctx, victim) })
		return errors.Join(promoted, victim.Resume(), c.awaitWhole(ctx))
	}, victim.Pause()
}

// withoutMaster returns an error unless the right number of masters remains. It does not ask the named server.
func (c *ClusterRedis) withoutMaster(ctx context.Context, silent *devserver.Redis) error {
	masters := 0
	for _, s := range c.servers {
		if s != silent && s.Role(ctx) == "master" {
			masters++
		}
	}
	if masters != clusterMasters {
		return fmt.Errorf("servers: %d masters without the silent one, want %d", masters, clusterMasters)
	}
	return nil
}

// victim returns the master with number n, and its slots.
func (c *ClusterRedis) victim(ctx context.Context, n int) (*devserver.Redis, []history.Slots, error) {
	masters, err := c.threeMasters(ctx)
	if err != nil {
		return nil, nil, err
	}
	master := masters[n%clusterMasters]
	ranges, err := c.cluster.Slots(ctx, master)
	if err != nil {
		return nil, nil, err
	}
	var slots []history.Slots
	for _, r := range ranges {
		slots = append(slots, history.Slots{From: int(r.Start), To: int(r.End)})
	}
	return master, slots, nil
}
