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

// operationTimeout bounds one command.
const operationTimeout = 5 * time.Second

// durable returns the options of all servers: acknowledged writes are on disk. The program is the one in
// devserver.BinaryEnv.
func durable() []devserver.RedisOption {
	return []devserver.RedisOption{
		devserver.Binary(os.Getenv(devserver.BinaryEnv)),
		devserver.Directive("appendfsync", "always"),
		devserver.Directive("repl-diskless-sync-delay", "0"),
		devserver.Directive("user", append([]string{timerdUser, "on", ">" + timerdUser}, allRights()...)...),
	}
}

// newClient returns a client that tries each operation once, so that its outcome is the outcome of one attempt.
func newClient(server *devserver.Redis) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: server.Addr(), MaxRetries: -1, ReadTimeout: operationTimeout, WriteTimeout: operationTimeout,
		DialerRetries: 1,
	})
}

// group is a set of servers whose roles change.
type group struct {
	servers []*devserver.Redis
	clients []*redis.Client // by server
}

// add adds running servers to the group. The group closes them.
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

// at returns the number of the server with an address.
func (g *group) at(addr string) (int, error) {
	i := slices.IndexFunc(g.servers, func(s *devserver.Redis) bool { return s.Addr() == addr })
	if i < 0 {
		return 0, fmt.Errorf("servers: nobody is at %q", addr)
	}
	return i, nil
}

// masters returns the servers that call themselves masters.
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

// awaitMaster waits until one server is the master and all others are its replicas, in step with the master.
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
		return fmt.Errorf("servers: no single master with all replicas in step within %v: %w", startTimeout, err)
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
