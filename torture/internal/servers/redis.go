package servers

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Redis is a deployment of Redis. Its methods may be called from any goroutine, those that
// change servers from one at a time.
type Redis interface {
	// Mode is TIMERD_REDIS_MODE, URL is TIMERD_REDIS_URL, with timerd's user.
	Mode() string
	URL() string
	// Addr is that of the only server, "" if there are several.
	Addr() string
	// Node returns a client of the master that has a key. It is the deployment's.
	Node(ctx context.Context, key string) (*redis.Client, error)
	// Masters returns a client of each master, Servers one of each server, whatever it is. They are the deployment's.
	Masters(ctx context.Context) ([]*redis.Client, error)
	Servers() []*redis.Client
	// Refresh has Node look again at who is master, after an error that says so.
	Refresh(ctx context.Context)
	// MasterNames names the masters: what it returns changes whenever another server becomes one.
	MasterNames(ctx context.Context) string
	// Kill kills a master that n picks, and returns how to mend that: it starts the server
	// again, and returns when all is as it was, if with the roles changed.
	Kill(ctx context.Context, n int) (mend func() error, err error)
	Close() error
}
