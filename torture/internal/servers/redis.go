package servers

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/redisserver"
)

// Redis is a deployment of Redis. Its methods may be called from any goroutine, those that
// change servers from one at a time.
type Redis interface {
	// Mode is TIMERD_REDIS_MODE, URL is TIMERD_REDIS_URL.
	Mode() string
	URL() string
	// Addr is that of the only server, "" if there are several.
	Addr() string
	// Node returns a client of the master that has a key. It is the deployment's.
	Node(ctx context.Context, key string) (*redis.Client, error)
	// Masters returns a client of each master. They are the deployment's.
	Masters(ctx context.Context) ([]*redis.Client, error)
	// Refresh has Node look again at who is master, after an error that says so.
	Refresh(ctx context.Context)
	// MasterNames names the masters: what it returns changes whenever another server becomes one.
	MasterNames(ctx context.Context) string
	// Kill kills a master that n picks, and returns how to mend that: it starts the server
	// again, and returns when all is as it was, if with the roles changed.
	Kill(ctx context.Context, n int) (mend func() error, err error)
	Close() error
}

// single is one server.
type single struct {
	server *redisserver.Server
	client *redis.Client
}

func newSingle(ctx context.Context) (*single, error) {
	server, err := redisserver.Start(ctx, durable()...)
	if err != nil {
		return nil, err
	}
	return &single{server, newClient(server)}, nil
}

func (s *single) Mode() string { return "standalone" }
func (s *single) URL() string  { return s.server.URL(0) }
func (s *single) Addr() string { return s.server.Addr() }

func (s *single) Node(context.Context, string) (*redis.Client, error) { return s.client, nil }

func (s *single) Masters(context.Context) ([]*redis.Client, error) {
	return []*redis.Client{s.client}, nil
}

func (s *single) Refresh(context.Context) {}

func (s *single) MasterNames(context.Context) string { return "" }

func (s *single) Kill(ctx context.Context, _ int) (mend func() error, err error) {
	return func() error { return s.server.Start(ctx) }, s.server.Kill()
}

func (s *single) Close() error { return errors.Join(s.client.Close(), s.server.Close()) }
