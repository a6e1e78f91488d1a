package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// secret is to show nowhere.
const secret = "s3cr3t"

const unattended = "no timerd is alive: nothing fires until one runs"

// doctor finds nothing wrong with sound servers, and each fault of a setting or server with its fix and exit code.
func TestDoctor(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := testenv.Redis(t), testenv.NATS(t)
	if _, err := schedule.New(redis.Client(), schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), nats.JetStream(), streams.Config{}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"TIMERD_REDIS_URL": redis.URL(0), "TIMERD_NATS_URL": nats.URL(), "TIMERD_NAMESPACES": "*"}
	testenv.SetVariables(t, env)
	if code, out, errs := timerd(t, "", "doctor"); code != 0 ||
		!strings.Contains(out, "warn  unattended        no timerd is alive: nothing fires until one runs\n") ||
		errs != "timerd: warning: no timerd is alive: nothing fires until one runs\n" {
		t.Errorf("before timerd was started: %d\n%s%s", code, out, errs)
	}
	attend(t, redis)
	if out := ok(t, "doctor"); strings.Contains(out, "\nwarn") || !strings.HasSuffix(out, ", 0 warn, 0 fail\n") {
		t.Errorf("with everything as it should be:\n%s", out)
	}

	set := func(name, value string) {
		t.Helper()
		if err := redis.Client().ConfigSet(t.Context(), name, value).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("notify-keyspace-events", "")
	set("maxmemory-policy", "allkeys-lru")
	set("maxmemory", "100mb")
	env["TIMERD_LAESE"] = "1s"
	testenv.SetVariables(t, env)
	code, out, errs := timerd(t, "", "doctor")
	if code != 1 || errs != "" || !strings.Contains(out, "parameter group of a managed Redis: redis-cli -h ") ||
		!strings.Contains(out, " CONFIG SET maxmemory-policy noeviction") ||
		!strings.Contains(out, "did you mean TIMERD_LEASE?") {
		t.Errorf("without keyspace events, and with eviction: %d\n%s%s", code, out, errs)
	}
	code, out, _ = timerd(t, "", "doctor", "--json")
	failed := 0
	for line := range strings.Lines(out) {
		var f diag.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if f.Level == diag.Fail {
			failed++
		}
	}
	if code != 1 || failed != 1 {
		t.Errorf("--json: exit code %d\n%s", code, out)
	}

	// The server's own error is the cause, and its consequences are not reported.
	set("maxmemory-policy", "noeviction")
	set("maxmemory", "1mb")
	if code, out, _ := timerd(t, "", "doctor"); code != 1 || strings.Count(out, "\nfail ") != 1 ||
		!strings.Contains(out, "it is out of memory") ||
		!strings.Contains(out, "fix: raise maxmemory, here and in redis.conf: redis-cli -h 127.0.0.1 -p ") {
		t.Errorf("full: %d\n%s", code, out)
	}
}

// Before timerd's first run, missing parts that it sets up itself are no failure.
func TestDoctorBeforeTheFirstStart(t *testing.T) {
	testenv.NoLeaks(t)
	redis := testenv.Redis(t)
	if err := redis.Client().ConfigSet(t.Context(), "notify-keyspace-events", "").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_URL": redis.URL(0), "TIMERD_NAMESPACES": "*",
		"TIMERD_NATS_URL": "embedded://" + testenv.FreeAddr(t), "TIMERD_DATA_DIR": filepath.Join(t.TempDir(), "data"),
	})
	code, out, errs := timerd(t, "", "doctor")
	if code != 0 || errs != "timerd: warning: "+unattended+"\n" || !strings.Contains(out, "data directory") ||
		!strings.Contains(out, "is not there yet") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// A fault in one place does not hide others.
func TestDoctorOfAllThatIsBroken(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := testenv.Redis(t), testenv.NATS(t)
	redis.Stop()
	nats.Stop()
	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_URL": "redis://:" + secret + "@" + redis.Addr(), "TIMERD_NATS_URL": secret + "@" + nats.Addr(),
		"TIMERD_LOG_LEVEL": "loud",
	})
	code, out, errs := timerd(t, "", "doctor")
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"TIMERD_NAMESPACES is not set: it names the keys that are timers\n",
		"export TIMERD_NAMESPACES='app1:trans:notice,shop', with your own names, or '*' for every four-part key\n",
		`TIMERD_LOG_LEVEL="loud"`} {
		if strings.Count(out, want) != 1 {
			t.Errorf("want %q once:\n%s", want, out)
		}
	}
	for _, want := range []string{
		"fail  redis             the state of the timers and timerds is unknown: Redis at redis://xxxxx@" +
			redis.Addr() + " does not answer",
		"fail  nats              the state of the streams is unknown, and timers wait in Redis if the timerds do not " +
			"reach NATS either: NATS at nats://xxxxx@" + nats.Addr() + " does not answer"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q:\n%s", want, out)
		}
	}
	testenv.Lacks(t, out+errs, secret)

	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_MODE": "many", "TIMERD_NAMESPACES": "*",
		"TIMERD_NATS_URL": "embedded://" + nats.Addr(), "TIMERD_DATA_DIR": t.TempDir(),
	})
	if code, out, _ := timerd(t, "", "doctor"); code != 2 ||
		!strings.Contains(out, "fail  configuration     TIMERD_REDIS_MODE=\"many\"") ||
		!strings.Contains(out, "warn  nats              embedded; it cannot be checked") {
		t.Errorf("unknown mode and embedded: %d\n%s", code, out)
	}
}

func TestDoctorExplainsAKey(t *testing.T) {
	testenv.SetVariables(t,
		map[string]string{"TIMERD_RETRY": "app1:trans=10s,30s,2m; app1=wechatpay; shop=exp(1s,2,3s,3)~10%"})
	out := ok(t, "doctor", "--key", "app1:trans:notice:1")
	for _, want := range []string{
		"app1:trans:notice:1 follows app1:trans=10s,30s,2m\n", "\n1        when due ",
		"\n3        30s                40s\n", "\n4        2m                 2m 40s\n",
		"\nWhen attempt 4 fails too, the event goes to the dead letters.\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q:\n%s", want, out)
		}
	}
	if out := ok(t, "doctor", "--key", "app1:x:y:z"); !strings.Contains(out, "follows app1=wechatpay\n") ||
		!strings.Contains(out, "When attempt 16 fails") {
		t.Errorf("a preset:\n%s", out)
	}
	if out := ok(t, "doctor", "--key", "shop:x:y:z"); !strings.Contains(out, "\n2        1s to 1.1s         1s\n") ||
		!strings.Contains(out, "3s to 3.3s") {
		t.Errorf("with jitter:\n%s", out)
	}
	if out := ok(t, "doctor", "--key", "other:x:y:z"); !strings.Contains(out, "follows *=exp(10s,2,1h,12)~10%\n") {
		t.Errorf("the default:\n%s", out)
	}
	if out := ok(t, "doctor", "--key", "app1:trans:notice:1", "--json"); strings.Count(out, "\n") != 4 ||
		!strings.Contains(out, `{"attempt":4,"after":120,"atmost":120,"total":160}`) {
		t.Errorf("--json:\n%s", out)
	}
	if code, _, errs := timerd(t, "", "doctor", "--key", "app1:trans:notice"); code != 2 ||
		!strings.Contains(errs, "four non-empty parts") {
		t.Errorf("no timer key: %d %s", code, errs)
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_RETRY": "app1=soon"})
	if code, _, errs := timerd(t, "", "doctor", "--key", "app1:trans:notice:1"); code != 2 ||
		!strings.Contains(errs, "TIMERD_RETRY: column 6") {
		t.Errorf("a bad policy: %d %s", code, errs)
	}
}
