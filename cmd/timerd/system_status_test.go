package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// statusSays waits until timerd status has an exit code and says all of the texts. It returns what it says.
func statusSays(t *testing.T, want int, texts ...string) string {
	t.Helper()
	wrapped := regexp.MustCompile("\n {6,}")
	var out string
	testenv.Eventually(t, patience, func() error {
		code, said, errs := timerd(t, "", "status")
		out = said
		whole := wrapped.ReplaceAllString(said, " ")
		for _, text := range texts {
			if code != want || errs != "" || !strings.Contains(said, text) && !strings.Contains(whole, text) {
				return fmt.Errorf("exit code %d, want %d and %q:\n%s%s", code, want, text, said, errs)
			}
		}
		return nil
	}, "timerd status")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > helpWidth && !strings.Contains(line, host) {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	return out
}

// measures waits until the metrics match a pattern, line by line, or do not.
func (p *daemon) measures(want bool, pattern string) {
	p.t.Helper()
	line := regexp.MustCompile("(?m)^" + pattern + "$")
	testenv.Eventually(p.t, patience, func() error {
		_, body, err := p.get("/metrics")
		if err == nil && line.MatchString(body) != want {
			err = fmt.Errorf("%q in the metrics: %v", pattern, !want)
		}
		return err
	}, "the metrics")
}

const unattended = "no timerd is alive: nothing fires until one runs"

// The outage of docs/operations.md, minute by minute: what the commands say while NATS, Redis or timerd is away, and that
// they say nothing any more when it is back.
func TestStatusInOutages(t *testing.T) {
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	testenv.SetVariables(t, s.env)
	statusSays(t, exitOK, "ok: nothing is wrong", "\ntimers  0 pending, 0 held, 0 owed, 0 firing\n", "\n  TIMERS ", " 1 of 1\n", "\n  "+s.redis.Addr()+" ")

	// NATS is away.
	s.nats.Stop()
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:1", "1", "PX", 100)
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:2", "2", "PX", 3600_000)
	out := statusSays(t, exitFailed, "fail  1 timer is owed; the oldest, shop:order:timeout:1, was due at ", "fix: mend what is said above; none is lost, ",
		"fail  nothing can be told of the streams, ", "fix: start nats-server, or correct TIMERD_NATS_URL",
		"\ntimers  1 pending, 0 held, 1 owed, 0 firing\n        owed for longest: shop:order:timeout:1, for ")
	if !strings.HasPrefix(out, "fail  nothing can be told of the streams") {
		t.Errorf("the cause of what is wrong does not come first:\n%s", out)
	}
	p.says(http.StatusServiceUnavailable, "redis: ok", "jetstream: failed: ", "retry consumer: failed: ")
	if out := ok(t, "get", "shop:order:timeout:1"); !strings.Contains(out, "\nstate    owed\n") { // and is silent on standard error: timerd is alive
		t.Errorf("get of an owed timer:\n%s", out)
	}
	if out := ok(t, "ls", "--state", "owed,firing", "--json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"key":"shop:order:timeout:1","state":"owed"`) {
		t.Errorf("ls of what waits:\n%s", out)
	}
	if out := ok(t, "ls", "--state", "pending", "--json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"key":"shop:order:timeout:2","state":"pending"`) {
		t.Errorf("ls of what is pending:\n%s", out)
	}
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:5", "5", "PX", 50)
	testenv.Eventually(t, patience, func() bool { return strings.Contains(ok(t, "get", "shop:order:timeout:5"), "state    owed") }, "another one to be owed")
	if out := ok(t, "cancel", "shop:order:timeout:5"); out != "cancelled\n" {
		t.Errorf("cancel of an owed timer: %s", out)
	}
	p.measures(false, "timerd_dead_letters .*")
	s.nats.Start()
	s.expect(c, "shop:order:timeout:1=1")
	statusSays(t, exitOK, "ok: nothing is wrong", "\ntimers  1 pending, 0 held, 0 owed, 0 firing\n")

	// Redis is away.
	s.redis.Stop()
	statusSays(t, exitFailed, "fail  nothing can be told of the timers and timerds: Redis at ", "fix: start Redis, or correct TIMERD_REDIS_URL\n", "\n  TIMERS ")
	s.redis.Start()
	p.awaitReady(true)
	statusSays(t, exitOK, "ok: nothing is wrong", "\ntimers  1 pending, 0 held, 0 owed, 0 firing\n")

	// timerd is away.
	p.kill()
	statusSays(t, exitFailed, "fail  "+unattended+"; the last one, ", "      fix: start timerd; ", "\ntimers  1 pending, ")
	for _, args := range [][]string{{"set", "shop:order:timeout:3", "1h"}, {"get", "shop:order:timeout:3"}, {"ls"}} {
		code, out, errs := timerd(t, "", args...)
		if code != exitOK || !strings.Contains(out, "shop:order:timeout:3") || !strings.HasPrefix(errs, "timerd: warning: "+unattended+"; the last one, ") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, errs)
		}
	}
	if _, out, errs := timerd(t, "", "doctor"); !strings.Contains(out, "ok    unattended        "+unattended) || !strings.Contains(errs, unattended) {
		t.Errorf("doctor:\n%s%s", out, errs)
	}
	p = s.start()
	statusSays(t, exitOK, "ok: nothing is wrong")

	// The stream is full.
	stream, err := s.js.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = 1, jetstream.DiscardNew
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:4", "4", "PX", 100)
	statusSays(t, exitFailed, "fail  TIMERS is full and takes no more: timers wait in Redis", "fail  1 timer is owed; the oldest, shop:order:timeout:4, ", "look at /readyz")
	p.says(http.StatusServiceUnavailable, "jetstream: failed: ")
	if code, out, _ := timerd(t, "", "doctor"); code != exitFailed || !strings.Contains(out, "fail  streams           TIMERS: it is full: ") {
		t.Errorf("doctor: %d\n%s", code, out)
	}
	config.MaxMsgs = -1
	if _, err := s.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.expect(c, "shop:order:timeout:1=1", "shop:order:timeout:4=4")
	statusSays(t, exitOK, "ok: nothing is wrong", "\ntimers  2 pending, 0 held, 0 owed, 0 firing\n")
	p.stop()
	statusSays(t, exitFailed, "fail  "+unattended+"\n")
}

// Timerds with different settings are told of in the log, once each, in the metrics, by status and by doctor; those of
// different versions too.
func TestDriftIsTold(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_SWEEP_INTERVAL"] = "5s" // so that nobody on a slow machine counts as dead
	a := s.start("TIMERD_LEASE=2s")
	b := s.start("TIMERD_LEASE=3s")
	testenv.SetVariables(t, s.env)
	const told = "the timerds of this Redis have different settings"
	a.measures(true, `timerd_config_drift\{setting="TIMERD_LEASE"\} 1`)
	a.measures(true, `timerd_config_drift\{setting="TIMERD_RETRY"\} 0`)
	b.measures(true, `timerd_config_drift\{setting="TIMERD_LEASE"\} 1`)
	a.measures(true, `timerd_instances_alive\{version=".+"\} 2`)
	out := statusSays(t, exitOK, `warn  TIMERD_LEASE is "2s" on `, `"3s" on `, "fix: give all timerds of this Redis the same TIMERD_LEASE")
	if strings.Count(out, "warn  ") != 1 {
		t.Errorf("more is wrong:\n%s", out)
	}
	if _, out, _ := timerd(t, "", "doctor"); !strings.Contains(out, `warn  timerds           TIMERD_LEASE is "2s" on `) {
		t.Errorf("doctor:\n%s", out)
	}
	b.stop()
	a.log.Wait(t, patience, "have the same settings again")
	a.measures(true, `timerd_config_drift\{setting="TIMERD_LEASE"\} 0`)
	for _, p := range []*daemon{a, b} {
		if n := strings.Count(p.log.String(), told); n != 1 {
			t.Errorf("told %d times, want once:\n%s", n, p.log)
		}
	}

	// An earlier version says nothing of itself.
	s.do("ZADD", keys.Single.Members(), s.now()+3600_000, "older-1-X")
	a.log.Wait(t, patience, "timerds of different versions serve this Redis")
	statusSays(t, exitOK, "warn  timerds of different versions serve this Redis, as in a rolling update:", "an earlier version on older-1-X")
	a.stop()
}

// Calls of the library, dead letters of whoever gave up, and firings by namespace are in the metrics; what an audit counted
// by namespace is in timerd status.
func TestMetricsOfCallsLettersAndNamespaces(t *testing.T) {
	s := newSystem(t)
	p := s.start("TIMERD_NAMESPACES=shop,pay:a")
	c := s.collect()
	testenv.SetVariables(t, s.env)
	p.measures(true, `timerd_instances_alive\{.*\} 1`)
	p.measures(true, "timerd_dead_letters 0")
	const n = 203
	for i := range n {
		key := fmt.Sprint("shop:order:timeout:", i)
		s.do("FCALL", "timer_set", 1, key, "p", "PX", 3600_000)
		s.do("FCALL", "timer_cancel", 1, key)
	}
	s.do("FCALL", "timer_set", 1, "shop:order:timeout:1", "p", "PX", 100)
	s.do("FCALL", "timer_set", 1, "pay:other:x:1", "p", "PX", 100)
	s.do("FCALL", "timer_set", 1, "pay:a:x:1", "p", "PX", 3600_000)
	s.expect(c, "shop:order:timeout:1=p", "pay:other:x:1=p")
	if _, err := s.js.Publish(t.Context(), "timers.dead.shop.order.timeout", []byte("given up")); err != nil {
		t.Fatal(err)
	}
	p.measures(true, fmt.Sprintf(`timerd_library_calls_total\{function="timer_set"\} %d`, n+3))
	p.measures(true, fmt.Sprintf(`timerd_library_calls_total\{function="timer_cancel"\} %d`, n))
	p.measures(true, "timerd_dead_letters 1")
	p.measures(true, `timerd_lateness_seconds_count\{namespace="shop"\} 1`)
	p.measures(true, `timerd_lateness_seconds_count\{namespace="pay:a"\} 0`)
	p.measures(true, `timerd_lateness_seconds_count\{namespace="other"\} 1`)
	p.measures(true, `timerd_fired_total\{namespace="shop",trigger="(deadline|expired|sweep)"\} 1`)
	statusSays(t, exitOK, "warn  dead letters in TIMERS_DEAD: 1")
	p.stop()

	p = s.start("TIMERD_NAMESPACES=shop,pay:a") // its first audit counts
	var report status.Report
	testenv.Eventually(t, patience, func() error {
		_, out, _ := timerd(t, "", "status", "--json")
		report = status.Report{}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			return err
		}
		if got, want := fmt.Sprint(report.Redis.Namespaces), "[{shop 0 0 0 0} {pay:a 1 0 0 0} {other 0 0 0 0}]"; got != want {
			return fmt.Errorf("counted %s, want %s", got, want)
		}
		if node := report.Redis.Nodes[0]; node.LastAudit == nil || len(node.Gaps) != 1 {
			return fmt.Errorf("%+v", node)
		}
		return nil
	}, "what the audit counted")
	statusSays(t, exitOK, "by namespace, as counted by the audit ", "\n  pay:a      1        0     0     0\n")
	p.stop()
}

// A server that hangs keeps nobody from learning of the other.
func TestStatusWhileAServerHangs(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.start()
	hang := func(name, addr, scheme string, texts ...string) {
		proxy := testenv.NewProxy(t, addr)
		proxy.Blackhole()
		cmd := exec.Command(os.Args[0], "status")
		cmd.Env = []string{mainVariable + "=1", "TIMERD_REDIS_URL=" + s.redis.URL(0), "TIMERD_NATS_URL=" + s.nats.URL(), name + "=" + scheme + proxy.Addr()}
		out, err := cmd.Output()
		if err == nil || cmd.ProcessState.ExitCode() != exitFailed {
			t.Errorf("%s hangs: %v", name, err)
		}
		for _, text := range append(texts, proxy.Addr()) {
			if !strings.Contains(string(out), text) {
				t.Errorf("%s hangs, and there is no %q in\n%s", name, text, out)
			}
		}
	}
	hang("TIMERD_REDIS_URL", s.redis.Addr(), "redis://", "fail  nothing can be told of the timers", "fix: start Redis", "\n  TIMERS ")
	hang("TIMERD_NATS_URL", s.nats.Addr(), "nats://", "fail  nothing can be told of the streams", "fix: start nats-server", "\n  NODE ")
}
