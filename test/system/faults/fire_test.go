package faults_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// redisCLI feeds commands to redis-cli, as any user would.
func redisCLI(s *system.System, commands string) string {
	s.T.Helper()
	host, port, _ := strings.Cut(s.Redis.Addr(), ":")
	cmd := exec.Command("redis-cli", "-h", host, "-p", port)
	cmd.Stdin = strings.NewReader(commands)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.T.Fatalf("redis-cli: %v\n%s", err, out)
	}
	return string(out)
}

func TestPlainTimersFromRedisCLI(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	const n = 1000
	var commands strings.Builder
	for i := range n {
		fmt.Fprintf(&commands, "SET app%d:trans:notice:%d '{\"order\":%d}' PX %d\n", i%3, i, i, 1000+5*i)
		fmt.Fprintf(&commands, "PEXPIRETIME app%d:trans:notice:%d\n", i%3, i)
	}
	replies := strings.Fields(redisCLI(s, commands.String()))
	if len(replies) != 2*n {
		t.Fatalf("%d replies, want %d", len(replies), 2*n)
	}
	due := map[string]string{}
	for i := range n {
		due[fmt.Sprintf("app%d:trans:notice:%d", i%3, i)] = replies[2*i+1]
	}
	var lateness []time.Duration
	for _, e := range s.Events(c, n) {
		if want := fmt.Sprintf(`{"order":%s}`, e.Key.ID); string(e.Data) != want ||
			e.ContentType != "application/json" {
			t.Errorf("%s: data %s (%s), want %s", e.ID, e.Data, e.ContentType, want)
		}
		if got := fmt.Sprint(e.Due.UnixMilli()); got != due[e.Key.String()] {
			t.Errorf("%s: due %s, want the key's PEXPIRETIME %s", e.ID, got, due[e.Key.String()])
		}
		if e.Attempt != 1 || e.MaxAttempts != 13 {
			t.Errorf("%s: attempt %d of %d, want 1 of 13", e.ID, e.Attempt, e.MaxAttempts)
		}
		lateness = append(lateness, e.Time.Sub(e.Due))
	}
	c.Stays(n, time.Second)
	s.Settled()
	t.Log(percentiles(lateness))
}

// percentiles describes how late events were.
func percentiles(lateness []time.Duration) string {
	slices.Sort(lateness)
	at := func(p int) time.Duration { return lateness[(len(lateness)-1)*p/100] }
	return fmt.Sprintf("lateness of %d: p50 %s, p99 %s, max %s", len(lateness), at(50), at(99), at(100))
}

// A shared Redis: raw expired events come minutes late here.
func TestAmongForeignKeys(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_NAMESPACES"] = "a"
	s.Start()
	c := s.Collect()
	sub := s.RDB.PSubscribe(t.Context(), keys.KeyspacePattern(0, keys.Namespace{App: "a"}))
	defer sub.Close()
	foreignEvents := make(chan string, 1)
	go func() {
		for m := range sub.Channel() {
			if !strings.HasPrefix(m.Channel, keys.KeyspacePrefix(0)+"a:") {
				foreignEvents <- m.String()
				return
			}
		}
	}()
	const foreign = 300_000
	for i := 0; i < foreign; i += 10_000 {
		_, err := s.RDB.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for j := range 10_000 {
				pipe.Set(t.Context(), fmt.Sprintf("session:eu:web:%d", i+j), "x", 24*time.Hour)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const n = 1000
	began := s.Now()
	for i := range n {
		s.Do("SET", fmt.Sprintf("a:b:c:%d", i), i, "PXAT", began+3000+int64(i)*5)
	}
	var lateness []time.Duration
	for _, e := range s.Events(c, n) {
		lateness = append(lateness, e.Time.Sub(e.Due))
	}
	text := percentiles(lateness)
	t.Log(text)
	// Far above the normal value, far below that of waiting for Redis.
	if p99 := lateness[len(lateness)*99/100]; p99 > time.Second {
		t.Errorf("too late among %d foreign keys: %s", foreign, text)
	}
	// What Redis still has to expire here takes it minutes.
	if left := s.Do("KEYS", "a:*").([]any); len(left) > 0 {
		t.Errorf("%d trigger keys are left after their timers fired", len(left))
	}
	select {
	case m := <-foreignEvents:
		t.Errorf("an event of a foreign key came through: %s", m)
	default:
	}
}

// A network or NATS that takes longer for a window of events than a lease lasts slows firing down, but does not stop
// it: few events wait then, and are acknowledged in time.
func TestNATSSlowerThanLeases(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	proxy := testenv.NewProxy(t, s.NATS.Addr())
	s.Env["TIMERD_NATS_URL"], s.Env["TIMERD_LEASE"] = "nats://"+proxy.Addr(), "1s"
	p := s.Start()
	const n, rate = 3000, 2 << 20
	payload := strings.Repeat("x", 4<<10)
	proxy.Throttle(rate)
	var want []string
	for i := range n {
		key := fmt.Sprintf("a:b:c:%d", i)
		want = append(want, key+"="+payload)
		s.Do("FCALL", "timer_set", 1, key, payload, "PX", 500)
	}
	watch := time.Now()
	s.Expect(s.Collect(), want...)
	t.Logf("%d events after %v; their payloads alone take %v", n, time.Since(watch),
		time.Duration(n*len(payload))*time.Second/rate)
	s.Settled()
	p.Stop()
}
