package notify_test

import (
	"errors"
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

func TestSettledFiringsLeaveTheSchedule(t *testing.T) {
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, nil)
	p.SetDue(300)
	all := p.Claim(300, lease)
	r.publish(t, all...)
	p.WaitEmpty()
	checkStream(t, testenv.Collect(t, r.js, "TIMERS"), all)
}

// endLeases has the leases of claims run out now.
func endLeases(t *testing.T, p *testenv.Schedule, claims []schedule.Firing) {
	t.Helper()
	args := redis.ZAddArgs{XX: true, Ch: true}
	over := p.Client.Time(t.Context()).Val().UnixMilli() - 1
	for _, f := range claims {
		args.Members = append(args.Members, redis.Z{Score: float64(over), Member: f.Ref})
	}
	n, err := p.Client.ZAddArgs(t.Context(), keys.Single.Firing(), args).Result()
	if err != nil || n != int64(len(claims)) {
		t.Fatalf("%d leases ended, want %d: %v", n, len(claims), err)
	}
}

func TestRedisAwayWhileSettling(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ begin, end func(*testenv.RedisServer) }{
		"paused":    {(*testenv.RedisServer).Pause, (*testenv.RedisServer).Resume},
		"restarted": {(*testenv.RedisServer).Stop, (*testenv.RedisServer).Start},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, nats := testenv.NewSchedule(t), testenv.NATS(t)
			r := start(t, nats, nats.URL(), p, nil)
			collector := testenv.Collect(t, r.js, "TIMERS")
			p.SetDue(300)
			all := p.Claim(300, lease)
			fault.begin(p.Server)
			r.publish(t, all...)
			checkStream(t, collector, all)
			fault.end(p.Server)
			p.WaitEmpty()
			collector.Stays(300, 50*time.Millisecond)
			testenv.Eventually(t, patience, func() bool { return r.InFlight() == 0 }, "an empty window")
		})
	}
}

func TestReclaimedFiringsAreStoredOnce(t *testing.T) {
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	crashing := start(t, nats, nats.URL(), nil, func(p *notify.Publisher) { p.DrainTimeout = 100 * time.Millisecond })
	crashing.settler.failWith(errors.New("crashed before it could settle"))
	r := start(t, nats, nats.URL(), p, nil)
	collector := testenv.Collect(t, r.js, "TIMERS")
	p.SetDue(50)
	all := p.Claim(50, lease)
	crashing.publish(t, all...)
	collector.Wait(50, patience)
	endLeases(t, p, all)

	again := p.Claim(50, lease)
	r.publish(t, again...)
	p.WaitEmpty()
	collector.Stays(50, 50*time.Millisecond)
	checkStream(t, collector, all)
	if !slices.ContainsFunc(again, func(f schedule.Firing) bool { return f.Trigger == schedule.TriggerReclaim }) {
		t.Error("nothing was reclaimed")
	}
	r.stop(t)
	if c := r.metrics.counts(); c.duplicates != 50 || c.fired != 50 {
		t.Errorf("counted %+v", c)
	}
}

func TestReleasedFiringsCanBeClaimedAtOnce(t *testing.T) {
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, nil)
	nats.Stop()
	r.healthy(t, patience, "NATS has been disconnected")
	p.SetDue(20)
	all := p.Claim(20, time.Hour)
	r.publish(t, all...)
	r.stop(t)

	nats.Start()
	next := start(t, nats, nats.URL(), p, nil)
	again := p.Claim(20, lease)
	next.publish(t, again...)
	p.WaitEmpty()
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
	t.Parallel()
	p, nats := testenv.NewSchedule(t), testenv.NATS(t)
	r := start(t, nats, nats.URL(), p, func(p *notify.Publisher) { p.DrainTimeout = 500 * time.Millisecond })
	nats.Stop()
	r.healthy(t, patience, "NATS has been disconnected")
	p.SetDue(5)
	all := p.Claim(5, lease)
	p.Server.Stop()
	r.publish(t, all...)
	r.stop(t)

	p.Server.Start()
	nats.Start()
	endLeases(t, p, all)
	next := start(t, nats, nats.URL(), p, nil)
	again := p.Claim(5, lease)
	next.publish(t, again...)
	p.WaitEmpty()
	checkStream(t, testenv.Collect(t, next.js, "TIMERS"), again)
}
