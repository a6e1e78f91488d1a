package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/poll"
	"github.com/timerd-io/timerd/internal/redisserver"
)

// operation bounds one command.
const operation = 5 * time.Second

// group is several servers whose roles change.
type group struct {
	servers []*redisserver.Server
	clients []*redis.Client // of each server
}

// add starts a server.
func (g *group) add(opts ...redisserver.Option) (*redisserver.Server, error) {
	opts = append(opts, redisserver.Config("repl-diskless-sync-delay", "0"))
	server, err := redisserver.New(config(opts...)...)
	if err != nil {
		return nil, err
	}
	g.servers = append(g.servers, server)
	g.clients = append(g.clients, redis.NewClient(options(server.Addr())))
	return server, nil
}

// index returns which server has an address.
func (g *group) index(addr string) (int, error) {
	for i, s := range g.servers {
		if s.Addr() == addr {
			return i, nil
		}
	}
	return 0, fmt.Errorf("servers: nobody is at %q", addr)
}

// masters returns which servers say that they are masters.
func (g *group) masters(ctx context.Context) []int {
	var all []int
	for i, c := range g.clients {
		if role(ctx, c) == "master" {
			all = append(all, i)
		}
	}
	return all
}

// Reign names the masters.
func (g *group) Reign(ctx context.Context) string { return fmt.Sprint(g.masters(ctx)) }

// role returns what a server says that it is, "" if it does not answer.
func role(ctx context.Context, c *redis.Client) string {
	reply, err := c.Do(ctx, "ROLE").Slice()
	if err != nil || len(reply) == 0 {
		return ""
	}
	text, _ := reply[0].(string)
	return text
}

// settled waits until there are n masters, each with a replica that is in step, and nobody
// else.
func (g *group) settled(ctx context.Context, n int) error {
	err := poll.Until(startTimeout, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		masters := g.masters(ctx)
		if len(masters) != n {
			return fmt.Errorf("%d masters, want %d", len(masters), n)
		}
		for _, i := range masters {
			reply, err := g.clients[i].Do(ctx, "ROLE").Slice()
			if err != nil {
				return err
			}
			if replicas, ok := reply[len(reply)-1].([]any); !ok || len(replicas) != len(g.servers)/n-1 {
				return fmt.Errorf("the master at %s has replicas %v", g.servers[i].Addr(), reply[len(reply)-1])
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("servers: %d masters with a replica each: not within %v: %w", n, startTimeout, err)
	}
	return nil
}

func (g *group) Close() error {
	var errs []error
	for i := range g.servers {
		errs = append(errs, g.clients[i].Close(), g.servers[i].Close())
	}
	return errors.Join(errs...)
}
