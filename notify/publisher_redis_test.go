package notify_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// plan is a schedule in a real Redis.
type plan struct {
	*schedule.Schedule
	server *testenv.RedisServer
	rdb    *redis.Client
}

func newPlan(t *testing.T) *plan {
	t.Helper()
	server := testenv.Redis(t)
	// Time limits that let a test see several tries while Redis is away.
	rdb := server.Client(func(o *redis.Options) {
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.MaxRetries = time.Second, time.Second, time.Second, -1
	})
	p := &plan{Schedule: schedule.New(rdb, schedule.DefaultMaxPayload), server: server, rdb: rdb}
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// set sets n timers that are due at once, nearly.
func (p *plan) set(t *testing.T, n int) {
	t.Helper()
	pipe := p.rdb.Pipeline()
	for i := range n {
		pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("app1:trans:notice:%d", i)}, `{"order":42}`, "PX", 1)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// claim claims n firings.
func (p *plan) claim(t *testing.T, n int, lease time.Duration) []schedule.Firing {
	t.Helper()
	var all []schedule.Firing
	testenv.Eventually(t, patience, func() error {
		c, err := p.Claim(t.Context(), keys.Single, lease, 0, 0)
		all = append(all, c.Firings...)
		if err == nil && len(all) < n {
			err = fmt.Errorf("%d claimed, want %d", len(all), n)
		}
		return err
	}, "claiming")
	return all
}

// empty waits until the schedule holds nothing more.
func (p *plan) empty(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		pending, firing, err := p.Counts(t.Context(), keys.Single)
		if err == nil && pending+firing > 0 {
			err = fmt.Errorf("%d pending and %d firing", pending, firing)
		}
		return err
	}, "an empty schedule")
}

func TestSettledFiringsLeaveTheSchedule(t *testing.T) {
	testenv.NoLeaks(t)
	p, nats := newPlan(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, nil)
	p.set(t, 300)
	all := p.claim(t, 300, lease)
	r.publish(t, all...)
	p.empty(t)
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
}

func TestRedisAwayWhileSettling(t *testing.T) {
	for name, fault := range map[string]struct{ begin, end func(*testenv.RedisServer) }{
		"paused":    {(*testenv.RedisServer).Pause, (*testenv.RedisServer).Resume},
		"restarted": {(*testenv.RedisServer).Stop, (*testenv.RedisServer).Start},
	} {
		t.Run(name, func(t *testing.T) {
			p, nats := newPlan(t), testenv.NATS(t)
			r := start(t, nats, nats.URL(), p, nil)
			collector := testenv.Collect(t, r.js, "TIMERS")
			p.set(t, 300)
			all := p.claim(t, 300, lease)
			fault.begin(p.server)
			r.publish(t, all...)
			checkStream(t, collector, all)
			fault.end(p.server)
			p.empty(t)
			collector.Stays(300, 50*time.Millisecond)
			testenv.Eventually(t, patience, func() bool { return r.InFlight() == 0 }, "an empty window")
		})
	}
}

func TestReclaimedFiringsAreStoredOnce(t *testing.T) {
	p, nats := newPlan(t), testenv.NATS(t)
	crashing := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) { p.DrainTimeout = 100 * time.Millisecond })
	crashing.book.failWith(errors.New("crashed before it could settle"))
	r := start(t, nats, nats.URL(), p, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	p.set(t, 50)
	all := p.claim(t, 50, time.Second)
	crashing.publish(t, all...)
	collector.Wait(50, patience)

	again := p.claim(t, 50, lease)
	r.publish(t, again...)
	p.empty(t)
	collector.Stays(50, 50*time.Millisecond)
	checkStream(t, collector, all)
	if !slices.ContainsFunc(again, func(f schedule.Firing) bool { return f.Trigger == schedule.TriggerReclaim }) {
		t.Error("nothing was reclaimed")
	}
	r.stop(t)
	if c := r.tally.counts(); c.duplicates != 50 || c.fired != 50 {
		t.Errorf("hooks counted %+v", c)
	}
}

func TestReleasedFiringsCanBeClaimedAtOnce(t *testing.T) {
	p, nats := newPlan(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, nil)
	nats.Stop()
	r.healthy(t, patience, "NATS has been disconnected")
	p.set(t, 20)
	all := p.claim(t, 20, time.Hour)
	r.publish(t, all...)
	r.stop(t)

	nats.Start()
	next := start(t, nats, nats.URL(), p, nil)
	again := p.claim(t, 20, lease)
	next.publish(t, again...)
	p.empty(t)
	var was, is []string
	for i := range all {
		was, is = append(was, all[i].Ref), append(is, again[i].Ref)
	}
	slices.Sort(was)
	slices.Sort(is)
	if !slices.Equal(was, is) {
		t.Errorf("claimed again:\n%s\nfirst:\n%s", strings.Join(is, "\n"), strings.Join(was, "\n"))
	}
	checkStream(t, testenv.Collect(t, next.js, "TIMERS"), again)
}

func TestReleaseFailingIsNoHarm(t *testing.T) {
	p, nats := newPlan(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, func(p *notify.Publisher) { p.DrainTimeout = 2 * time.Second })
	nats.Stop()
	r.healthy(t, patience, "NATS has been disconnected")
	p.set(t, 5)
	all := p.claim(t, 5, 4*time.Second)
	p.server.Stop()
	r.publish(t, all...)
	r.stop(t)

	p.server.Start()
	nats.Start()
	next := start(t, nats, nats.URL(), p, nil)
	again := p.claim(t, 5, lease)
	next.publish(t, again...)
	p.empty(t)
	checkStream(t, testenv.Collect(t, next.js, "TIMERS"), again)
}
