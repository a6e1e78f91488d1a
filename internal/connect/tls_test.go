package connect_test

import (
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// secureRedis reads how to connect with TLS.
func secureRedis(t *testing.T, mode config.Mode, url, ca, cert, key string) config.Redis {
	t.Helper()
	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_URL": url, "TIMERD_REDIS_MODE": string(mode),
		"TIMERD_REDIS_CA": ca, "TIMERD_REDIS_CERT": cert, "TIMERD_REDIS_KEY": key,
	})
	c, err := config.Read(config.SectionRedis)
	if err != nil {
		t.Fatal(err)
	}
	return c.Redis
}

// works connects, and reads and writes.
func works(t *testing.T, conf config.Redis) {
	t.Helper()
	var logs testenv.Output
	rdb, err := connector(&logs, time.Minute).Redis(t.Context(), conf)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", conf.Mode, conf.Shown, err, &logs)
	}
	if err := rdb.Set(t.Context(), "k", "v", 0).Err(); err != nil {
		t.Errorf("%s: %v", conf.Mode, err)
	}
	if err := rdb.Close(); err != nil {
		t.Error(err)
	}
}

func TestConnectRedisTLS(t *testing.T) {
	testenv.NoLeaks(t)
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("redis", "127.0.0.1")
	ownCert, ownKey := authority.Issue("timerd")
	addr, opts := authority.RedisTLS(cert, key)
	testenv.Redis(t, opts...)
	works(t, secureRedis(t, config.Standalone, "rediss://"+addr+"/0", authority.File, ownCert, ownKey))
}

func TestConnectRedisClusterTLS(t *testing.T) {
	testenv.NoLeaks(t)
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("redis", "127.0.0.1")
	ownCert, ownKey := authority.Issue("timerd")
	addr, opts := authority.RedisTLS(cert, key)
	opts = append(opts, devserver.Directive("tls-cluster", "yes")) // so that the nodes name their ports for TLS
	cluster, err := lab.StartCluster(t.Context(), lab.ClusterConfig{Masters: 1, NodeTimeout: 5 * time.Second,
		Options: opts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	works(t, secureRedis(t, config.Cluster, "rediss://"+addr, authority.File, ownCert, ownKey))
}

func TestConnectRedisSentinelTLS(t *testing.T) {
	testenv.NoLeaks(t)
	authority := testenv.NewAuthority(t)
	cert, key := authority.Issue("redis", "127.0.0.1")
	ownCert, ownKey := authority.Issue("timerd")
	server := func() (addr string, opts []devserver.RedisOption) {
		addr, opts = authority.RedisTLS(cert, key)
		return addr, append(opts, devserver.Directive("tls-replication", "yes"))
	}
	master, opts := server()
	testenv.Redis(t, opts...)
	host, port, _ := strings.Cut(master, ":")
	_, opts = server()
	testenv.Redis(t, append(opts, devserver.Directive("replicaof", host, port))...)
	addr, opts := server()
	sentinel, err := lab.StartSentinel(t.Context(), master, 5*time.Second, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sentinel.Close(); err != nil {
			t.Error(err)
		}
	})
	_, query, _ := strings.Cut(sentinel.URL(), "?")
	works(t, secureRedis(t, config.Sentinel, "rediss://"+addr+"/0?"+query, authority.File, ownCert, ownKey))
}

// A fault of TLS ends the start at once, with its fix.
func TestConnectExplainsTLS(t *testing.T) {
	testenv.NoLeaks(t)
	authority, stranger := testenv.NewAuthority(t), testenv.NewAuthority(t)
	serve := func(change func(*x509.Certificate), hosts ...string) (server *testenv.RedisServer, addr string) {
		t.Helper()
		cert, key := authority.IssueAs("redis", change, hosts...)
		addr, opts := authority.RedisTLS(cert, key)
		return testenv.Redis(t, opts...), addr
	}
	server, addr := serve(nil, "127.0.0.1")
	_, elsewhere := serve(nil, "redis.example")
	_, expired := serve(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, "127.0.0.1")
	cert, key := authority.Issue("timerd")
	foreignCert, foreignKey := stranger.Issue("timerd")
	for _, c := range []struct {
		name, url, ca, cert, key string
		wants                    []string
	}{
		{"an unknown authority", "rediss://" + addr, "", cert, key, []string{"set TIMERD_REDIS_CA"}},
		{"another authority", "rediss://" + addr, stranger.File, cert, key,
			[]string{"let the file of TIMERD_REDIS_CA"}},
		{"another host", "rediss://" + elsewhere, authority.File, cert, key, []string{"certificate for 127.0.0.1"}},
		{"an expired certificate", "rediss://" + expired, authority.File, cert, key,
			[]string{"expired", "renew the server's certificate"}},
		{"no client certificate", "rediss://" + addr, authority.File, "", "",
			[]string{"set TIMERD_REDIS_CERT and TIMERD_REDIS_KEY"}},
		{"a stranger's client certificate", "rediss://" + addr, authority.File, foreignCert, foreignKey,
			[]string{"tls-ca-cert-file"}},
		{"TLS with the plain port", "rediss://" + server.Addr(), authority.File, cert, key, []string{"write redis://"}},
		{"no TLS with the TLS port", "redis://" + addr, "", "", "", []string{"write rediss://"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := secureRedis(t, config.Standalone, c.url, c.ca, c.cert, c.key)
			var logs testenv.Output
			watch := testenv.StartStopwatch()
			connector := connector(&logs, time.Minute)
			connector.Attempt = time.Second // a server that takes a handshake for a command is silent
			_, err := connector.Redis(t.Context(), conf)
			fault, ok := errors.AsType[*diag.Fault](err)
			if !ok || slices.ContainsFunc(c.wants, func(want string) bool {
				return !strings.Contains(err.Error(), want)
			}) {
				t.Fatalf("got %v, want %q", err, c.wants)
			}
			if !strings.HasPrefix(err.Error(), "Redis at "+conf.Shown+": ") ||
				!strings.Contains(err.Error(), fault.Fix()) {
				t.Errorf("got %v", err)
			}
			watch.AtMost(t, 20*time.Second, "the start")
		})
	}
}
