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
	// slotsTimeout bounds how long one node of a cluster is asked which master has which slots. go-redis asks the nodes one
	// after the other, so a silent one would take the time of a whole call.
	slotsTimeout = time.Second
	// passOver is for how long a node that did not answer is not asked that again.
	passOver = 5 * time.Second
	// resends is how often a command is sent again whose connection the server has closed: as often as go-redis does for a
	// single server.
	resends = 3
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
	silent time.Time // when it last did not answer
}

// DialHook implements [redis.Hook].
func (h *nodeHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (h *nodeHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for i := 0; i < resends && isClosed(err) && isClosed(cmds[0].Err()); i++ {
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
			for i := 0; i < resends && isClosed(err); i++ {
				err = next(ctx, cmd)
			}
			return err
		}
		h.mu.Lock()
		silent := time.Since(h.silent) < passOver
		h.mu.Unlock()
		if silent {
			err := fmt.Errorf("%s has not answered lately which master has which slots", h.addr)
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

// isClosed tells whether the server has closed the connection.
func isClosed(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// readable returns the answer to a PING, or nil where it says that a server refuses writes, which PING counts among: it can be
// read, and tells what is wrong.
func readable(err error) error {
	if redis.HasErrorPrefix(err, "MISCONF ") {
		return nil
	}
	return err
}

// answers returns nil once Redis answers: of a cluster, once one of its masters does. Else it returns what says most of why
// none does.
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
	said := make(chan error, len(masters)) // so that a silent one is waited for by nobody
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
