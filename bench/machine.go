package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/bench/internal/peer"
	"github.com/timerd-io/timerd/bench/internal/result"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

// thisMachine describes the machine. It works on Linux only, because it reads /proc.
func thisMachine() (result.Machine, error) {
	m := result.Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH}
	for _, read := range []struct {
		file, name, separator string
		into                  func(string) error
	}{
		{"/proc/cpuinfo", "model name", ":", func(s string) error { m.CPU = s; return nil }},
		{"/etc/os-release", "PRETTY_NAME", "=", func(s string) error {
			m.OS = strings.Trim(s, `"`) + ", " +
				m.OS
			return nil
		}},
	} {
		value, err := rig.Field(read.file, read.name, read.separator)
		if err == nil {
			err = read.into(value)
		}
		if err != nil {
			return m, fmt.Errorf("%s: %w", read.file, err)
		}
	}
	memory, err := rig.Memory("MemTotal")
	if err != nil {
		return m, err
	}
	m.MemoryGiB = float64(memory) / (1 << 30)
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return m, err
	}
	m.Kernel = "Linux " + strings.TrimSpace(string(kernel))
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return m, err
	}
	_, err = fmt.Sscan(string(load), &m.Load)
	return m, err
}

// versions returns the versions of all measured systems that are installed.
func versions(ctx context.Context, timerd string) (map[string]string, error) {
	v := map[string]string{"Go": runtime.Version()}
	own, ok := debug.ReadBuildInfo()
	if !ok {
		return nil, fmt.Errorf("the build information of this program is missing: build it with go build")
	}
	names := map[string]string{
		"github.com/nats-io/nats-server/v2": "nats-server", "github.com/hibiken/asynq": "asynq",
		"github.com/riverqueue/river":  "River",
		"github.com/redis/go-redis/v9": "go-redis", "github.com/nats-io/nats.go": "nats.go",
		"github.com/rabbitmq/amqp091-go": "amqp091-go",
	}
	for _, module := range own.Deps {
		if name := names[module.Path]; name != "" {
			v[name] = module.Version
		}
	}
	redis, err := devserver.FindRedis()
	if err != nil {
		return nil, err
	}
	for name, command := range map[string][]string{"timerd": {timerd, "version"}, "Redis": {redis, "--version"}} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w; `make build` builds timerd", strings.Join(command, " "), err)
		}
		v[name] = firstLine(out)
	}
	maps.Copy(v, peer.Versions(ctx))
	return v, nil
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
