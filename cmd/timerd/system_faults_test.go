package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/redisserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// load sets n timers, of both kinds, spread over a time from now on. It returns
// what must fire.
func (s *system) load(prefix string, n int, spread time.Duration) []string {
	s.t.Helper()
	var want []string
	from := s.now() + 500 + int64(n)/4 // time to set them
	_, err := s.rdb.Pipelined(s.t.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("load:%s:t:%d", prefix, i)
			at := from + int64(i)*spread.Milliseconds()/int64(n)
			if i%2 == 0 {
				pipe.Do(s.t.Context(), "SET", key, i, "PXAT", at)
			} else {
				pipe.FCall(s.t.Context(), "timer_set", []string{key}, i, "PXAT", at)
			}
			want = append(want, fmt.Sprintf("%s=%d", key, i))
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	// The plain ones are safe once adopted, and they are adopted in order.
	s.adopted(fmt.Sprintf("load:%s:t:%d", prefix, (n-1)/2*2))
	return want
}

func TestKilledAgainAndAgain(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_LEASE"] = "1s"
	p := s.start()
	c := s.collect()
	// Bursts: a kill shortly after one finds it between claim and settle.
	const bursts, interval = 24, 300
	var want []string
	var due []int64
	from := s.now() + 1000
	for i := range bursts {
		due = append(due, from+int64(i)*interval)
		for j := range 200 {
			key := fmt.Sprintf("load:killed:t:%d-%d", i, j)
			s.do("FCALL", "timer_set", 1, key, j, "PXAT", due[i])
			want = append(want, fmt.Sprintf("%s=%d", key, j))
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := 1; i < bursts; i += 2 {
		s.after(due[i])
		<-time.After(time.Duration(random.IntN(8000)) * time.Microsecond)
		p.kill()
		p = s.launch()
	}
	reclaimed := 0
	for _, e := range s.expect(c, want...) {
		if e.Trigger == string(schedule.TriggerReclaim) {
			reclaimed++
		}
	}
	t.Logf("%d of %d were reclaimed", reclaimed, len(want))
	s.settled()
}

func TestRedisKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := newSystem(t, redisserver.Directive("appendfsync", "always"))
	p := s.start()
	c := s.collect()
	const spread = 6 * time.Second
	want := s.load("redis", 1500, spread)
	for end := time.Now().Add(spread); time.Now().Before(end); {
		s.redis.Kill()
		s.redis.Start()
		p.awaitReady(true)
	}
	s.expect(c, want...)
	s.settled()
}

func TestNATSAwayForLongerThanTheLease(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	want := s.load("nats", 1000, 3*time.Second)
	began := time.Now()
	s.nats.Stop()
	p.awaitReady(false)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("unready %s after NATS went away, want within 5s", took)
	}
	s.after(s.now() + 5000)
	s.nats.Start()
	began = time.Now()
	p.awaitReady(true)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("ready %s after NATS came back, want within 10s", took)
	}
	s.expect(c, want...)
	s.settled()
	p.stop()
}

func TestEventsLostInEveryWay(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	var want []string
	for name, fault := range map[string]func(){
		"flags":      func() { s.do("CONFIG", "SET", "notify-keyspace-events", "") },
		"subscriber": func() { s.do("CLIENT", "KILL", "TYPE", "pubsub") },
		"functions":  func() { s.do("FUNCTION", "FLUSH"); s.do("SCRIPT", "FLUSH") },
	} {
		fault()
		key := "a:b:c:" + name
		s.do("SET", key, name, "PX", 8000)
		want = append(want, key+"="+name)
		s.adopted(key)
		p.awaitReady(true)
	}
	testenv.Eventually(t, patience, func() bool {
		return s.rdb.FCall(t.Context(), "timer_set", []string{"a:b:c:set"}, "p", "PX", 100).Err() == nil
	}, "the library to be back")
	s.expect(c, append(want, "a:b:c:set=p")...)
	s.settled()
	p.stop()
}

func TestReadinessNamesWhatDoesNotWork(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	s.redis.Pause()
	began := time.Now()
	p.awaitReady(false)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("unready %s after Redis hung, want within 5s", took)
	}
	if _, body, err := p.get("/readyz"); err != nil || !strings.Contains(body, "redis") {
		t.Errorf("/readyz does not name Redis: %q, %v", body, err)
	}
	if status, _, err := p.get("/healthz"); err != nil || status != 200 {
		t.Errorf("/healthz: %d, %v", status, err)
	}
	s.redis.Resume()
	p.awaitReady(true)
	p.stop()
}

func TestWithoutEventsOnPurpose(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.do("CONFIG", "SET", "notify-keyspace-events", "")
	s.start("TIMERD_KEYSPACE_EVENTS=off", "TIMERD_SWEEP_INTERVAL=200ms")
	c := s.collect()
	s.do("SET", "a:b:c:plain", "p", "PX", 3000)
	s.do("FCALL", "timer_set", 1, "a:b:c:set", "s", "PX", 100)
	s.expect(c, "a:b:c:plain=p", "a:b:c:set=s")
	if got := s.do("CONFIG", "GET", "notify-keyspace-events"); strings.Contains(fmt.Sprint(got), "K") {
		t.Errorf("timerd switched events on: %v", got)
	}
}

func TestSeveralTimerds(t *testing.T) {
	s := newSystem(t)
	first, second, third := s.start(), s.start(), s.start()
	c := s.collect()
	want := s.load("several", 2000, 5*time.Second)
	c.WaitFunc(patience, atLeast(200))
	first.kill()
	c.WaitFunc(patience, atLeast(500))
	// One that sleeps for longer than its lease has lost its claims, and knows.
	second.signal(syscall.SIGSTOP)
	c.WaitFunc(patience, atLeast(1000))
	s.after(s.now() + 3000)
	second.signal(syscall.SIGCONT)
	fourth := s.start()
	s.expect(c, want...)
	c.Stays(len(want), time.Second)
	s.settled()
	for _, p := range []*daemon{second, third, fourth} {
		p.stop()
	}
}

// atLeast waits for some messages, with more to come.
func atLeast(n int) func([]testenv.Message) error {
	return func(all []testenv.Message) error {
		if len(all) < n {
			return fmt.Errorf("%d messages so far, want %d", len(all), n)
		}
		return nil
	}
}

// Timers that ran out while no timerd was there fire at its next start.
func TestDowntime(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	s.do("SET", "a:b:c:adopted", "p", "PX", 1000)
	s.adopted("a:b:c:adopted")
	p.stop()
	s.do("FCALL", "timer_set", 1, "a:b:c:set", "s", "PX", 500)
	s.do("SET", "a:b:c:plain", "q", "PX", 10_000)
	s.after(s.due("a:b:c:set"))
	s.do("FCALL", "timer_set", 1, "a:b:c:set", "again", "PX", 500)
	s.after(s.due("a:b:c:set"))
	p = s.start()
	s.expect(c, "a:b:c:adopted=p", "a:b:c:set=s", "a:b:c:set=again", "a:b:c:plain=q")
	s.settled()
	p.stop()
}

// However the servers behave, timerd ends within ten seconds.
func TestStopsInTime(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(s *system, proxy *testenv.Proxy){
		"NATS silent, window full": func(s *system, proxy *testenv.Proxy) {
			proxy.Blackhole()
			for i := range 6000 {
				s.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), "p", "PX", 20)
			}
		},
		"Redis hangs": func(s *system, _ *testenv.Proxy) { s.redis.Pause() },
		"both": func(s *system, proxy *testenv.Proxy) {
			proxy.Blackhole()
			s.redis.Pause()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			proxy := testenv.NewProxy(t, s.nats.Addr())
			s.env["TIMERD_NATS_URL"] = "nats://" + proxy.Addr()
			s.env["TIMERD_LEASE"] = "30s"
			p := s.start()
			fault(s, proxy)
			p.stop()
			s.redis.Resume()
		})
	}
}
