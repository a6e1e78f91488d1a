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

// Mode is the kind of Redis installation.
type Mode string

// The kinds of Redis installation.
const (
	Standalone Mode = "standalone"
	Sentinel   Mode = "sentinel"
	Cluster    Mode = "cluster"
)

// Redis has the address of Redis. Only the options of its mode are set.
type Redis struct {
	Mode       Mode
	Shown      string                 // the URL without its secrets
	Standalone *redis.Options         // like the next two, nil in other modes
	Sentinel   *redis.FailoverOptions // the server is the master that the sentinels name
	Cluster    *redis.ClusterOptions

	// The same values in every mode.
	DB        int         // the number of the database
	TLS       *tls.Config // how to encrypt; nil: not at all
	FirstAddr string      // the first server to ask: host:port, or the path of a socket
}

// Limited returns options for the same servers, with a limit on the connections to each server, and with the given
// timeouts.
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

// errReplicas refuses URL options for reading from replicas.
var errReplicas = errors.New(
	"replica_only, read_only, route_by_latency and route_randomly read from replicas, which lag behind: timerd needs " +
		"the master")

func parseRedis(env *environment, f *faults) Redis {
	c := Redis{Mode: Mode(strings.ToLower(env.Redis.Mode))}
	switch c.Mode {
	case Standalone, Sentinel, Cluster:
	default:
		f.add("REDIS_MODE", env.Redis.Mode, "standalone, sentinel or cluster")
		c.Mode = Standalone // so that faults of the URL are reported too
	}
	files := pemFiles{server: "REDIS", ca: env.Redis.CA, cert: env.Redis.Cert, key: env.Redis.Key}
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
			f.addf("REDIS_URL", "%q: want rediss://, since TIMERD_REDIS_CA, _CERT or _KEY is set; without it nothing "+
				"is encrypted", shown)
		}
		return c
	}
	secure.MinVersion, secure.RootCAs = max(secure.MinVersion, tls.VersionTLS12), roots
	if files.cert != "" {
		secure.GetClientCertificate = files.clientCertificate
	}
	return c
}

// parseURL reads a URL for the mode. want describes a valid URL.
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
