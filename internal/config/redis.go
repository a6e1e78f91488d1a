package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Mode says how the Redis servers are organised.
type Mode string

// The modes.
const (
	Standalone Mode = "standalone"
	Sentinel   Mode = "sentinel"
	Cluster    Mode = "cluster"
)

// Redis says where Redis is. Exactly the options of its mode are set.
type Redis struct {
	Mode       Mode
	Shown      string                 // the URL without its secrets
	Standalone *redis.Options         // nil in another mode, as the next two
	Sentinel   *redis.FailoverOptions // the server is the master that the sentinels name
	Cluster    *redis.ClusterOptions

	// What these say, whichever they are.
	DB        int         // the number of the database
	TLS       *tls.Config // how to encrypt; nil: not at all
	FirstAddr string      // of the first server that is asked: host:port, or the path of a socket
}

// Limited returns the same servers, for a client that has so many connections to each at most, and little patience.
func (c Redis) Limited(connections int, dial, answer time.Duration) Redis {
	switch c.Mode {
	case Sentinel:
		o := *c.Sentinel
		o.PoolSize, o.MinIdleConns, o.MaxRetries = connections, 0, 1
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dial, answer, answer, answer
		c.Sentinel = &o
	case Cluster:
		o := *c.Cluster
		o.PoolSize, o.MinIdleConns = connections, 0
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dial, answer, answer, answer
		c.Cluster = &o
	default:
		o := *c.Standalone
		o.PoolSize, o.MinIdleConns, o.MaxRetries = connections, 0, 1
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = dial, answer, answer, answer
		c.Standalone = &o
	}
	return c
}

// errReplicas refuses options of a URL that have clients read from replicas.
var errReplicas = errors.New("replica_only, read_only, route_by_latency and route_randomly read from replicas, which lag behind: timerd needs the master")

func parseRedis(env *environment, f *faults) Redis {
	c := Redis{Mode: Mode(strings.ToLower(env.Redis.Mode))}
	switch c.Mode {
	case Standalone, Sentinel, Cluster:
	default:
		f.add("REDIS_MODE", env.Redis.Mode, "standalone, sentinel or cluster")
		c.Mode = Standalone // so that what is wrong with the URL is told too
	}
	files := pemFiles{"REDIS", env.Redis.CA, env.Redis.Cert, env.Redis.Key}
	roots := files.check(f)
	shown, ok := showURL(env.Redis.URL)
	want, err := c.parseURL(env.Redis.URL)
	if ok && err == nil {
		err = checkHost(env.Redis.URL)
	}
	if err != nil || !ok {
		f.addURL("REDIS_URL", env.Redis.URL, want, err)
		return c
	}
	c.Shown = shown
	if c.DB < 0 {
		f.addf("REDIS_URL", "database %d: want 0 or more", c.DB)
	}
	secure := c.TLS
	if secure == nil {
		if files.ca+files.cert+files.key != "" {
			f.addf("REDIS_URL", "%q: want rediss://, since TIMERD_REDIS_CA, _CERT or _KEY is set; without it nothing is encrypted", shown)
		}
		return c
	}
	secure.MinVersion, secure.RootCAs = max(secure.MinVersion, tls.VersionTLS12), roots
	if files.cert != "" {
		secure.GetClientCertificate = files.clientCertificate
	}
	return c
}

// parseURL reads a URL of the mode. want says what is wanted of it.
func (c *Redis) parseURL(s string) (want string, _ error) {
	switch c.Mode {
	case Sentinel:
		want = "redis://sentinel:26379/db?master_name=name, with &addr=sentinel2:26379 for each further sentinel"
		o, err := redis.ParseFailoverURL(s)
		switch {
		case err != nil:
			return want, err
		case o.MasterName == "":
			return want, errors.New("master_name is missing")
		case o.ReplicaOnly || o.RouteByLatency || o.RouteRandomly:
			return want, errReplicas
		}
		c.Sentinel, c.DB, c.TLS, c.FirstAddr = o, o.DB, o.TLSConfig, o.SentinelAddrs[0]
	case Cluster:
		want = "redis://[user:password@]host:port, with ?addr=host2:port&addr=host3:port for further nodes"
		if u, fault := url.Parse(s); fault == nil && strings.Trim(u.Path, "/0") != "" {
			return want, fmt.Errorf("database %s: timerd serves database 0 of a cluster", strings.Trim(u.Path, "/"))
		}
		o, err := redis.ParseClusterURL(s)
		switch {
		case err != nil:
			return want, err
		case o.ReadOnly || o.RouteByLatency || o.RouteRandomly:
			return want, errReplicas
		}
		c.Cluster, c.TLS, c.FirstAddr = o, o.TLSConfig, o.Addrs[0]
	default:
		want = "redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path?db=0"
		o, err := redis.ParseURL(s)
		if err != nil {
			return want, err
		}
		c.Standalone, c.DB, c.TLS, c.FirstAddr = o, o.DB, o.TLSConfig, o.Addr
	}
	return want, nil
}
