package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
)

// operation bounds one command.
const operation = 5 * time.Second

// durable returns what all servers have: what is acknowledged is on the disk. The program is the one
// that devserver.BinaryEnv names.
func durable() []devserver.RedisOption {
	return []devserver.RedisOption{
		devserver.Binary(os.Getenv(devserver.BinaryEnv)),
		devserver.Directive("appendfsync", "always"),
		devserver.Directive("repl-diskless-sync-delay", "0"),
		devserver.Directive("user", append([]string{timerdUser, "on", ">" + timerdUser}, allRights()...)...),
	}
}

// newClient returns a client that tries each operation once, so that what is known of it is known of
// one attempt.
func newClient(server *devserver.Redis) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: server.Addr(), MaxRetries: -1, ReadTimeout: operation, WriteTimeout: operation, DialerRetries: 1,
	})
}

// group is several servers whose roles change.
type group struct {
	servers []*devserver.Redis
	clients []*redis.Client // of each server
}

// add takes servers that run into the group, which closes them.
func (g *group) add(servers ...*devserver.Redis) {
	for _, s := range servers {
		g.servers = append(g.servers, s)
		g.clients = append(g.clients, newClient(s))
	}
}

// client returns the client of a server of the group.
func (g *group) client(server *devserver.Redis) *redis.Client {
	return g.clients[slices.Index(g.servers, server)]
}

// at returns which server has an address.
func (g *group) at(addr string) (int, error) {
	i := slices.IndexFunc(g.servers, func(s *devserver.Redis) bool { return s.Addr() == addr })
	if i < 0 {
		return 0, fmt.Errorf("servers: nobody is at %q", addr)
	}
	return i, nil
}

// masters returns which servers say that they are masters.
func (g *group) masters(ctx context.Context) []int {
	var all []int
	for i, s := range g.servers {
		if s.Role(ctx) == "master" {
			all = append(all, i)
		}
	}
	return all
}

// MasterNames implements Redis.
func (g *group) MasterNames(ctx context.Context) string { return fmt.Sprint(g.masters(ctx)) }

// awaitMaster waits until one server is the master and all others are its replicas, in step with it.
func (g *group) awaitMaster(ctx context.Context) error {
	err := devserver.Until(ctx, startTimeout, func() error {
		masters := g.masters(ctx)
		if len(masters) != 1 {
			return fmt.Errorf("%d masters", len(masters))
		}
		reply, err := g.clients[masters[0]].Do(ctx, "ROLE").Slice()
		if err != nil {
			return err
		}
		if replicas, ok := reply[len(reply)-1].([]any); !ok || len(replicas) != len(g.servers)-1 {
			return fmt.Errorf("the master at %s has replicas %v", g.servers[masters[0]].Addr(), reply[len(reply)-1])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("servers: one master, and replicas in step: not within %v: %w", startTimeout, err)
	}
	return nil
}

// Servers implements Redis.
func (g *group) Servers() []*redis.Client { return g.clients }

func (g *group) Close() error {
	var errs []error
	for i := range g.servers {
		errs = append(errs, g.clients[i].Close(), g.servers[i].Close())
	}
	return errors.Join(errs...)
}
