package faults_test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// silent is the row of a timerd that fell silent.
func silent() outage {
	return outage{
		level: diag.Warn, check: diag.CheckSilent,
		text: `1 timerd is silent and did not end in order, so it died, is frozen, or does not reach Redis: \S+ since \d`,
		fix:  `redis-cli ZREM \S+ \S+`,
	}
}

// Without a living timerd, all surfaces report it; doctor too. A killed timerd is reported while another one runs.
func TestOutagesOfTimerds(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	x.play(outage{
		name: "no timerd is alive", level: diag.Fail, check: diag.CheckUnattended,
		text: `no timerd is alive: nothing fires until one runs; the last one, .*, was seen at .*; 1 timer is owed`,
		bring: func(*scene) {
			x.p.Kill()
			x.p = nil
			x.Do("FCALL", "timer_set", 1, "shop:order:timeout:1", "p", "PX", 20)
		},
		end: func(*scene) {
			x.start()
			killed := silent()
			fix, took := x.tells(killed)
			t.Logf("a timerd was killed: told after %v; fix: %s", took, fix)
			x.happened(event.EntryGone, "")
			x.follow(killed, fix)
		},
	})
	x.p.Stop()
}

// A frozen one is missed by the other, and all surfaces report it meanwhile and after it goes on. So they report one
// that does not reach NATS, or has other settings.
func TestOutagesOfOneOfTwoTimerds(t *testing.T) {
	t.Parallel()
	x := newSystemScene(t)
	x.Env["TIMERD_REDIS_URL"] += "?max_retries=1"
	x.Env["TIMERD_SWEEP_INTERVAL"] = "500ms"
	x.start()
	b := x.Start()
	frozen, thawed := silent(), silent()
	frozen.name = "a timerd is frozen"
	thawed.text = `\S+ did not run for \S+ until \S+: the process was frozen, or its machine`
	x.quiet()
	b.Signal(syscall.SIGSTOP)
	_, took := x.tells(frozen)
	t.Logf("%s: told after %v", frozen.name, took)
	x.happened(event.EntryGone, "")
	x.p.Log.Wait(t, system.Patience,
		"a timerd is gone: it died, stalled, or does not reach Redis. The first timerd in rank claims")
	b.Signal(syscall.SIGCONT)
	_, took = x.tells(thawed)
	t.Logf("%s, and goes on: told after %v", frozen.name, took)
	b.Log.Wait(t, system.Patience, "this timerd was stopped, and goes on now")
	if strings.Contains(b.Log.String(), "not ready") {
		t.Errorf("something else is blamed:\n%s", b.Log)
	}
	b.Stop()

	proxy := testenv.NewProxy(t, x.NATS.Addr())
	var older *system.Daemon
	b = x.Start("TIMERD_NATS_URL=nats://" + proxy.Addr())
	x.play(outage{
		name: "a timerd that does not reach NATS", level: diag.Fail, check: status.ReadyJetStream,
		text:   `\S+: NATS at nats://` + proxy.Addr() + ` is away`,
		advice: "look at /readyz and the log of that timerd",
		bring:  func(*scene) { proxy.Cut() },
		end: func(*scene) {
			proxy.Heal()
			b.AwaitReady(true)
			b.Stop()
		},
	}, outage{
		name: "an older timerd that listens to fewer namespaces", level: diag.Warn, check: diag.CheckTimerds,
		text:   `TIMERD_NAMESPACES is "\*" on \S+, "shop" on \S+`,
		advice: "give all timerds of this Redis the same TIMERD_NAMESPACES",
		bring:  func(*scene) { older = x.Start("TIMERD_NAMESPACES=shop") },
		end:    func(*scene) { older.Stop() },
	})
	x.p.Stop()
}
