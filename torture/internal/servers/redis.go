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
	// Reign changes whenever another server becomes a master.
	Reign(ctx context.Context) string
	// Kill kills a master that n picks, and returns how to mend that: it starts the server
	// again, and returns when all is as it was, if with the roles changed.
	Kill(ctx context.Context, n int) (mend func() error, err error)
	Close() error
}

// config is what all servers have: what is acknowledged is on the disk.
func config(more ...redisserver.Option) []redisserver.Option {
	return append([]redisserver.Option{redisserver.Config("appendfsync", "always")}, more...)
}

// Options are those of every client here: an operation is tried once, so that what is known
// of it is known of one attempt.
func options(addr string) *redis.Options {
	return &redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: operation, WriteTimeout: operation, DialerRetries: 1}
}

// single is one server.
type single struct {
	server *redisserver.Server
	client *redis.Client
}

func newSingle() (*single, error) {
	server, err := redisserver.New(config()...)
	if err != nil {
		return nil, err
	}
	return &single{server, redis.NewClient(options(server.Addr()))}, nil
}

func (s *single) Mode() string { return "standalone" }
func (s *single) URL() string  { return s.server.URL(0) }
func (s *single) Addr() string { return s.server.Addr() }

func (s *single) Node(context.Context, string) (*redis.Client, error) { return s.client, nil }

func (s *single) Masters(context.Context) ([]*redis.Client, error) {
	return []*redis.Client{s.client}, nil
}

func (s *single) Refresh(context.Context) {}

func (s *single) Reign(context.Context) string { return "" }

func (s *single) Kill(context.Context, int) (mend func() error, err error) {
	return s.server.Start, s.server.Kill()
}

func (s *single) Close() error { return errors.Join(s.client.Close(), s.server.Close()) }
