// Package examples tests the examples that are not written in Go.
package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/redisserver"
)

const (
	// patience bounds each program that these tests run.
	patience = 2 * time.Minute
	// oldestNode is the oldest major version that examples/node runs on.
	oldestNode = 20
)

// command returns a program that ends with the test at the latest.
func command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	return cmd
}

// output runs a program and returns its lines, with every time in them replaced.
func output(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	times := regexp.MustCompile(`\d{13}|\d{4}-\d\d-\d\dT[\d:.]+Z`)
	return strings.Split(strings.TrimSpace(times.ReplaceAllString(string(out), "<time>")), "\n")
}

func compare(t *testing.T, got []string, want string) {
	t.Helper()
	if text := strings.Join(got, "\n"); text != strings.TrimSpace(want) {
		t.Errorf("it printed\n%s\n\nwant\n%s", text, strings.TrimSpace(want))
	}
}

// redisCLI finds the client that belongs to the server under test, or any.
func redisCLI(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{filepath.Dir(os.Getenv(redisserver.BinaryEnv)), ""} {
		for _, name := range []string{"redis-cli", "valkey-cli"} {
			if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return path
			}
		}
	}
	t.Fatal("neither redis-cli nor valkey-cli found; they come with the server: run `make deps`")
	return ""
}

func TestShell(t *testing.T) {
	cli := redisCLI(t)
	s := exampleenv.Servers(t, "")
	cmd := command(t, "shell", "sh", "timers.sh", s.RedisURL)
	cmd.Env = append(os.Environ(), "REDIS_CLI="+cli)
	compare(t, output(t, cmd), `
- set a timer with a plain SET: the TTL says when, the value is the payload
OK
1 {"order":1}
- extend it: EXPIRE moves the due time and keeps the payload
1
3600
- cancel it: DEL
1
unknown
- set one that is in the schedule as soon as Redis answers, whether a timerd runs or not
due, in unix ms
1 {"order":2}
- set it only if there is none: nothing, because there is one

- extend it: set it again, or EXPIRE; and cancel it, with a definite answer
due, in unix ms
1 {"order":2,"extended":true}
cancelled
unknown
- let one fire: it is not pending any more, and cancelling it comes too late
due, in unix ms
fired`)
}

// needNode skips the test where there is no Node.js that can run the example.
func needNode(t *testing.T) {
	t.Helper()
	version, err := exec.Command("node", "--version").Output()
	if err != nil {
		t.Skipf("NOT TESTED: examples/node, because Node.js is not installed: %v", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		t.Skipf("NOT TESTED: examples/node, because it needs Node.js %d or later and this is %s", oldestNode, version)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skipf("NOT TESTED: examples/node, because npm is not installed: %v", err)
	}
}

// install copies the example and installs its packages there.
func install(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "timers.js"} {
		text, err := os.ReadFile(filepath.Join("node", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := command(t, dir, "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=20000")
	out, err := cmd.CombinedOutput()
	if err != nil && regexp.MustCompile(`ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT`).Match(out) {
		t.Skipf("NOT TESTED: examples/node, because npm does not reach its registry:\n%s", out)
	}
	if err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir
}

func TestNode(t *testing.T) {
	needNode(t)
	dir := install(t)
	s := exampleenv.Servers(t, "shop:node=1h,1h") // Timer-Delay wins over it
	got := output(t, command(t, dir, "node", "timers.js", s.RedisURL, s.NATSURL))
	slices.Sort(got) // on a slow machine the retry may be overtaken
	compare(t, got, `
again in 300ms: shop:node:explicit:2 attempt 1/3 data {"order":2}: 503 Service Unavailable
dead letter: shop:node:hopeless:3 after attempt 1: given up by the consumer: 410 Gone
done: shop:node:explicit:2 attempt 2/3 data {"order":2}
done: shop:node:plain:1 attempt 1/3 data {"order":1}
given up: shop:node:hopeless:3 attempt 1/3 data "text": 410 Gone
timer_cancel: cancelled
timer_get: due,<time>,attempt,1,payload,never,state,pending
timer_set: due at <time>`)
}
