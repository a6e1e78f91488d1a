package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/timerd-io/timerd/internal/config"
)

// poolSize is the default limit of connections: twice the number that the retry consumer uses of one server at a time,
// so that no claim waits for one.
const poolSize = 64

// NewRedisClient returns a client that connects at its first use. Contexts bound its commands, besides the timeouts of
// the URL. The caller closes it.
func NewRedisClient(conf config.Redis) redis.UniversalClient {
	switch conf.Mode {
	case config.Sentinel:
		o := *conf.Sentinel
		o.ContextTimeoutEnabled = true
		o.Dialer, o.PoolSize = dialRedis(o.DialTimeout, o.TLSConfig), cmp.Or(o.PoolSize, poolSize)
		return redis.NewFailoverClient(&o)
	case config.Cluster:
		o := *conf.Cluster
		o.ContextTimeoutEnabled = true
		// go-redis would repeat a whole pipeline if its first command is refused: a claim would lose the timers it had
		// claimed. The schedule retries by itself.
		o.MaxRetries = -1
		o.Dialer, o.PoolSize = dialRedis(o.DialTimeout, o.TLSConfig), cmp.Or(o.PoolSize, poolSize)
		// go-redis would ask some node for a table of all commands before the first one, and wait even if that node is
		// silent.
		o.DisableRoutingPolicies = true
		o.NewClient = newClusterNode
		o.MaintNotificationsConfig = noMaintenance()
		return redis.NewClusterClient(&o)
	default:
		o := *conf.Standalone
		o.ContextTimeoutEnabled = true
		o.MaintNotificationsConfig = noMaintenance()
		o.Dialer, o.PoolSize = dialRedis(o.DialTimeout, o.TLSConfig), cmp.Or(o.PoolSize, poolSize)
		return redis.NewClient(&o)
	}
}

// noMaintenance stops go-redis from asking for notifications of maintenance, which only Redis Enterprise sends. Each
// connection would ask first, and write a refusal into the client's options while others copy them.
func noMaintenance() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// dialRedis returns go-redis's own dialer, with connections that cost less. They are not checked before each command,
// which costs more: if the server has closed one, go-redis repeats the command on another, and in a cluster [nodeHook]
// does.
func dialRedis(timeout time.Duration,
	secure *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	dial := redis.NewDialer(&redis.Options{DialTimeout: cmp.Or(timeout, 5*time.Second), TLSConfig: secure})
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return wrapSocket(c), nil
	}
}

// noCluster begins the error of a server without cluster support.
const noCluster = "This instance has cluster support disabled"

// RedisRefused reports whether the server answers and refuses the client, so that a retry is pointless.
func RedisRefused(err error) bool {
	return redis.IsAuthError(err) || redis.IsPermissionError(err) || slices.ContainsFunc([]string{
		"DENIED ", // protected mode
		noCluster,
		"invalid DB index", "DB index is out of range", "SELECT is not allowed",
	}, func(prefix string) bool { return redis.HasErrorPrefix(err, prefix) })
}
