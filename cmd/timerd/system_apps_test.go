package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
)

// setApps sets a timer in each of n apps outside the namespaces, due at a time.
func (s *system) setApps(n int, at int64) (want []string) {
	s.t.Helper()
	if _, err := s.rdb.Pipelined(s.t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("app%d:b:c:1", i)
			pipe.FCall(s.t.Context(), "timer_set", []string{key}, "p", "PXAT", at)
			want = append(want, key+"=p")
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return want
}

// A timer in each of 1,000 apps costs no more than 16 patterns. All fire; changes of their keys count once an audit has
// found them, and those of timer_cancel at once. Apps without timers free their patterns.
func TestTimersInAThousandApps(t *testing.T) {
	t.Parallel()
	const apps, most = 1000, 16 + 2
	s := newSystem(t)
	s.env["TIMERD_NAMESPACES"] = "ours,theirs"
	p := s.start()
	c := s.collect()
	due := s.now() + 15_000
	want := s.setApps(apps, due)
	patterns := func(limit int64) func() error {
		return func() error {
			if n := s.rdb.PubSubNumPat(t.Context()).Val(); n > limit {
				return fmt.Errorf("%d patterns, want at most %d", n, limit)
			}
			return nil
		}
	}
	p.log.Wait(t, patience, "than are followed")
	if err := patterns(most)(); err != nil {
		t.Error(err)
	}
	// Which apps are followed is left open, so none of these may be.
	if s.do("FCALL", "timer_cancel", 1, "app800:b:c:1") != "cancelled" {
		t.Error("timer_cancel")
	}
	s.do("PEXPIRE", "app801:b:c:1", 1000) // shortened: fires by its expired event
	s.do("FCALL", "timer_set", 1, "app802:b:c:1", "newer", "PXAT", due)
	s.do("DEL", "app803:b:c:1")
	s.do("PEXPIREAT", "app804:b:c:1", due+3000)
	s.do("CLIENT", "KILL", "TYPE", "pubsub") // an audit follows
	testenv.Eventually(t, patience, func() error {
		if s.do("ZSCORE", "timerd:{t}:due", "app803:b:c:1") != nil {
			return fmt.Errorf("its deletion is not noticed")
		}
		return nil
	}, "an audit")
	if err := patterns(most)(); err != nil {
		t.Error(err)
	}
	if now := s.now(); now > due-2000 {
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
	for _, e := range s.expect(c, left...) {
		if at := e.Due.UnixMilli(); e.Key.App == "app804" && at != due+3000 || e.Key.App == "app801" && at > due-2000 {
			t.Errorf("%s fired due at %d", e.Key, at)
		}
	}
	s.settled()
	s.do("CLIENT", "KILL", "TYPE", "pubsub")
	testenv.Eventually(t, patience, patterns(2), "the apps to be forgotten")
	p.stop()
}

// BenchmarkForeignCommand tells what timerd costs those who use Redis for other things: how much of its CPU time Redis
// takes for a command of theirs, in µs, alone, beside a timerd without timers, and with a timer in each of 1,000 apps.
//
//	go test ./cmd/timerd -run '^$' -bench ForeignCommand -benchtime 30000x
func BenchmarkForeignCommand(b *testing.B) {
	for _, c := range []struct {
		name  string
		setUp func(s *system)
	}{
		{"alone", func(*system) {}},
		{"timerd", func(s *system) { s.start() }},
		{"1000 apps", func(s *system) {
			s.start()
			s.setApps(1000, s.now()+3_600_000)
		}},
	} {
		for _, command := range [][]any{{"SET", "foreign", "v", "EX", 100}, {"INCR", "counter"}, {"GET", "foreign"}} {
			b.Run(fmt.Sprint(c.name, "/", command[0]), func(b *testing.B) {
				s := newSystem(b)
				s.env["TIMERD_NAMESPACES"] = "ours"
				c.setUp(s)
				before := s.redisCPU()
				for b.Loop() {
					s.do(command...)
				}
				b.ReportMetric((s.redisCPU()-before)*1e6/float64(b.N), "redis-µs/op")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// redisCPU returns how many seconds of CPU time Redis has used for commands.
func (s *system) redisCPU() float64 {
	s.t.Helper()
	sum := 0.0
	for line := range strings.Lines(s.rdb.Info(s.t.Context(), "cpu").Val()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_user_main_thread" || name == "used_cpu_sys_main_thread" {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				s.t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
