package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/child"
	"github.com/timerd-io/timerd/internal/testenv"
)

// startSentinel starts a sentinel that watches a master under the name timers,
// and returns its URL.
func startSentinel(t *testing.T, master string) string {
	t.Helper()
	binary := os.Getenv(testenv.RedisServerEnv)
	if binary == "" {
		var err error
		if binary, err = findRedis(); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	addr := freeAddr(t)
	_, port, _ := strings.Cut(addr, ":")
	host, masterPort, _ := strings.Cut(master, ":")
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor timers %s %s 1\n"+
		"sentinel down-after-milliseconds timers 500\nsentinel failover-timeout timers 3000\n", port, dir, host, masterPort)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(exec.Command(binary, conf, "--sentinel"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(5 * time.Second); err != nil {
			t.Error(err)
		}
	})
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = sentinel.Close() })
	testenv.Eventually(t, patience, func() error {
		replicas, err := sentinel.Replicas(t.Context(), "timers").Result()
		if err == nil && (len(replicas) != 1 || replicas[0]["master-link-status"] != "ok") {
			err = fmt.Errorf("replicas: %v", replicas)
		}
		return err
	}, "the sentinel to know the replica")
	return "redis://" + addr + "/0?master_name=timers"
}

// The master dies with timers pending; its replica is promoted and has them.
func TestSentinelFailover(t *testing.T) {
	s := newSystem(t)
	host, port, _ := strings.Cut(s.redis.Addr(), ":")
	replica := testenv.Redis(t, testenv.RedisConfig("replicaof", host, port))
	s.env["TIMERD_REDIS_MODE"] = "sentinel"
	s.env["TIMERD_REDIS_URL"] = startSentinel(t, s.redis.Addr())
	p := s.start()
	c := s.collect()

	s.do("FCALL", "timer_set", 1, "a:b:c:explicit", "1", "PX", 5000)
	s.do("SET", "a:b:c:plain", "2", "PX", 5500)
	s.adopted("a:b:c:plain")
	if n := s.do("WAIT", 1, 5000); n != int64(1) {
		t.Fatalf("%v replicas have the timers", n)
	}
	s.redis.Kill()
	s.rdb = replica.Client()
	testenv.Eventually(t, patience, func() error {
		return s.rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:after"}, "3", "PX", 500).Err()
	}, "the replica to be promoted")
	s.do("SET", "a:b:c:audited", "4", "PX", 4000)
	s.expect(c, "a:b:c:explicit=1", "a:b:c:plain=2", "a:b:c:after=3", "a:b:c:audited=4")
	p.awaitReady(true)
	s.settled()
	p.stop()
}
