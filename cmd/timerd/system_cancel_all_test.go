package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Many timers of a namespace are cancelled while timerds work: none of them fires, and those of others fire on time. Both
// ways of setting, in each state.
func TestCancelAllBesideOthers(t *testing.T) {
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=1h"
	p := s.start()
	s.start()
	c := s.collect()
	testenv.SetVariables(t, s.env)
	const n = 20_000
	setFar(t, s.rdb, "shop", n, time.Hour)
	s.do("SET", "shop:m:plain:1", "p", "EX", 3600)
	s.adopted("shop:m:plain:1")
	p.measures(true, `timerd_due_timers\{within="1h"\} [1-9]\d*`)

	// A retry of a firing waits, too.
	s.do("FCALL", "timer_set", 1, "shop:m:retry:1", "again", "PX", 100)
	fired := c.Wait(1, patience)[0]
	if _, err := s.js.Publish(t.Context(), "timers.retry.shop.m.retry", fired.Data); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool { return s.do("ZCARD", keys.Single.Due()) == int64(n+2) }, "the retry to be set")
	want := []string{"shop:m:retry:1=again"}
	_, err := s.rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
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
	if out := ok(t, "cancel", "--all", "shop", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", n+2) {
		t.Errorf("cancel --all: %s", out)
	}
	all := s.expect(c, want...)
	late := time.Duration(0)
	for _, e := range all {
		late = max(late, e.Time.Sub(e.Due))
	}
	t.Logf("beside %d cancellations others were at most %v late", n, late)
	if left := s.rdb.Keys(t.Context(), "shop:*").Val(); len(left) > 0 {
		t.Errorf("keys are left: %q", left[:min(len(left), 5)])
	}
	s.settled()
	p.measures(true, `timerd_due_timers\{within="1h"\} 0`)
}

// NATS is away: what is owed is cancelled, and what was claimed before may be too late, and is said to be.
func TestCancelAllWhileNATSIsAway(t *testing.T) {
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	testenv.SetVariables(t, s.env)
	s.nats.Stop()
	p.awaitReady(false)
	const n = 500
	setFar(t, s.rdb, "shop", n, time.Millisecond)
	s.do("FCALL", "timer_set", 1, "pay:m:t:1", "p", "PX", 1)
	s.after(s.now() + n)
	s.do("FCALL", "timer_set", 1, "shop:m:t:1", "later", "PX", 3600_000) // beside the one that is owed
	out := ok(t, "cancel", "--all", "shop", "--yes", "--due-before", "0s")
	var done, late int
	if _, err := fmt.Sscanf(out, "%d cancelled, %d too late\n", &done, &late); err != nil || done+late != n {
		t.Errorf("%s: %v; want %d in all", out, err, n)
	}
	s.nats.Start()
	var got []string
	for _, e := range s.events(c, 1+late) {
		got = append(got, e.Key.String())
	}
	if !slices.Contains(got, "pay:m:t:1") {
		t.Errorf("fired: %q", got)
	}
	c.Stays(1+late, 500*time.Millisecond)
	if left := ok(t, "ls", "--json"); strings.Count(left, "\n") != 1 || !strings.Contains(left, `"data":"later"`) {
		t.Errorf("left: %s", left)
	}
}

// In a cluster, the commands and the metrics are about all nodes.
func TestCancelAllAndForecastInACluster(t *testing.T) {
	s := newClusterSystem(t, false)
	a, b := s.start(), s.start()
	testenv.SetVariables(t, s.env)
	const n = 300
	for i := range n {
		s.durably(fmt.Sprintf("shop:m:t:%d", i), "p", 5*time.Minute)
		if i%3 == 0 {
			s.durably(fmt.Sprintf("pay:m:t:%d", i), "p", 30*time.Minute)
		}
	}
	for _, p := range []*daemon{a, b} {
		p.measures(true, `timerd_due_timers\{within="10m"\} `+fmt.Sprint(n))
		p.measures(true, `timerd_due_timers\{within="1h"\} `+fmt.Sprint(n+n/3))
	}
	if out := ok(t, "forecast"); !strings.HasSuffix(out, fmt.Sprintf("\n%d timers, and 0 due already\n", n+n/3)) {
		t.Error(out)
	}
	if out := ok(t, "forecast", "pay"); !strings.HasSuffix(out, fmt.Sprintf("\n%d timers, and 0 due already\n", n/3)) {
		t.Error(out)
	}
	if out := ok(t, "cancel", "--all", "shop", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", n) {
		t.Error(out)
	}
	a.measures(true, `timerd_due_timers\{within="10m"\} 0`)
	if out := ok(t, "ls", "--limit", "0", "--json"); strings.Count(out, "\n") != n/3 {
		t.Errorf("%d timers are left", strings.Count(out, "\n"))
	}
	if out := ok(t, "cancel", "--all", "pay", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", n/3) {
		t.Error(out)
	}
	s.emptied()
}
