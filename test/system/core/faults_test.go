package core_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
	"github.com/timerd-io/timerd/test/system"
)

func TestKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_LEASE"] = "1s"
	p := s.Start()
	c := s.Collect()
	// Bursts: a kill shortly after one finds it between claim and settle.
	const bursts, each, interval = 20, 100, 300
	var want []string
	burst := func(i int) (due int64) {
		var last *redis.Cmd
		_, err := s.RDB.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { // at one moment, so due at one
			for j := range each {
				key := fmt.Sprintf("load:killed:t:%d-%d", i, j)
				last = pipe.FCall(t.Context(), "timer_set", []string{key}, j, "PX", 1000+int64(i)*interval)
				want = append(want, fmt.Sprintf("%s=%d", key, j))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return last.Val().(int64)
	}
	var due []int64
	for i := range bursts {
		due = append(due, burst(i))
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := 1; i < bursts; i += 2 {
		s.After(due[i])
		<-time.After(time.Duration(random.IntN(8000)) * time.Microsecond)
		p.Kill()
		p = s.Launch()
	}
	reclaimed := 0
	for _, e := range s.Expect(c, want...) {
		if e.Trigger == string(schedule.TriggerReclaim) {
			reclaimed++
		}
	}
	t.Logf("%d of %d were reclaimed", reclaimed, len(want))
	s.Settled()
	s.Balances()
}

func TestRedisKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := system.New(t, devserver.Directive("appendfsync", "always"))
	p := s.Start()
	c := s.Collect()
	const spread = 4 * time.Second
	want := s.Load("redis", 1000, spread)
	for end := time.Now().Add(spread); time.Now().Before(end); {
		s.Redis.Kill()
		s.Redis.Start()
		p.AwaitReady(true)
	}
	s.Expect(c, want...)
	s.Settled()
	s.Balances()
}

func TestNATSAwayForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	want := s.Load("nats", 600, 2*time.Second)
	c.WaitFunc(system.Patience, system.AtLeast(50)) // some are under way
	watch := testenv.StartStopwatch()
	s.NATS.Stop()
	p.AwaitReady(false)
	watch.AtMost(t, 5*time.Second, "to be unready after NATS went away")
	s.After(s.Now() + 3000) // a lease, and more
	s.NATS.Start()
	watch = testenv.StartStopwatch()
	p.AwaitReady(true)
	watch.AtMost(t, 10*time.Second, "to be ready after NATS came back")
	s.Expect(c, want...)
	s.Settled()
	p.Stop()
}

func TestEventsLostInEveryWay(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	var want []string
	for name, fault := range map[string]func(){
		"flags":      func() { s.Do("CONFIG", "SET", "notify-keyspace-events", "") },
		"subscriber": func() { s.Do("CLIENT", "KILL", "TYPE", "pubsub") },
		"functions":  func() { s.Do("FUNCTION", "FLUSH"); s.Do("SCRIPT", "FLUSH") },
	} {
		fault()
		key := "a:b:c:" + name
		s.Do("SET", key, name, "EX", 3600)
		want = append(want, key+"="+name)
		s.Adopted(key)
		p.AwaitReady(true)
		s.Do("PEXPIRE", key, system.Soon)
	}
	testenv.Eventually(t, system.Patience, func() bool {
		return s.RDB.FCall(t.Context(), "timer_set", []string{"a:b:c:set"}, "p", "PX", 100).Err() == nil
	}, "the library to be back")
	s.Expect(c, append(want, "a:b:c:set=p")...)
	s.Settled()
	p.Stop()
}

func TestReadinessNamesTheFault(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	s.Redis.Pause()
	watch := testenv.StartStopwatch()
	p.AwaitReady(false)
	watch.AtMost(t, 5*time.Second, "to be unready after Redis hung")
	if _, body, err := p.Get("/readyz"); err != nil || !strings.Contains(body, "redis") {
		t.Errorf("/readyz does not name Redis: %q, %v", body, err)
	}
	if status, _, err := p.Get("/healthz"); err != nil || status != 200 {
		t.Errorf("/healthz: %d, %v", status, err)
	}
	s.Redis.Resume()
	p.AwaitReady(true)
	p.Stop()
}

func TestSeveralTimerds(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	first, second, third := s.Start(), s.Start(), s.Start()
	c := s.Collect()
	want := s.Load("several", 1000, 3*time.Second)
	c.WaitFunc(system.Patience, system.AtLeast(100))
	first.Kill()
	c.WaitFunc(system.Patience, system.AtLeast(250))
	// One that sleeps for longer than its lease has lost its claims, and knows.
	second.Signal(syscall.SIGSTOP)
	c.WaitFunc(system.Patience, system.AtLeast(500))
	s.After(s.Now() + 2500)
	second.Signal(syscall.SIGCONT)
	fourth := s.Start()
	s.Expect(c, want...)
	c.Stays(len(want), 300*time.Millisecond)
	s.Settled()
	for _, p := range []*system.Daemon{second, third, fourth} {
		p.Stop()
	}
}

// listening returns the timerds that hear a single Redis, and the others, once all are alive and so many hear.
func listening(s *system.System, all []*system.Daemon, enough int) (hear, others []*system.Daemon) {
	s.T.Helper()
	testenv.Eventually(s.T, system.Patience, func() error {
		// One that has just started has not said yet that it hears, and is not alive either.
		alive := s.Do("ZCARD", keys.Single.Members()).(int64)
		hear, others = nil, nil
		for _, p := range all {
			if hears(s, p) {
				hear = append(hear, p)
			} else {
				others = append(others, p)
			}
		}
		subscribed := s.RDB.PubSubNumSub(s.T.Context(), keys.WakeChannel).Val()[keys.WakeChannel]
		if alive != int64(len(all)) || len(hear) != enough || subscribed != int64(enough) {
			return fmt.Errorf("%d of %d hear, and %d are subscribed, want %d of %d", len(hear), alive, subscribed,
				enough, len(all))
		}
		return nil
	}, "some of them to hear")
	return hear, others
}

// hears reports whether a timerd has lately shown that it hears a single Redis.
func hears(s *system.System, p *system.Daemon) bool {
	ids := s.Do("ZRANGE", keys.Single.Hearing(), 0, -1).([]any)
	return slices.ContainsFunc(ids, func(id any) bool {
		return strings.Contains(id.(string),
			fmt.Sprintf("-%d-", p.Cmd.Process.Pid))
	})
}

// Of three timerds two hear the events. If both are killed, or one is frozen while the host of the other vanishes
// silently, the third fires the due timers, and then listens, which counts as a gap.
func TestTwoOfThreeHear(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(hear []*system.Daemon, hosts map[*system.Daemon]*testenv.Proxy){
		"killed": func(hear []*system.Daemon, _ map[*system.Daemon]*testenv.Proxy) {
			hear[0].Kill()
			hear[1].Kill()
		},
		"frozen, vanished": func(hear []*system.Daemon, hosts map[*system.Daemon]*testenv.Proxy) {
			hear[0].Signal(syscall.SIGSTOP)
			hosts[hear[1]].Blackhole()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t)
			s.Env["TIMERD_SWEEP_INTERVAL"] = "200ms"
			hosts := map[*system.Daemon]*testenv.Proxy{}
			for range 3 {
				proxy := testenv.NewProxy(t, s.Redis.Addr())
				hosts[s.Start("TIMERD_REDIS_URL=redis://"+proxy.Addr())] = proxy
			}
			c := s.Collect()
			hear, others := listening(s, slices.Collect(maps.Keys(hosts)), 2)
			s.Do("SET", "a:b:c:plain", "p", "PX", 4000)
			s.Adopted("a:b:c:plain")
			s.Do("FCALL", "timer_set", 1, "a:b:c:set", "s", "PX", 2000)
			lose(hear, hosts)
			lost := time.Now()
			third := others[0]
			testenv.Eventually(t, system.Patience, func() bool { return hears(s, third) }, "the third one to hear")
			t.Logf("the third hears after %v", time.Since(lost))
			s.Expect(c, "a:b:c:plain=p", "a:b:c:set=s")
			third.Measures(true, `timerd_gaps_total\{reason="subscribed"\} [1-9].*`)
			s.Do("SET", "a:b:c:later", "q", "PX", system.Soon)
			s.Expect(c, "a:b:c:plain=p", "a:b:c:set=s", "a:b:c:later=q")
			s.Settled()
			third.Stop()
		})
	}
}

// In a rolling change that adds a namespace, the timerds that listen to fewer make nobody stand by.
func TestRollingChangeOfNamespaces(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_SWEEP_INTERVAL"] = "200ms"
	all := []*system.Daemon{s.Start("TIMERD_NAMESPACES=shop"), s.Start("TIMERD_NAMESPACES=shop"),
		s.Start("TIMERD_NAMESPACES=pay,shop")}
	c := s.Collect()
	listening(s, all, 3)
	s.After(s.Now() + 3000) // four sweeps and more, after which one would stand by
	s.Do("SET", "pay:b:c:1", "p", "PX", system.Soon)
	s.Do("SET", "shop:b:c:1", "p", "PX", system.Soon)
	s.Expect(c, "pay:b:c:1=p", "shop:b:c:1=p")
	listening(s, all, 3)
	for _, p := range all {
		p.Stop()
	}
}

// Timerds without NATS come behind the healthy one, which then waits for nobody.
func TestRankOfTimerdsWithoutNATS(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_SWEEP_INTERVAL"] = "200ms"
	proxy := testenv.NewProxy(t, s.NATS.Addr())
	viaProxy := "TIMERD_NATS_URL=nats://" + proxy.Addr()
	all := []*system.Daemon{s.Start(viaProxy), s.Start(viaProxy), s.Start()}
	healthy := all[2]
	c := s.Collect()
	listening(s, all, 2)
	proxy.Blackhole()
	testenv.Eventually(t, system.Patience, func() bool { return s.Do("ZCARD", keys.Single.Unable()) == int64(2) },
		"two of them to say that they cannot publish")
	testenv.Eventually(t, system.Patience, func() bool { return hears(s, healthy) }, "the third to hear")
	var want []string
	soonest := time.Hour
	for round := range 5 { // the machine may stand still in one of them
		key := fmt.Sprintf("a:b:c:%d", round)
		s.Do("FCALL", "timer_set", 1, key, "p", "PX", 300)
		want = append(want, key+"=p")
		for _, e := range s.Expect(c, want...) {
			if e.Key.String() == key {
				soonest = min(soonest, e.Time.Sub(e.Due))
			}
		}
	}
	if soonest > time.Second {
		t.Errorf("the soonest of five was %v late", soonest)
	}
	proxy.Heal()
	testenv.Eventually(t, system.Patience, func() bool { return s.Do("ZCARD", keys.Single.Unable()) == int64(0) },
		"all to publish again")
	s.Settled()
	for _, p := range all {
		p.Stop()
	}
}

// Timers that ran out while no timerd was there fire at its next start.
func TestDowntime(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.Do("SET", "a:b:c:adopted", "p", "PX", system.Soon)
	s.Adopted("a:b:c:adopted")
	p.Stop()
	for _, payload := range []string{"s", "again"} {
		s.After(s.Do("FCALL", "timer_set", 1, "a:b:c:set", payload, "PX", 300).(int64))
	}
	s.Do("SET", "a:b:c:plain", "q", "EX", 3600) // however long the start takes
	p = s.Start()
	s.Adopted("a:b:c:plain")
	s.Do("PEXPIRE", "a:b:c:plain", 500)
	s.Expect(c, "a:b:c:adopted=p", "a:b:c:set=s", "a:b:c:set=again", "a:b:c:plain=q")
	s.Settled()
	p.Stop()
}

// However the servers behave, timerd ends within ten seconds.
func TestStopsInTime(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(s *system.System, proxy *testenv.Proxy){
		"NATS silent, window full": func(s *system.System, proxy *testenv.Proxy) {
			proxy.Blackhole()
			setAll(s, "a:b:c:", 5000, func(int) int { return 20 })
		},
		"Redis hangs": func(s *system.System, _ *testenv.Proxy) { s.Redis.Pause() },
		"both": func(s *system.System, proxy *testenv.Proxy) {
			proxy.Blackhole()
			s.Redis.Pause()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := system.New(t)
			proxy := testenv.NewProxy(t, s.NATS.Addr())
			s.Env["TIMERD_NATS_URL"] = "nats://" + proxy.Addr()
			s.Env["TIMERD_LEASE"] = "30s"
			p := s.Start()
			fault(s, proxy)
			p.Stop()
			s.Redis.Resume()
		})
	}
}

// setAll sets n timers, each due in so many ms, and returns the firings that must come.
func setAll(s *system.System, prefix string, n int, in func(i int) int) (want []string) {
	s.T.Helper()
	_, err := s.RDB.Pipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprint(prefix, i)
			pipe.FCall(s.T.Context(), "timer_set", []string{key}, i, "PX", in(i))
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
		return nil
	})
	if err != nil {
		s.T.Fatal(err)
	}
	return want
}
