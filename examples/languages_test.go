// Package examples tests the examples that are not written in Go.
package examples

import (
	"context"
	"fmt"
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
	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	// patience bounds each program that these tests run.
	patience = 2 * time.Minute
	// oldestNode is the oldest major version that examples/node runs on.
	oldestNode = 18
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
	for _, dir := range []string{filepath.Dir(os.Getenv(devserver.BinaryEnv)), ""} {
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

// python returns a Python that has the package redis. The system's own may be hidden by another one. `make deps`
// installs one.
func python(t *testing.T) string {
	t.Helper()
	var last []byte
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		out, err := exec.Command(name, "-c", "import redis").CombinedOutput()
		if err == nil {
			return name
		}
		last = fmt.Appendf(nil, "%v\n%s", err, out)
	}
	t.Fatalf("no Python 3 with the package redis, which `make deps` installs: %s", last)
	return ""
}

func TestPython(t *testing.T) {
	program := python(t)
	s := exampleenv.Servers(t, "")
	compare(t, output(t, command(t, "python", program, "timers.py", s.RedisURL)), `
due in half an hour by the clock of Redis: True
get: {'attempt': 1, 'payload': b'{"total": "99.00"}', 'state': 'pending'}
only if there is none: None
extended: True
cancel: cancelled then unknown
bytes: {'attempt': 3, 'payload': b'\xff\x00', 'state': 'pending', 'late': 30000}
cancel: cancelled
repeating: {'attempt': 1, 'payload': b'', 'state': 'pending', 'repeat': 'every 5m0s', 'occurrence': 1}
cancel: cancelled
refused: timerd: the key is not a timer key: want app:module:type:id with four non-empty parts
it has fired: fired`)
}

// php fails the test where there is no PHP with the extension redis.
func php(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("php", "-r", "exit(extension_loaded('redis') ? 0 : 1);").CombinedOutput()
	if err != nil {
		t.Fatalf("no PHP with the extension redis, which `make deps` installs: %v\n%s", err, out)
	}
	return "php"
}

func TestPHP(t *testing.T) {
	program := php(t)
	s := exampleenv.Servers(t, "")
	compare(t, output(t, command(t, "php", program, "timers.php", s.RedisURL)), `
due in half an hour by the clock of Redis: true
get: {"attempt":1,"payload":"{\"total\":\"99.00\"}","state":"pending"}
only if there is none: null
extended: true
cancel: cancelled then unknown
bytes: ff00
cancel: cancelled
repeating: {"attempt":1,"occurrence":1,"payload":"","repeat":"every 5m0s","state":"pending"}
cancel: cancelled
refused: ERR timerd: the key is not a timer key: want app:module:type:id with four non-empty parts
it has fired: fired`)
}

// needNode fails the test where there is no Node.js that can run the example.
func needNode(t *testing.T) {
	t.Helper()
	version, err := exec.Command("node", "--version").Output()
	if err != nil {
		t.Fatalf("Node.js is not installed, which `make deps` does: %v", err)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), ".")
	if n, err := strconv.Atoi(major); err != nil || n < oldestNode {
		t.Fatalf("examples/node needs Node.js %d or later, this is %s", oldestNode, version)
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Fatalf("npm is not installed, which `make deps` does: %v", err)
	}
}

// install copies a package, by the names of its files and directories, and installs its dependencies.
func install(t *testing.T, from string, names ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range names {
		source, target := filepath.Join(from, name), filepath.Join(dir, name)
		if info, err := os.Stat(source); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			if err := os.CopyFS(target, os.DirFS(source)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(source)
		if err == nil {
			err = os.WriteFile(target, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := command(t, dir, "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund",
		"--fetch-retries=1", "--fetch-timeout=20000")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return dir
}

// installExample installs examples/node.
func installExample(t *testing.T) (dir string) {
	t.Helper()
	return install(t, "node", "package.json", "package-lock.json", "timers.js")
}

// addClient packs timerd's own client for Node.js, and installs it in a directory.
func addClient(t *testing.T, dir string) {
	t.Helper()
	from := install(t, "../clients/typescript", "package.json", "package-lock.json", "tsconfig.json", "README.md",
		"src")
	packed := command(t, from, "npm", "pack", "--silent") // builds it first
	out, err := packed.Output()
	if err != nil {
		t.Fatalf("npm pack: %v\n%s", err, out)
	}
	lines := strings.Fields(string(out))
	unpack := command(t, dir, "npm", "install", "--no-save", "--prefer-offline", "--ignore-scripts", "--no-audit",
		"--no-fund",
		filepath.Join(from, lines[len(lines)-1]))
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
}

func TestNode(t *testing.T) {
	needNode(t)
	dir := installExample(t)
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

// Handlers in Python and PHP are the command of timerd consume: an event that succeeds, one that succeeds at its second
// attempt, and a dead letter. One in a shell answers without ids.
func TestConsumeWithAnyLanguage(t *testing.T) {
	program, phpProgram := python(t), php(t)
	s := exampleenv.Servers(t, "*=100ms")
	timerd := exampleenv.Timerd(t)
	for id, payload := range map[string]string{"1": `{"total":5}`, "2": `{"total":5,"flaky":true}`,
		"3": `{"total":-5}`} {
		if err := s.Redis.FCall(t.Context(), "timer_set", []string{"shop:order:timeout:" + id}, payload, "PX",
			100).Err(); err != nil {
			t.Fatal(err)
		}
	}
	consume := func(dir string, args ...string) *exec.Cmd {
		cmd := command(t, dir, timerd, append([]string{"consume", "shop:order:timeout"}, args...)...)
		cmd.Env = append(os.Environ(), "TIMERD_NATS_URL="+s.NATSURL)
		return cmd
	}
	prints(t, consume("python", "--", program, "cancel_order.py"), `^order 2 is cancelled, attempt 2$`)
	prints(t, consume("php", "--durable", "php", "--", phpProgram, "handler.php"), `^order 2 is cancelled, attempt 2$`)
	prints(t, consume("shell", "--durable", "shell", "--", "sh", "consume.sh"), `^order 3 is cancelled$`)
	err := devserver.Until(t.Context(), patience, func() error {
		letters := command(t, ".", timerd, "dead", "ls")
		letters.Env = append(os.Environ(), "TIMERD_NATS_URL="+s.NATSURL)
		if text := strings.Join(output(t, letters), "\n"); !strings.Contains(text, "shop:order:timeout:3") ||
			!strings.Contains(text, "a negative total") {
			return fmt.Errorf("dead letters:\n%s\nwant that of order 3", text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
