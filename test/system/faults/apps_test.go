package faults_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// setApps sets a timer in each of n apps outside the namespaces, due at a time.
func setApps(s *system.System, n int, at int64) (want []string) {
	s.T.Helper()
	if _, err := s.RDB.Pipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("app%d:b:c:1", i)
			pipe.FCall(s.T.Context(), "timer_set", []string{key}, "p", "PXAT", at)
			want = append(want, key+"=p")
		}
		return nil
	}); err != nil {
		s.T.Fatal(err)
	}
	return want
}

// A timer in each of 1,000 apps costs no more than 16 patterns. All fire; changes of their keys count once an audit has
// found them, and those of timer_cancel at once. Apps without timers free their patterns.
func TestTimersInAThousandApps(t *testing.T) {
	t.Parallel()
	const apps, most = 1000, 16 + 2
	s := system.New(t)
	s.Env["TIMERD_NAMESPACES"] = "ours,theirs"
	p := s.Start()
	c := s.Collect()
	due := s.Now() + 15_000
	want := setApps(s, apps, due)
	patterns := func(limit int64) func() error {
		return func() error {
			if n := s.RDB.PubSubNumPat(t.Context()).Val(); n > limit {
				return fmt.Errorf("%d patterns, want at most %d", n, limit)
			}
			return nil
		}
	}
	p.Log.Wait(t, system.Patience, "than are followed")
	if err := patterns(most)(); err != nil {
		t.Error(err)
	}
	// Which apps are followed is left open, so none of these may be.
	if s.Do("FCALL", "timer_cancel", 1, "app800:b:c:1") != "cancelled" {
		t.Error("timer_cancel")
	}
	s.Do("PEXPIRE", "app801:b:c:1", 1000) // shortened: fires by its expired event
	s.Do("FCALL", "timer_set", 1, "app802:b:c:1", "newer", "PXAT", due)
	s.Do("DEL", "app803:b:c:1")
	s.Do("PEXPIREAT", "app804:b:c:1", due+3000)
	s.Do("CLIENT", "KILL", "TYPE", "pubsub") // an audit follows
	testenv.Eventually(t, system.Patience, func() error {
		if s.Do("ZSCORE", "timerd:{t}:due", "app803:b:c:1") != nil {
			return fmt.Errorf("its deletion is not noticed")
		}
		return nil
	}, "an audit")
	if err := patterns(most)(); err != nil {
		t.Error(err)
	}
	if now := s.Now(); now > due-2000 {
		t.Logf("the machine is slow: the timers are due in %d ms", due-now)
	}
	var left []string
	for i, w := range want {
		switch i {
		case 800, 803:
		case 802:
			left = append(left, "app802:b:c:1=newer")
		default:
			left = append(left, w)
		}
	}
	for _, e := range s.Expect(c, left...) {
		if at := e.Due.UnixMilli(); e.Key.App == "app804" && at != due+3000 || e.Key.App == "app801" && at > due-2000 {
			t.Errorf("%s fired due at %d", e.Key, at)
		}
	}
	s.Settled()
	s.Do("CLIENT", "KILL", "TYPE", "pubsub")
	testenv.Eventually(t, system.Patience, patterns(2), "the apps to be forgotten")
	p.Stop()
}

// BenchmarkForeignCommand measures timerd's cost for other users of Redis: Redis's CPU time for one of their commands,
// in µs, alone, beside a timerd without timers, and with a timer in each of 1,000 apps.
//
//	go test ./cmd/timerd -run '^$' -bench ForeignCommand -benchtime 30000x
func BenchmarkForeignCommand(b *testing.B) {
	for _, c := range []struct {
		name  string
		setUp func(s *system.System)
	}{
		{"alone", func(*system.System) {}},
		{"timerd", func(s *system.System) { s.Start() }},
		{"1000 apps", func(s *system.System) {
			s.Start()
			setApps(s, 1000, s.Now()+3_600_000)
		}},
	} {
		for _, command := range [][]any{{"SET", "foreign", "v", "EX", 100}, {"INCR", "counter"}, {"GET", "foreign"}} {
			b.Run(fmt.Sprint(c.name, "/", command[0]), func(b *testing.B) {
				s := system.New(b)
				s.Env["TIMERD_NAMESPACES"] = "ours"
				c.setUp(s)
				before := redisCPU(s)
				for b.Loop() {
					s.Do(command...)
				}
				b.ReportMetric((redisCPU(s)-before)*1e6/float64(b.N), "redis-µs/op")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// redisCPU returns how many seconds of CPU time Redis has used for commands.
func redisCPU(s *system.System) float64 {
	s.T.Helper()
	sum := 0.0
	for line := range strings.Lines(s.RDB.Info(s.T.Context(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread" {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.T.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
