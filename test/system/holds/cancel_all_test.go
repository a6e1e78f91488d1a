package holds_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// Many timers of a namespace are cancelled while timerds work: none of them fires, and those of others fire on time.
// Both ways of setting, in each state.
func TestCancelAllBesideOthers(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=1h"
	p := s.Start()
	s.Start()
	c := s.Collect()
	const n = 20_000
	setFar(s, s.RDB, "shop", n, time.Hour)
	s.Do("SET", "shop:m:plain:1", "p", "EX", 3600)
	s.Adopted("shop:m:plain:1")
	p.Measures(true, `timerd_due_timers\{within="1h"\} [1-9]\d*`)

	// A retry of a firing waits, too.
	s.Do("FCALL", "timer_set", 1, "shop:m:retry:1", "again", "PX", 100)
	fired := c.Wait(1, system.Patience)[0]
	if _, err := s.JS.Publish(t.Context(), "timers.retry.shop.m.retry", fired.Data); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, system.Patience, func() bool { return s.Do("ZCARD", keys.Single.Due()) == int64(n+2) },
		"the retry to be set")
	want := []string{"shop:m:retry:1=again"}
	_, err := s.RDB.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range 300 {
			key := fmt.Sprintf("pay:m:t:%d", i)
			pipe.FCall(t.Context(), "timer_set", []string{key}, "p", "PX", 1000+i*10)
			want = append(want, key+"=p")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if out := s.OK("cancel", "--all", "shop", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", n+2) {
		t.Errorf("cancel --all: %s", out)
	}
	all := s.Expect(c, want...)
	late := time.Duration(0)
	for _, e := range all {
		late = max(late, e.Time.Sub(e.Due))
	}
	t.Logf("beside %d cancellations others were at most %v late", n, late)
	if left := s.RDB.Keys(t.Context(), "shop:*").Val(); len(left) > 0 {
		t.Errorf("keys are left: %q", left[:min(len(left), 5)])
	}
	s.Settled()
	p.Measures(true, `timerd_due_timers\{within="1h"\} 0`)
}

// NATS is away: owed timers are cancelled, and timers claimed before may be too late, which the command prints.
func TestCancelAllWhileNATSIsAway(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	s.NATS.Stop()
	p.AwaitReady(false)
	const n = 500
	setFar(s, s.RDB, "shop", n, time.Millisecond)
	s.Do("FCALL", "timer_set", 1, "pay:m:t:1", "p", "PX", 1)
	s.After(s.Now() + n)
	s.Do("FCALL", "timer_set", 1, "shop:m:t:1", "later", "PX", 3600_000) // beside the owed one
	out := s.OKWithoutNATS("cancel", "--all", "shop", "--yes", "--due-before", "0s")
	var done, late int
	if _, err := fmt.Sscanf(out, "%d cancelled, %d too late\n", &done, &late); err != nil || done+late != n {
		t.Errorf("%s: %v; want %d in all", out, err, n)
	}
	s.NATS.Start()
	var got []string
	for _, e := range s.Events(c, 1+late) {
		got = append(got, e.Key.String())
	}
	if !slices.Contains(got, "pay:m:t:1") {
		t.Errorf("fired: %q", got)
	}
	c.Stays(1+late, 500*time.Millisecond)
	if left := s.OK("ls", "--json"); strings.Count(left, "\n") != 1 || !strings.Contains(left, `"data":"later"`) {
		t.Errorf("left: %s", left)
	}
}
