package devserver_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// A server that has the port already is never taken for the started one, and is asked only for its process id.
func TestStartLeavesAnotherServerAlone(t *testing.T) {
	t.Parallel()
	other := testenv.Redis(t)
	temp := t.TempDir()
	elsewhere := []devserver.RedisOption{devserver.Port(other.Port()), devserver.Directory(temp)}

	_, err := devserver.StartRedis(t.Context(), append(elsewhere, devserver.Binary(os.Getenv(devserver.BinaryEnv)))...)
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a port that is taken: %v", err)
	}

	// The other server answers before the one that was started has tried to take the port.
	slow := filepath.Join(t.TempDir(), "slow-redis-server")
	if err := os.WriteFile(slow, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := devserver.StartRedis(ctx, append(elsewhere, devserver.Binary(slow))...); err == nil ||
		!errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another server was taken for the one that was started: %v", err)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}

	stats, err := other.Client().Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":")
		// HELLO and CLIENT are the introduction of this test's asking client.
		if !slices.Contains([]string{"", "# Commandstats", "info", "hello", "client|setinfo",
			"client|maint_notifications"}, name) {
			t.Errorf("the other server was told %s", line)
		}
	}
}
