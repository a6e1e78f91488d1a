package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

func TestDoctor(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := testenv.Redis(t), testenv.NATS(t)
	if err := schedule.New(redis.Client(), schedule.DefaultMaxPayload).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := notify.EnsureStreams(t.Context(), nats.JetStream(), notify.Streams{}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"TIMERD_REDIS_URL": redis.URL(0), "TIMERD_NATS_URL": nats.URL(), "TIMERD_NAMESPACES": "*"}
	setEnv(t, env)
	if out := ok(t, "doctor"); strings.Contains(out, "\nwarn") || !strings.HasSuffix(out, ", 0 warn, 0 fail\n") {
		t.Errorf("with everything as it should be:\n%s", out)
	}

	if err := redis.Client().ConfigSet(t.Context(), "notify-keyspace-events", "").Err(); err != nil {
		t.Fatal(err)
	}
	env["TIMERD_LAESE"] = "1s"
	setEnv(t, env)
	code, out, errs := timerd(t, "", "doctor")
	if code != 1 || errs != "" || !strings.Contains(out, "fix: CONFIG SET notify-keyspace-events") || !strings.Contains(out, "did you mean TIMERD_LEASE?") {
		t.Errorf("without keyspace events: %d\n%s%s", code, out, errs)
	}
	code, out, _ = timerd(t, "", "doctor", "--json")
	failed := 0
	for line := range strings.Lines(out) {
		var f doctor.Finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if f.Level == doctor.Fail {
			failed++
		}
	}
	if code != 1 || failed != 1 {
		t.Errorf("--json: exit code %d\n%s", code, out)
	}
}

// What is broken in one place does not hide the rest.
func TestDoctorOfAllThatIsBroken(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := testenv.Redis(t), testenv.NATS(t)
	redis.Stop()
	nats.Stop()
	setEnv(t, map[string]string{
		"TIMERD_REDIS_URL": "redis://:" + secret + "@" + redis.Addr(), "TIMERD_NATS_URL": secret + "@" + nats.Addr(), "TIMERD_LOG_LEVEL": "loud",
	})
	code, out, errs := timerd(t, "", "doctor")
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"TIMERD_NAMESPACES: is not set", `TIMERD_LOG_LEVEL="loud"`} {
		if strings.Count(out, want) != 1 {
			t.Errorf("want %q once:\n%s", want, out)
		}
	}
	for _, want := range []string{"fail  redis             Redis at redis://xxxxx@" + redis.Addr() + " does not answer", "fail  nats              NATS at nats://xxxxx@" + nats.Addr() + " does not answer"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q:\n%s", want, out)
		}
	}
	lacks(t, out+errs, secret)

	setEnv(t, map[string]string{
		"TIMERD_REDIS_MODE": "cluster", "TIMERD_NAMESPACES": "*",
		"TIMERD_NATS_URL": "embedded://" + nats.Addr(), "TIMERD_DATA_DIR": t.TempDir(),
	})
	if code, out, _ := timerd(t, "", "doctor"); code != 1 || !strings.Contains(out, "fail  redis             TIMERD_REDIS_MODE=cluster") ||
		!strings.Contains(out, "warn  nats              embedded; it cannot be checked") {
		t.Errorf("cluster and embedded: %d\n%s", code, out)
	}
}
