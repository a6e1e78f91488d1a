package faults_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

const unattended = "no timerd is alive: nothing fires until one runs"

// The outage of docs/runbook.md, minute by minute: the output of the commands while NATS, Redis or timerd is away, and
// no problem once it is back.
func TestStatusInOutages(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.StatusSays(0, "ok: nothing is wrong", "\ntimers  0 pending, 0 held, 0 owed, 0 firing\n", "\n  TIMERS ",
		" 1 of 1\n", "\n  "+s.Redis.Addr()+" ")

	// NATS is away.
	s.NATS.Stop()
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:1", "1", "PX", 100)
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:2", "2", "PX", 3600_000)
	out := s.StatusSays(1, "fail  the state of the streams is unknown, ",
		"fix: start nats-server, or correct TIMERD_NATS_URL",
		"\ntimers  1 pending, 0 held, 1 owed, 0 firing\n        owed for longest: shop:order:timeout:1, for ")
	if strings.Count(out, "fail  ") != 1 {
		t.Errorf("more is wrong than the cause:\n%s", out)
	}
	p.ReadySays(http.StatusServiceUnavailable, "redis: ok", "jetstream: failed: ", "retry consumer: failed: ")
	if out := s.OK("get", "shop:order:timeout:1"); !strings.Contains(out, "\nstate    owed\n") {
		// and is silent on standard error: timerd is alive
		t.Errorf("get of an owed timer:\n%s", out)
	}
	if out := s.OK("ls", "--state", "owed,firing", "--json"); strings.Count(out, "\n") != 1 ||
		!strings.Contains(out, `"key":"shop:order:timeout:1","state":"owed"`) {
		t.Errorf("ls of what waits:\n%s", out)
	}
	if out := s.OK("ls", "--state", "pending", "--json"); strings.Count(out, "\n") != 1 ||
		!strings.Contains(out, `"key":"shop:order:timeout:2","state":"pending"`) {
		t.Errorf("ls of pending timers:\n%s", out)
	}
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:5", "5", "PX", 50)
	testenv.Eventually(t, system.Patience, func() bool {
		return strings.Contains(s.OK("get", "shop:order:timeout:5"),
			"state    owed")
	}, "another one to be owed")
	if out := s.OKWithoutNATS("cancel", "shop:order:timeout:5"); out != "cancelled\n" {
		t.Errorf("cancel of an owed timer: %s", out)
	}
	p.Measures(false, "timerd_dead_letters .*")
	s.NATS.Start()
	s.Expect(c, "shop:order:timeout:1=1")
	s.StatusSays(0, "ok: nothing is wrong", "\ntimers  1 pending, 0 held, 0 owed, 0 firing\n")

	// Redis is away.
	s.Redis.Stop()
	s.StatusSays(1, "fail  the state of the timers and timerds is unknown: Redis at ",
		"fix: start Redis, or correct TIMERD_REDIS_URL\n", "\n  TIMERS ")
	s.Redis.Start()
	p.AwaitReady(true)
	s.StatusSays(0, "ok: nothing is wrong", "\ntimers  1 pending, 0 held, 0 owed, 0 firing\n")

	// timerd is away.
	p.Kill()
	s.StatusSays(1, "fail  "+unattended+"; the last one, ", "      fix: start timerd; ", "\ntimers  1 pending, ")
	for _, args := range [][]string{{"set", "shop:order:timeout:3", "1h"}, {"get", "shop:order:timeout:3"}, {"ls"}} {
		code, out, errs := s.Run("", args...)
		if code != 0 || !strings.Contains(out, "shop:order:timeout:3") ||
			!strings.HasPrefix(errs, "timerd: warning: "+unattended+"; the last one, ") {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, errs)
		}
	}
	if code, out, errs := s.Run("", "doctor"); code != 1 || !strings.Contains(out,
		"fail  unattended        "+unattended) || !strings.Contains(errs, unattended) {
		t.Errorf("doctor:\n%s%s", out, errs)
	}
	p = s.Start()
	s.StatusSays(0, "warn  1 timerd is silent and did not end in order",
		"      fix: look at its host and its log, and start it again; ")
	s.Do("DEL", keys.Single.Silent())
	s.StatusSays(0, "ok: nothing is wrong")

	// The stream is full.
	stream, err := s.JS.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = 1, jetstream.DiscardNew
	if _, err := s.JS.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:4", "4", "PX", 100)
	s.StatusSays(1, "fail  TIMERS: it is full: ", " messages of at most 1: timers wait in Redis",
		"fix: raise its limit, which loses nothing: nats -s nats://"+s.NATS.Addr()+" stream edit TIMERS --max-msgs=3 "+
			"--force", ", 1 owed, ")
	p.ReadySays(http.StatusServiceUnavailable, "jetstream: failed: ")
	if code, out, _ := s.Run("", "doctor"); code != 1 || !strings.Contains(out,
		"fail  streams           TIMERS: it is full: ") {
		t.Errorf("doctor: %d\n%s", code, out)
	}
	config.MaxMsgs = -1
	if _, err := s.JS.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.Expect(c, "shop:order:timeout:1=1", "shop:order:timeout:4=4")
	s.StatusSays(0, "ok: nothing is wrong", "\ntimers  2 pending, 0 held, 0 owed, 0 firing\n")
	p.Stop()
	s.StatusSays(1, "fail  "+unattended+"\n")
}

// Timerds with different settings show in the log, once each, in the metrics, in status and in doctor; so do different
// versions.
func TestDifferentSettingsAreReported(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_SWEEP_INTERVAL"] = "5s" // so that nobody on a slow machine counts as dead
	a := s.Start("TIMERD_LEASE=2s")
	b := s.Start("TIMERD_LEASE=3s")
	const told = "the timerds of this Redis have different settings"
	a.Measures(true, `timerd_config_drift\{setting="TIMERD_LEASE"\} 1`)
	a.Measures(true, `timerd_config_drift\{setting="TIMERD_RETRY"\} 0`)
	b.Measures(true, `timerd_config_drift\{setting="TIMERD_LEASE"\} 1`)
	a.Measures(true, `timerd_instances_alive\{version=".+"\} 2`)
	out := s.StatusSays(0, `warn  TIMERD_LEASE is "2s" on `, `"3s" on `,
		"fix: give all timerds of this Redis the same TIMERD_LEASE")
	if strings.Count(out, "warn  ") != 1 {
		t.Errorf("more is wrong:\n%s", out)
	}
	if _, out, _ := s.Run("", "doctor"); !strings.Contains(out, `warn  timerds           TIMERD_LEASE is "2s" on `) {
		t.Errorf("doctor:\n%s", out)
	}
	b.Stop()
	a.Log.Wait(t, system.Patience, "have the same settings again")
	a.Measures(true, `timerd_config_drift\{setting="TIMERD_LEASE"\} 0`)
	for _, p := range []*system.Daemon{a, b} {
		if n := strings.Count(p.Log.String(), told); n != 1 {
			t.Errorf("told %d times, want once:\n%s", n, p.Log)
		}
	}

	// A timerd of another version.
	ctx, cancel := context.WithCancel(t.Context())
	var beats sync.WaitGroup
	defer beats.Wait()
	defer cancel()
	beats.Go(func() {
		for ctx.Err() == nil {
			if now, err := s.RDB.Time(ctx).Result(); err == nil {
				s.RDB.ZAdd(ctx, keys.Single.Members(), redis.Z{Score: float64(now.UnixMilli()), Member: "older-1-X"})
				s.RDB.HSet(ctx, keys.Single.About(), "older-1-X", `{"version":"v0"}`)
			}
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	a.Log.Wait(t, system.Patience, "timerds of different versions serve this Redis")
	s.StatusSays(0, "warn  timerds of different versions serve this Redis, as in a rolling update:", "v0 on older-1-X")
	a.Stop()
}

// Calls of the library, dead letters of any origin, and firings by namespace are in the metrics; an audit's counts by
// namespace are in timerd status.
func TestMetricsOfCallsLettersAndNamespaces(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start("TIMERD_NAMESPACES=shop,pay:a")
	c := s.Collect()
	p.Measures(true, `timerd_instances_alive\{.*\} 1`)
	p.Measures(true, "timerd_dead_letters 0")
	const n = 203
	for i := range n {
		key := fmt.Sprint("shop:order:timeout:", i)
		s.Do("FCALL", "timer_set", 1, key, "p", "PX", 3600_000)
		s.Do("FCALL", "timer_cancel", 1, key)
	}
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:1", "p", "PX", 100)
	s.Do("FCALL", "timer_set", 1, "pay:other:x:1", "p", "PX", 100)
	s.Do("FCALL", "timer_set", 1, "pay:a:x:1", "p", "PX", 3600_000)
	s.Expect(c, "shop:order:timeout:1=p", "pay:other:x:1=p")
	if _, err := s.JS.Publish(t.Context(), "timers.dead.shop.order.timeout", []byte("given up")); err != nil {
		t.Fatal(err)
	}
	p.Measures(true, fmt.Sprintf(`timerd_library_calls_total\{function="timer_set"\} %d`, n+3))
	p.Measures(true, fmt.Sprintf(`timerd_library_calls_total\{function="timer_cancel"\} %d`, n))
	p.Measures(true, "timerd_dead_letters 1")
	p.Measures(true, `timerd_lateness_seconds_count\{namespace="shop"\} 1`)
	p.Measures(true, `timerd_lateness_seconds_count\{namespace="pay:a"\} 0`)
	p.Measures(true, `timerd_lateness_seconds_count\{namespace="other"\} 1`)
	p.Measures(true, `timerd_fired_total\{namespace="shop",trigger="(deadline|expired|sweep)"\} 1`)
	s.StatusSays(0, "warn  dead letters in TIMERS_DEAD: 1")
	p.Stop()

	p = s.Start("TIMERD_NAMESPACES=shop,pay:a") // its first audit counts
	var report status.Report
	testenv.Eventually(t, system.Patience, func() error {
		_, out, _ := s.Run("", "status", "--json")
		report = status.Report{}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			return err
		}
		if got, want := fmt.Sprint(report.Redis.Namespaces),
			"[{shop 0 0 0 0} {pay:a 1 0 0 0} {other 0 0 0 0}]"; got != want {
			return fmt.Errorf("counted %s, want %s", got, want)
		}
		if node := report.Redis.Nodes[0]; node.LastAudit == nil || len(node.Gaps) != 1 {
			return fmt.Errorf("%+v", node)
		}
		return nil
	}, "what the audit counted")
	s.StatusSays(0, "by namespace, as counted by the audit ", "\n  pay:a      1        0     0     0\n")
	p.Stop()
}

// A server that hangs keeps nobody from learning of the other.
func TestStatusWhileAServerHangs(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	hang := func(name, addr, scheme string, texts ...string) {
		proxy := testenv.NewProxy(t, addr)
		proxy.Blackhole()
		env := maps.Clone(s.Env)
		env[name] = scheme + proxy.Addr()
		code, out, errs := with(s, env).Run("", "status")
		if code != 1 {
			t.Errorf("%s hangs: exit code %d\n%s", name, code, errs)
		}
		for _, text := range append(texts, proxy.Addr()) {
			if !strings.Contains(out, text) {
				t.Errorf("%s hangs, and there is no %q in\n%s", name, text, out)
			}
		}
	}
	hang("TIMERD_REDIS_URL", s.Redis.Addr(), "redis://", "fail  the state of the timers and timerds is unknown",
		": it accepts", "fix: look at its process, on its machine: ps ", "\n  TIMERS ")
	hang("TIMERD_NATS_URL", s.NATS.Addr(), "nats://", "fail  the state of the streams is unknown", ": it accepts",
		"fix: look at its process, on its machine: ps ", "\n  NODE ")
}
