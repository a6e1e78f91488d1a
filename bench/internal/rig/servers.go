package rig

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// SyncDelayVariable is an environment variable for this program as a nats-server: its value is the delay for
// [SlowDisk].
const SyncDelayVariable = "TIMERD_BENCH_SYNC_DELAY"

// The roles of processes that several systems have.
const (
	RoleRedis    = "redis"
	RoleNATS     = "nats"
	RoleTimerd   = "timerd"
	RoleConsumer = "consumer"
	RoleWorker   = "worker"
)

// Redis starts a redis-server with deploy/redis.conf and further options. It returns a client; Close closes the client.
func (r *Rig) Redis(ctx context.Context, opts ...devserver.RedisOption) (*redis.Client, error) {
	server, err := devserver.StartRedis(ctx, append([]devserver.RedisOption{devserver.Directory(r.Dir)}, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("%w; `make deps` installs one", err)
	}
	r.Defer(server.Close)
	r.watch(RoleRedis, server, server.Log)
	rdb := redis.NewClient(&redis.Options{
		Addr: server.Addr(), PoolSize: 64, ReadTimeout: startTimeout,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	r.Defer(rdb.Close)
	r.RedisClient = rdb
	return rdb, nil
}

// RedisCluster starts a cluster of masters with deploy/redis.conf. It returns a client; Close closes the client.
// RedisClient is a client of the first master.
func (r *Rig) RedisCluster(ctx context.Context, masters int) (*redis.ClusterClient, error) {
	cluster, err := lab.StartCluster(ctx, lab.ClusterConfig{
		Masters: masters, NodeTimeout: clusterNodeTimeout, Options: []devserver.RedisOption{devserver.Directory(r.Dir)},
	})
	if err != nil {
		return nil, fmt.Errorf("%w; `make deps` installs a redis-server", err)
	}
	r.Defer(cluster.Close)
	var addrs []string
	for _, server := range cluster.Nodes {
		r.watch(RoleRedis, server, server.Log)
		addrs = append(addrs, server.Addr())
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: addrs, PoolSize: 64, ReadTimeout: startTimeout,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	r.RedisClient = redis.NewClient(&redis.Options{Addr: addrs[0]})
	r.Defer(func() error { return errors.Join(rdb.Close(), r.RedisClient.Close()) })
	return rdb, nil
}

// clusterNodeTimeout is the silence after which a master counts as failed. It is long, because a busy machine is no
// failure.
const clusterNodeTimeout = 15 * time.Second

// NATS starts a nats-server with JetStream on files. It returns a connection; Close closes the connection. jetstream
// has further settings for the block jetstream of the configuration.
func (r *Rig) NATS(ctx context.Context, jetstream ...string) (*nats.Conn, error) {
	return r.startNATS(ctx, "", jetstream...)
}

// NATSCluster starts several nats-servers that keep streams together. It returns a connection to one of them, like
// NATS.
func (r *Rig) NATSCluster(ctx context.Context, servers int) (*nats.Conn, error) {
	var routes []string
	var own []int
	for range servers {
		port, err := devserver.FreePort()
		if err != nil {
			return nil, err
		}
		own = append(own, port)
		routes = append(routes, strconv.Quote("nats://"+devserver.Address(port)))
	}
	var first *nats.Conn
	for i, port := range own {
		cluster := fmt.Sprintf("server_name: bench%d\ncluster {\n name: bench\n listen: %q\n routes: [%s]\n}\n", i,
			devserver.Address(port), strings.Join(routes, ", "))
		nc, err := r.startNATS(ctx, cluster)
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = nc
		}
	}
	return first, Until(ctx, startTimeout, func(ctx context.Context) error { // until they have a leader
		js, err := jetstream.New(first)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second) // servers without a leader do not answer
		defer cancel()
		_, err = js.AccountInfo(ctx)
		return err
	})
}

// startNATS starts a nats-server with further settings, and further settings of the block jetstream.
func (r *Rig) startNATS(ctx context.Context, settings string, jetstream ...string) (*nats.Conn, error) {
	port, err := r.listening(ctx, func(port int) (*devserver.Process, error) {
		dir, err := r.Subdir("nats")
		if err != nil {
			return nil, err
		}
		conf := filepath.Join(dir, "nats.conf")
		text := fmt.Sprintf("listen: %q\nmax_payload: 2MB\n%sjetstream {\n store_dir: %q\n %s\n}\n",
			devserver.Address(port), settings, dir, strings.Join(jetstream, "\n "))
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(context.WithoutCancel(ctx), r.Self, "nats-server", "-c", conf)
		if r.SyncDelay > 0 {
			cmd.Env = append(os.Environ(), SyncDelayVariable+"="+r.SyncDelay.String())
		}
		return r.Start(RoleNATS, cmd)
	}, func(_ context.Context, port int) error {
		nc, err := nats.Connect("nats://" + devserver.Address(port))
		if err == nil {
			nc.Close()
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("nats-server: %w", err)
	}
	nc, err := nats.Connect("nats://"+devserver.Address(port), nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	r.Defer(func() error { nc.Close(); return nil })
	return nc, nil
}

// Timerds starts timerds on the last started Redis and on a NATS, waits until each is ready, and returns their HTTP
// addresses. env has further variables, NAME=value.
func (r *Rig) Timerds(ctx context.Context, n int, nc *nats.Conn, env ...string) (addrs []string, err error) {
	for range n {
		port, err := r.listening(ctx, func(port int) (*devserver.Process, error) {
			cmd := exec.CommandContext(context.WithoutCancel(ctx), r.Timerd)
			cmd.Env = append([]string{
				"PATH=" + os.Getenv("PATH"), "TIMERD_REDIS_URL=redis://" + r.RedisClient.Options().Addr + "/0",
				"TIMERD_NATS_URL=" + nc.ConnectedUrl(),
				"TIMERD_NAMESPACES=bench", "TIMERD_HTTP_ADDR=" + devserver.Address(port),
			}, env...)
			return r.Start(RoleTimerd, cmd)
		}, func(ctx context.Context, port int) error {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+devserver.Address(port)+"/readyz",
				http.NoBody)
			if err != nil {
				return err
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
				return errors.Join(err, fmt.Errorf("/readyz says %s", response.Status))
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w; `make build` makes bin/timerd", r.Timerd, err)
		}
		addrs = append(addrs, devserver.Address(port))
	}
	return addrs, nil
}
