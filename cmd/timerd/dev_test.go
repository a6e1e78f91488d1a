package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// devArgs returns the command line of dev on the Redis that the tests are to run against.
func devArgs(args ...string) []string {
	if server := os.Getenv(devserver.BinaryEnv); server != "" {
		args = append([]string{"--redis-server", server}, args...)
	}
	return append([]string{"dev"}, args...)
}

// devPort returns the port of Redis that dev's instructions name.
func devPort(t *testing.T, said string) string {
	t.Helper()
	found := regexp.MustCompile(`-cli -p (\d+) SET`).FindStringSubmatch(said)
	if found == nil {
		t.Fatalf("no port of Redis in:\n%s", said)
	}
	return found[1]
}

// portCloses waits until nobody listens on a port any more.
func portCloses(t *testing.T, port string) {
	t.Helper()
	testenv.Eventually(t, patience, func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err != nil {
			return true
		}
		_ = conn.Close()
		return false
	}, "the end of the server on port "+port)
}

// slowAnswers are the log lines about servers that a busy machine holds up.
var slowAnswers = regexp.MustCompile(
	`(?m)^.* level=WARN .*(context deadline exceeded|i/o timeout|no heartbeat received).*\n`)

// timerd dev fires its samples with servers of its own, whatever the environment says, and leaves nothing behind.
func TestDev(t *testing.T) {
	testenv.NoLeaks(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": "redis://127.0.0.1:1", "TIMERD_NAMESPACES": "nobody",
		"TIMERD_RETRY": "*=1m,2m"})
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, devArgs(), strings.NewReader(""), &out, &errs) }()
	// The trigger between the two is a matter of load: Redis may be first to notice.
	fires := func(key, payload string) {
		t.Helper()
		line := regexp.MustCompile(regexp.QuoteMeta(key) + ` +1/3  [a-z]+ +` + regexp.QuoteMeta(payload) + `\n`)
		testenv.Eventually(t, patience, func() bool { return line.MatchString(out.String()) }, key+" to be printed")
	}
	defer func() {
		if t.Failed() {
			t.Logf("printed:\n%s\nlogged:\n%s", &out, &errs)
		}
	}()
	fires("dev:sample:plain:1", `{"set":"with SET"}`)
	fires("dev:sample:explicit:2", `{"set":"with timer_set"}`)
	fires("dev:sample:hash:3", `{"set":"with HSET and EXPIRE"}`)
	if !strings.Contains(out.String(), "one of them\nbecomes a dead letter on purpose") {
		t.Error("it does not tell of the dead letter")
	}
	port := devPort(t, out.String())
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	if err := rdb.Set(t.Context(), "shop:order:timeout:42", "mine", 3*time.Second).Err(); err != nil {
		t.Fatal(err)
	}
	if err := rdb.Close(); err != nil {
		t.Error(err)
	}
	fires("shop:order:timeout:42", "mine")
	// Its commands for another terminal work there.
	settings := regexp.MustCompile(`(?m)^  export (TIMERD_[A-Z_]+)='?([^'\n]+)'?$`).FindAllStringSubmatch(out.String(),
		-1)
	var names []string
	for _, s := range settings {
		names = append(names, s[1])
		t.Setenv(s[1], s[2])
	}
	if want := []string{"TIMERD_NAMESPACES", "TIMERD_REDIS_URL", "TIMERD_NATS_URL"}; !slices.Equal(names, want) {
		t.Errorf("it tells the settings %q, want %q", names, want)
	}
	for _, command := range []string{"watch", "ls", "status", "doctor"} {
		if !strings.Contains(out.String(), "\n  "+os.Args[0]+" "+command+"\n") {
			t.Errorf("it does not tell of %s", command)
		}
	}
	if code, out, errs := timerd(t, "", "watch", "dev", "--since", "1h", "--count", "1"); code != exitOK ||
		!strings.Contains(out, "dev:sample:plain:1 ") {
		t.Errorf("watch as it is told: %d %s%s", code, out, errs)
	}

	cancel()
	if code := <-ended; code != exitOK || slowAnswers.ReplaceAllString(errs.String(), "") != "" {
		t.Errorf("exit code %d\n%s", code, &errs)
	}
	portCloses(t, port)
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDevEndsWithItsRedis(t *testing.T) {
	testenv.NoLeaks(t)
	testenv.SetVariables(t, nil)
	t.Setenv("TMPDIR", t.TempDir())
	out, in := io.Pipe()
	var errs testenv.Output
	ended := make(chan int, 1)
	go func() {
		ended <- run(t.Context(), devArgs("--no-samples"), strings.NewReader(""), in, &errs)
		_ = in.Close()
	}()
	var said strings.Builder
	for !strings.Contains(said.String(), "Each firing") {
		buf := make([]byte, 1000)
		n, err := out.Read(buf)
		if err != nil {
			t.Fatalf("%v\n%s", err, &errs)
		}
		said.Write(buf[:n])
	}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + devPort(t, said.String()), MaxRetries: -1})
	for _, pattern := range []string{"dev:*", "demo:*"} {
		if found, err := rdb.Keys(t.Context(), pattern).Result(); err != nil || len(found) > 0 ||
			strings.Contains(said.String(), "samples") {
			t.Errorf("--no-samples: %q, %v\n%s", found, err, said.String())
		}
	}
	rdb.ShutdownNoSave(t.Context())
	if err := rdb.Close(); err != nil {
		t.Error(err)
	}
	if code := <-ended; code != exitFailed || !strings.Contains(errs.String(), "redis-server has ended, exit code 0") {
		t.Errorf("exit code %d\n%s", code, &errs)
	}
}

// Dev runs the given program, and names the installed client.
func TestDevPicksItsRedis(t *testing.T) {
	testenv.NoLeaks(t)
	testenv.SetVariables(t, nil)
	t.Setenv("TMPDIR", t.TempDir())
	program, err := exec.LookPath(testenv.Redis(t).Program())
	if err != nil {
		t.Fatal(err)
	}
	there := t.TempDir()
	server := filepath.Join(there, "valkey-server")
	for _, path := range []string{server, filepath.Join(there, "valkey-cli")} {
		if err := os.Symlink(program, path); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		path string
		args []string
	}{
		{there, []string{"dev", "--no-samples"}}, // only Valkey is in PATH
		{there + ":" + os.Getenv("PATH"), []string{"dev", "--no-samples", "--redis-server", server}},
	} {
		t.Setenv("PATH", test.path)
		ctx, cancel := context.WithCancel(t.Context())
		var out, errs testenv.Output
		ended := make(chan int, 1)
		go func() { ended <- run(ctx, test.args, strings.NewReader(""), &out, &errs) }()
		testenv.Eventually(t, patience, func() bool { return strings.Contains(out.String(), "Each firing") },
			"the instructions")
		if said := out.String(); !strings.Contains(said, "  valkey-cli -p ") || strings.Contains(said, "redis-cli") {
			t.Errorf("timerd %s says\n%s", strings.Join(test.args, " "), said)
		}
		cancel()
		if code := <-ended; code != exitOK {
			t.Errorf("exit code %d\n%s", code, &errs)
		}
	}
	missing := filepath.Join(there, "none")
	if code, _, errs := timerd(t, "", "dev", "--redis-server", missing); code != exitFailed ||
		!strings.Contains(errs, missing) {
		t.Errorf("a program that is not there: exit code %d\n%s", code, errs)
	}
}

func TestDevReportsFaults(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_RETRY": "soon"})
	t.Setenv("TMPDIR", t.TempDir())
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args, want string
		code       int
	}{
		{"dev --redis-port 65536", "--redis-port=65536: want a port", exitUsage},
		{"dev --http-addr 80", "--http-addr=80: want host:port", exitUsage},
		{"dev now", "want no arguments, got \"now\"", exitUsage},
		{"dev", "TIMERD_RETRY", exitUsage},
	} {
		if code, _, errs := timerd(t, "", strings.Fields(test.args)...); code != test.code ||
			!strings.Contains(errs, test.want) {
			t.Errorf("timerd %s: exit code %d, want %d and %q\n%s", test.args, code, test.code, test.want, errs)
		}
	}
	testenv.SetVariables(t, nil)
	for args, want := range map[string]string{
		"dev --redis-port " + port: "--redis-port=" + port + " is in use",
		"dev --nats-port " + port:  "--nats-port=" + port + " is in use",
	} {
		if code, out, errs := timerd(t, "", strings.Fields(args)...); code != exitFailed || out != "" ||
			!strings.Contains(errs, want) {
			t.Errorf("timerd %s: exit code %d, want %q\n%s%s", args, code, want, out, errs)
		}
	}
	t.Setenv("TMPDIR", "/nonexistent")
	if code, _, errs := timerd(t, "", "dev"); code != exitFailed || !strings.Contains(errs, "TMPDIR") {
		t.Errorf("without a place for its files: exit code %d\n%s", code, errs)
	}
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	if code, _, errs := timerd(t, "", "dev"); code != exitFailed ||
		!strings.Contains(errs, "apt-get install redis-server") {
		t.Errorf("without redis-server: exit code %d\n%s", code, errs)
	}
}

// Another timerd at the address, ready as it may be, is not taken for this one.
func TestDevTellsATakenHTTPAddress(t *testing.T) {
	testenv.NoLeaks(t)
	testenv.SetVariables(t, nil)
	t.Setenv("TMPDIR", t.TempDir())
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("asked for %s", r.URL)
		w.WriteHeader(http.StatusOK)
	}))
	defer other.Close()
	addr := strings.TrimPrefix(other.URL, "http://")
	if code, out, errs := timerd(t, "", "dev", "--http-addr", addr); code != exitFailed || out != "" ||
		!strings.Contains(errs, "--http-addr="+addr+": listen") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// Whatever it takes to start, dev keeps off a Redis that is not its own.
func TestDevLeavesAnotherRedisAlone(t *testing.T) {
	testenv.NoLeaks(t)
	testenv.SetVariables(t, nil)
	t.Setenv("TMPDIR", t.TempDir())
	other := testenv.Redis(t)
	_, port, err := net.SplitHostPort(other.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := timerd(t, "", "dev", "--redis-port", port); code != exitFailed ||
		!strings.Contains(errs, "--redis-port="+port+" is in use") {
		t.Errorf("exit code %d\n%s", code, errs)
	}

	stats, err := other.Client().Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		name, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "cmdstat_"), ":")
		// CLIENT is the introduction of this test's asking client.
		if !slices.Contains([]string{"", "# Commandstats", "ping", "hello", "info", "client|setinfo",
			"client|maint_notifications"}, name) {
			t.Errorf("the other Redis was told %s", line)
		}
	}
}
