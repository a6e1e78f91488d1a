package core_test

import (
	"encoding/json"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// A requested audit finds faults that no sweep sees: equal numbers of timers and records are missing. It reports its
// repairs once, and each of several simultaneous commands shows it. Without a timerd there is none.
func TestAuditCommand(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Says(1, "audit", "no timerd is alive")
	p := s.Start()
	p.AwaitReady(true)
	for _, id := range []string{"1", "2", "3"} {
		s.Do("FCALL", "timer_set", 1, "shop:order:timeout:"+id, "p", "PX", 3_600_000)
	}
	s.Do("DEL", "shop:order:timeout:3")
	testenv.Eventually(t, system.Patience, func() bool {
		return s.Do("HEXISTS", keys.Single.Data(),
			"shop:order:timeout:3") == int64(0)
	}, "a cancellation")
	s.Do("EVAL", "redis.call('HDEL', KEYS[1], ARGV[1]); redis.call('ZREM', KEYS[2], ARGV[2])", 2,
		keys.Single.Data(), keys.Single.Due(), "shop:order:timeout:1", "shop:order:timeout:2")

	type line struct {
		Timers, Restored int64
		WithoutPayload   int64 `json:"without_payload"`
	}
	audit := func() (got line) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.OK("audit", "--json")), &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got, want := audit(), (line{Timers: 2, Restored: 1, WithoutPayload: 1}); got != want {
		t.Errorf("audit: %+v, want %+v", got, want)
	}
	if got, want := audit(), (line{Timers: 2}); got != want {
		t.Errorf("the next one: %+v, want %+v", got, want)
	}
	first, said := s.Command("audit")
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	s.Says(0, "audit", "2 timers audited in ")
	if err := first.Wait(); err != nil {
		t.Errorf("beside another one: %v\n%s", err, said)
	}
	p.Stop()
}
