package deploytest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// container runs the command of a service as its container would, on this machine: the network's addresses and ports
// are replaced by local ones.
type container struct {
	t       *testing.T
	service types.ServiceConfig
	replace *strings.Replacer
	path    string // PATH
}

// start starts the command. It is killed when the test ends.
func (c *container) start() *exec.Cmd {
	c.t.Helper()
	args := []string(c.service.Command)
	for i := range args {
		args[i] = c.replace.Replace(args[i])
	}
	cmd := exec.CommandContext(c.t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+c.path)
	out := &testenv.Output{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.t.Logf("%q said:\n%s", args, out)
		}
	})
	return cmd
}

// entryPoint makes a directory for PATH with the image's programs: its entry point, which runs its arguments, and the
// tests' server.
func entryPoint(t *testing.T) (path string) {
	t.Helper()
	program := os.Getenv(devserver.BinaryEnv)
	if program == "" {
		program = "redis-server"
	}
	server, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"docker-entrypoint.sh": "#!/bin/sh\nexec \"$@\"\n",
		"redis-server":         "#!/bin/sh\nexec '" + server + "' \"$@\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir + ":" + os.Getenv("PATH")
}

// The servers start by their command lines, with the settings of redis.conf and those of the container.
func TestComposeRedis(t *testing.T) {
	path := entryPoint(t)
	for _, name := range []string{"redis", "redis-1"} {
		port, err := devserver.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		bus, err := devserver.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		conf, err := filepath.Abs("../redis.conf")
		if err != nil {
			t.Fatal(err)
		}
		c := &container{
			t: t, service: load(t, "cluster").Services[name], path: path,
			replace: strings.NewReplacer("/etc/timerd/redis.conf", conf, "--dir /data",
				fmt.Sprintf("--dir %s --port %d --cluster-port %d", dir, port, bus), "0.0.0.0", "127.0.0.1"),
		}
		c.start()
		client := redis.NewClient(&redis.Options{Addr: devserver.Address(port), DialerRetries: 1, MaxRetries: -1})
		want := map[string]string{"appendonly": "yes", "maxmemory-policy": "noeviction", "protected-mode": "no",
			"dir": dir, "cluster-enabled": "no"}
		if name != "redis" {
			want["cluster-enabled"] = "yes"
		}
		testenv.Eventually(t, time.Minute, func() error { return client.Ping(t.Context()).Err() }, name+" to answer")
		for setting, value := range want {
			if got := client.ConfigGet(t.Context(), setting).Val()[setting]; got != value {
				t.Errorf("%s: %s is %q, want %q", name, setting, got, value)
			}
		}
		if flags := client.ConfigGet(t.Context(),
			"notify-keyspace-events").Val()["notify-keyspace-events"]; !strings.Contains(flags, "x") {
			t.Errorf("%s: redis.conf is not in force: the flags are %q", name, flags)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The nodes become one cluster, at the first start; and at each further one, with the nodes just back and their state
// not ok yet, it is found to be one.
func TestComposeMakesTheClusterOnce(t *testing.T) {
	cluster := load(t, "cluster")
	var nodes []*devserver.Redis
	var places []string
	for i := range 6 {
		node, err := devserver.StartRedis(t.Context(), devserver.Binary(os.Getenv(devserver.BinaryEnv)),
			devserver.Directive("cluster-enabled", "yes"), devserver.Directive("protected-mode", "no"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = node.Close() })
		nodes = append(nodes, node)
		address := cluster.Services[fmt.Sprintf("redis-%d", i+1)].Networks["cluster"].Ipv4Address
		places = append(places, address+":6379", node.Addr())
		if i == 0 {
			places = append(places, "-h "+address+" ", fmt.Sprintf("-p %d ", node.Port()))
		}
	}
	c := &container{t: t, service: cluster.Services["redis-cluster"], replace: strings.NewReplacer(places...),
		path: os.Getenv("PATH")}
	makes := func(what string) {
		t.Helper()
		if err := c.start().Wait(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		client := redis.NewClient(&redis.Options{Addr: nodes[0].Addr()})
		defer func() { _ = client.Close() }()
		info, err := client.ClusterInfo(t.Context()).Result()
		if err != nil || !strings.Contains(info, "cluster_state:ok") ||
			!strings.Contains(info, "cluster_known_nodes:6") {
			t.Fatalf("%s: %v\n%s", what, err, info)
		}
	}
	makes("the first start")
	for i := range 2 {
		for _, node := range nodes {
			if err := node.Kill(); err != nil {
				t.Fatal(err)
			}
		}
		for _, node := range nodes {
			if err := node.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		makes(fmt.Sprintf("the start after kill %d", i+1))
	}
}
