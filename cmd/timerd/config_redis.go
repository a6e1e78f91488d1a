package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/rawconn"
)

// redisMode says how the Redis servers are organised.
type redisMode string

const (
	modeStandalone redisMode = "standalone"
	modeSentinel   redisMode = "sentinel"
	modeCluster    redisMode = "cluster"
)

// clientName is how timerd shows in CLIENT LIST and in NATS's connection list.
const clientName = "timerd"

// poolSize is how many connections there are at most unless the URL says otherwise:
// twice as many as the retry intake uses at a time, so that no claim waits for one.
const poolSize = 64

// redisConfig says where Redis is. Exactly the options of its mode are set.
type redisConfig struct {
	Mode       redisMode
	Shown      string // the URL without its secrets
	standalone *redis.Options
	sentinel   *redis.FailoverOptions
	cluster    *redis.ClusterOptions
}

// newClient returns a client that connects when it is first used. Contexts bound
// its commands, besides the timeouts of the URL.
func (c redisConfig) newClient() redis.UniversalClient {
	switch c.Mode {
	case modeSentinel:
		o := *c.sentinel
		o.ContextTimeoutEnabled = true
		o.Dialer, o.PoolSize = dialRedis(o.DialTimeout, o.TLSConfig), cmp.Or(o.PoolSize, poolSize)
		return redis.NewFailoverClient(&o)
	case modeCluster:
		o := *c.cluster
		o.ContextTimeoutEnabled = true
		// A pipeline whose first command is refused would be repeated as a whole: a
		// claim would lose what it had claimed. The schedule tries again by itself.
		o.MaxRetries = -1
		o.PoolSize = cmp.Or(o.PoolSize, poolSize)
		return redis.NewClusterClient(&o)
	default:
		o := *c.standalone
		o.ContextTimeoutEnabled = true
		o.Dialer, o.PoolSize = dialRedis(o.DialTimeout, o.TLSConfig), cmp.Or(o.PoolSize, poolSize)
		return redis.NewClient(&o)
	}
}

// dialRedis returns go-redis's own dialer, with connections that cost less. They
// are not looked at before each command, which would cost more again: where the
// server has closed one, go-redis repeats the command on another.
func dialRedis(timeout time.Duration, secure *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	dial := redis.NewDialer(&redis.Options{DialTimeout: cmp.Or(timeout, 5*time.Second), TLSConfig: secure})
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return rawconn.Wrap(c), nil
	}
}

// db returns the number of the database.
func (c redisConfig) db() int {
	switch c.Mode {
	case modeSentinel:
		return c.sentinel.DB
	case modeCluster:
		return 0
	default:
		return c.standalone.DB
	}
}

// errReplicas refuses options of a URL that have clients read from replicas.
var errReplicas = errors.New("replica_only, read_only, route_by_latency and route_randomly read from replicas, which lag behind: timerd needs the master")

func parseRedis(env *environment, f *faults) redisConfig {
	c := redisConfig{Mode: redisMode(strings.ToLower(env.Redis.Mode))}
	var parse func(string) error
	var want string
	switch c.Mode {
	case modeStandalone, modeSentinel, modeCluster:
	default:
		f.add("REDIS_MODE", env.Redis.Mode, "standalone, sentinel or cluster")
		c.Mode = modeStandalone // so that what is wrong with the URL is told too
	}
	switch c.Mode {
	case modeStandalone:
		want = "redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path?db=0"
		parse = func(s string) (err error) { c.standalone, err = redis.ParseURL(s); return err }
	case modeSentinel:
		want = "redis://sentinel:26379/db?master_name=name, with &addr=sentinel2:26379 for each further sentinel"
		parse = func(s string) (err error) {
			c.sentinel, err = redis.ParseFailoverURL(s)
			if err == nil && c.sentinel.MasterName == "" {
				err = errors.New("master_name is missing")
			}
			if err == nil && (c.sentinel.ReplicaOnly || c.sentinel.RouteByLatency || c.sentinel.RouteRandomly) {
				err = errReplicas
			}
			return err
		}
	case modeCluster:
		want = "redis://[user:password@]host:port, with ?addr=host2:port&addr=host3:port for further nodes"
		parse = func(s string) (err error) {
			c.cluster, err = redis.ParseClusterURL(s)
			if u, fault := url.Parse(s); fault == nil && strings.Trim(u.Path, "/0") != "" {
				err = fmt.Errorf("database %s: a cluster has only 0", strings.Trim(u.Path, "/"))
			}
			if err == nil && (c.cluster.ReadOnly || c.cluster.RouteByLatency || c.cluster.RouteRandomly) {
				err = errReplicas
			}
			return err
		}
	}
	shown, ok := showURL(env.Redis.URL)
	if err := parse(env.Redis.URL); err != nil || !ok {
		f.addURL("REDIS_URL", env.Redis.URL, want, err)
		return c
	}
	c.Shown = shown
	if db := c.db(); db < 0 {
		f.addf("REDIS_URL", "database %d: want 0 or more", db)
	}
	for _, t := range c.tlsConfigs() {
		if t != nil {
			t.MinVersion = max(t.MinVersion, tls.VersionTLS12)
		}
	}
	return c
}

func (c redisConfig) tlsConfigs() []*tls.Config {
	switch c.Mode {
	case modeSentinel:
		return []*tls.Config{c.sentinel.TLSConfig}
	case modeCluster:
		return []*tls.Config{c.cluster.TLSConfig}
	default:
		return []*tls.Config{c.standalone.TLSConfig}
	}
}

// addURL reports a URL that may hold secrets. cause, from whoever parsed it, may
// be nil; it is told without the secrets that it quotes.
func (f *faults) addURL(name, value, want string, cause error) {
	shown, ok := showURL(value)
	switch {
	case value == "":
		f.add(name, value, want)
	case !ok:
		f.addf(name, "not a URL that can be read (it is not shown: it may hold a password; in a password, write : / ? # @ %% as %%3A %%2F %%3F %%23 %%40 %%25): want %s", want)
	case cause != nil:
		f.addf(name, "%q: %s: want %s", shown, hideIn(cause.Error(), value), want)
	default:
		f.addf(name, "%q: want %s", shown, want)
	}
}

// hidden stands for a secret.
const hidden = "xxxxx"

// showURL returns a URL without its secrets, and whether it could tell where
// they are. The user is hidden along with the password: NATS tokens stand there,
// and Redis passwords do by mistake. So is the value of every parameter that is
// not known to be harmless.
func showURL(raw string) (string, bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme == "" || u.Opaque != "" || u.Host == "" && u.Scheme != "unix" {
		return "", false
	}
	if u.User != nil {
		u.User = url.User(hidden)
	}
	rest := *u
	rest.User = nil
	if strings.Contains(rest.String(), "@") {
		return "", false // a password with a slash, or the like, that went astray
	}
	q := u.Query()
	for name := range q {
		if !isHarmless(name) {
			q.Set(name, hidden)
		}
	}
	u.RawQuery = q.Encode()
	return u.String(), true
}

// isHarmless tells whether the values of a URL parameter may be shown.
func isHarmless(name string) bool {
	switch name {
	case "db", "addr", "master_name", "client_name", "protocol", "skip_verify", "max_retries", "min_retry_backoff", "max_retry_backoff",
		"dial_timeout", "read_timeout", "write_timeout", "pool_timeout", "pool_size", "pool_fifo", "min_idle_conns", "max_idle_conns",
		"max_active_conns", "conn_max_idle_time", "conn_max_lifetime", "idle_timeout", "max_conn_age",
		"replica_only", "read_only", "max_redirects", "route_by_latency", "route_randomly":
		return true
	}
	return false
}

// hideIn returns a text about a URL without the values of the parameters that
// showURL hides; as a whole it is withheld where one of them shows. What go-redis
// says of unexpected options holds their names alone.
func hideIn(text, raw string) string {
	if strings.HasPrefix(text, "redis: unexpected option: ") {
		return text
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "it cannot be read"
	}
	for name, values := range u.Query() {
		for _, value := range values {
			quoted := strings.Trim(strconv.Quote(value), `"`)
			if value != "" && !isHarmless(name) && (strings.Contains(text, value) || strings.Contains(text, quoted)) {
				return "a parameter is wrong or unknown"
			}
		}
	}
	return text
}
