package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// slotsTimeout bounds CLUSTER SLOTS of one node. go-redis asks the nodes one after the other, so a silent one would
	// take the time of a whole call.
	slotsTimeout = time.Second
	// silentPause is the pause before asking a silent node for its slots again.
	silentPause = 5 * time.Second
	// maxResends limits the repeated sends of a command after the server has closed its connection. go-redis has the
	// same limit for a single server.
	maxResends = 3
)

// newClusterNode returns the client of one node of a cluster.
func newClusterNode(o *redis.Options) *redis.Client {
	node := redis.NewClient(o)
	node.AddHook(&nodeHook{addr: o.Addr})
	return node
}

// nodeHook limits CLUSTER SLOTS, and treats a reply without masters as a failure; a node that left its cluster sends
// one. It sends a command again after the node has closed the connection, a pipeline only if no part of it was
// answered: the first answers would be lost.
type nodeHook struct {
	addr string

	mu     sync.Mutex
	silent time.Time // the time of its last missing answer
}

// DialHook implements [redis.Hook].
func (h *nodeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (h *nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for i := 0; i < maxResends && isClosed(err) && isClosed(cmds[0].Err()); i++ {
			err = next(ctx, cmds)
		}
		return err
	}
}

// ProcessHook implements [redis.Hook].
func (h *nodeHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		slots, is := cmd.(*redis.ClusterSlotsCmd)
		if !is {
			err := next(ctx, cmd)
			for i := 0; i < maxResends && isClosed(err); i++ {
				err = next(ctx, cmd)
			}
			return err
		}
		h.mu.Lock()
		silent := time.Since(h.silent) < silentPause
		h.mu.Unlock()
		if silent {
			err := fmt.Errorf("%s did not answer CLUSTER SLOTS a moment ago", h.addr)
			cmd.SetErr(err)
			return err
		}
		within, cancel := context.WithTimeout(ctx, slotsTimeout)
		defer cancel()
		asked := time.Now()
		err := next(within, cmd)
		if err == nil && len(slots.Val()) == 0 {
			err = fmt.Errorf("%s knows no master that has slots", h.addr)
			cmd.SetErr(err)
		}
		if err != nil && time.Since(asked) > slotsTimeout*9/10 {
			h.mu.Lock()
			h.silent = time.Now()
			h.mu.Unlock()
		}
		return err
	}
}

// isClosed reports whether the server has closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE)
}

// readable returns a PING's error, or nil if the error says that the server refuses writes: PING counts as a write.
// Such a server can be read, and reports its fault itself.
func readable(err error) error {
	if redis.HasErrorPrefix(err, "MISCONF ") {
		return nil
	}
	return err
}

// answers returns nil once Redis answers: of a cluster, once one of its masters does. Otherwise it returns the error
// that tells most about the fault.
func answers(ctx context.Context, rdb redis.UniversalClient) error {
	cluster, ok := rdb.(*redis.ClusterClient)
	if !ok {
		return readable(rdb.Ping(ctx).Err())
	}
	var mu sync.Mutex
	var masters []*redis.Client
	err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, master)
		return nil
	})
	if err != nil {
		return err
	}
	said := make(chan error, len(masters)) // so that nobody waits for a silent one
	for _, master := range masters {
		go func() {
			if err := readable(master.Ping(ctx).Err()); err != nil {
				said <- fmt.Errorf("%s: %w", master.Options().Addr, err)
			} else {
				said <- nil
			}
		}()
	}
	err = errors.New("the cluster has no master")
	for i := range masters {
		switch one := <-said; {
		case one == nil:
			return nil
		case i == 0 || RedisRefused(one):
			err = one
		}
	}
	return err
}
