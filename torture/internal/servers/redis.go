package servers

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// Redis is a deployment of Redis. Its methods may be called from any goroutine. Methods that change servers may be
// called only one at a time.
type Redis interface {
	// Mode is the value of TIMERD_REDIS_MODE. URL is the value of TIMERD_REDIS_URL, with timerd's user.
	Mode() string
	URL() string
	// Addr is the address of the only server, "" if there are several.
	Addr() string
	// Node returns a client of the master that has a key. The deployment owns the client.
	Node(ctx context.Context, key string) (*redis.Client, error)
	// Masters returns a client of each master, and Servers a client of each server, whatever its role. The deployment
	// owns the clients.
	Masters(ctx context.Context) ([]*redis.Client, error)
	Servers() []*redis.Client
	// Refresh makes Node look for the masters again. Call it after an error that may mean other masters.
	Refresh(ctx context.Context)
	// MasterNames names the masters. The result changes whenever another server becomes a master.
	MasterNames(ctx context.Context) string
	// Kill kills the master with number n, and returns the repair. The repair starts the server again, and returns once
	// everything works; the roles may have changed.
	Kill(ctx context.Context, n int) (mend func() error, err error)
	Close() error
}
