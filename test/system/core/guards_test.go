package core_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
	"github.com/timerd-io/timerd/test/system"
)

// A paid order fires no timeout, and the retry of an order that was paid meanwhile does not fire either.
func TestGuardedTimersDoNotFire(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=50ms,50ms,50ms"
	p := s.Start()
	c := s.Collect()
	const paid, unpaid = "shop:order:timeout:paid", "shop:order:timeout:unpaid"
	s.Do("SET", "order:paid", "yes")
	s.Do("FCALL", "timer_set", 1, paid, "1", "PX", 300, "UNLESS", "order:paid")
	s.Do("FCALL", "timer_set", 1, unpaid, "2", "PX", 300, "UNLESS", "order:unpaid", "IF", "order:paid")
	e := s.Events(c, 1)[0]
	if e.Key.String() != unpaid || e.Guards != (policy.Guards{Unless: "order:unpaid", If: "order:paid"}) {
		t.Fatalf("fired %+v", e)
	}
	s.Settled()
	s.Do("SET", "order:unpaid", "paid by now")
	s.Retry(c.All()[0])
	s.NoRequests()
	s.Settled()
	c.Stays(1, 100*time.Millisecond)
	if got := s.Do("FCALL_RO", "timer_get", 1, unpaid); got != nil {
		t.Errorf("timer_get of the retry: %v", got)
	}
	p.Measures(true, "timerd_guarded_total 2")
}

// TIMERD_GUARD guards plain keys and their retries, by the setting of the timerd that claims.
func TestTimersGuardedByASetting(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"], s.Env["TIMERD_GUARD"] = "*=50ms,50ms,50ms", "shop:order=unless shop:order:paid:%id"
	p := s.Start()
	c := s.Collect()
	s.Do("SET", "shop:order:paid:1", "yes")
	s.Do("SET", "shop:order:timeout:1", "1", "PX", 400)
	s.Do("SET", "shop:order:timeout:2", "2", "PX", 400)
	if e := s.Events(c, 1)[0]; e.Key.ID != "2" || e.Guards != (policy.Guards{}) {
		t.Fatalf("fired %+v", e)
	}
	s.Settled()
	js := s.NATS.JetStream()
	testenv.Eventually(t, time.Minute, func() bool {
		data, _, err := history.Last(t.Context(), js, "TIMERS_HISTORY", "timers.history.shop.order.timeout")
		e, fault := event.ParseEntry(data)
		return err == nil && fault == nil && e.Kind == event.EntryGuarded && e.GuardUnless == "shop:order:paid:1"
	}, "the guarded timer in the history")
	s.Do("SET", "shop:order:paid:2", "paid by now")
	s.Retry(c.All()[0])
	s.NoRequests()
	s.Settled()
	c.Stays(1, 100*time.Millisecond)
	p.Stop()
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:1", "3", "PX", 100)
	s.Start("TIMERD_GUARD=shop:order=if shop:order:paid:%id")
	if e := s.Events(c, 2)[1]; string(e.Data) != "3" {
		t.Errorf("by another setting fired %+v", e)
	}
}

// guardedCrowd sets n timers that are due at one moment, each with a guard of its own of either kind. It returns the
// firings of every other one, whose guard lets it fire, and when all are due, in unix ms.
func guardedCrowd(s *system.System, name string, n, in int) (want []string, due int64) {
	s.T.Helper()
	now, err := s.RDB.Time(s.T.Context()).Result()
	if err != nil {
		s.T.Fatal(err)
	}
	at := now.UnixMilli() + int64(in)
	var last *redis.Cmd
	if _, err := s.RDB.TxPipelined(s.T.Context(), func(pipe redis.Pipeliner) error {
		for i := range n {
			key := fmt.Sprintf("load:guarded:%s:%d", name, i)
			option := "UNLESS"
			if i%4 >= 2 {
				option = "IF"
			}
			if i%4 == 0 || i%4 == 3 {
				pipe.Set(s.T.Context(), guardOf(key), "", 0)
			}
			if i%2 == 1 {
				want = append(want, fmt.Sprintf("%s=%d", key, i))
			}
			last = pipe.FCall(s.T.Context(), "timer_set", []string{key}, i, "PXAT", at, option,
				guardOf(key))
		}
		return nil
	}); err != nil {
		s.T.Fatal(err)
	}
	return want, last.Val().(int64)
}

// guardOf returns the guard of a timer of a crowd.
func guardOf(key string) string { return "guard:" + key }

// turnGuards makes the guards of all claimed timers say the opposite. It returns how many of them were refused.
func turnGuards(s *system.System) (refused, all int) {
	s.T.Helper()
	for ref, text := range s.RDB.HGetAll(s.T.Context(), keys.Single.FiringData()).Val() {
		_, _, key, err := schedule.ParseRef(ref)
		record, ok := schedule.ParseRecord(text)
		if err != nil || !ok {
			s.T.Fatalf("the firing %s: %s, %v", ref, text, err)
		}
		if all++; record.Refusal() != (policy.Refusal{}) {
			refused++
		}
		if guard := guardOf(key.String()); s.Do("DEL", guard) == int64(0) {
			s.Do("SET", guard, "")
		}
	}
	return refused, all
}

// A timerd dies at each step among guarded timers, and the guards of its claimed ones change. A refused timer
// never fires, and one that was let through fires.
func TestDeathAtEachStepAmongGuards(t *testing.T) {
	t.Parallel()
	for _, step := range deathSteps() {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			s := system.New(t)
			end := doom(s, step)
			c := s.Collect()
			want, _ := guardedCrowd(s, step, 200, 300)
			end()
			refused, all := turnGuards(s)
			if step == "claimed" && (refused == 0 || refused == all) {
				t.Errorf("%d of %d claimed timers were refused", refused, all)
			}
			s.Start()
			s.Expect(c, want...)
			s.Settled()
			c.Stays(len(want), 100*time.Millisecond)
		})
	}
}

// Two timerds are killed again and again over crowds of guarded timers.
func TestKilledAmongGuards(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_LEASE"] = "1s"
	daemons := [...]*system.Daemon{s.Start(), s.Start()}
	c := s.Collect()
	const crowds, each, interval = 8, 100, 300
	var want []string
	var due []int64
	for i := range crowds {
		some, at := guardedCrowd(s, fmt.Sprint(i), each, 1000+i*interval)
		want, due = append(want, some...), append(due, at)
	}
	for i, at := range due {
		s.After(at)
		daemons[i%2].Kill()
		daemons[i%2] = s.Launch()
	}
	s.Expect(c, want...)
	s.Settled()
	c.Stays(len(want), 100*time.Millisecond)
}
