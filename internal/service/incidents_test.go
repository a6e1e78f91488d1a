package service

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// watchers are two timerds that notice incidents of the same installation.
type watchers struct {
	*testenv.Schedule
	t    *testing.T
	nats *testenv.NATSServer
	log  testenv.Output
	all  map[string]*incidents
	told map[string][]schedule.Step // their steps
}

func newWatchers(t *testing.T) *watchers {
	t.Helper()
	w := &watchers{Schedule: testenv.NewSchedule(t), t: t, nats: testenv.NATS(t), all: map[string]*incidents{},
		told: map[string][]schedule.Step{}}
	for _, id := range []string{"a", "b"} {
		w.all[id] = newIncidents(w.Schedule.Schedule, w.nats.JetStream(), streams.Config{}, id, 0,
			w.log.Logger())
		w.all[id].settles = 0
	}
	return w
}

// stepped has timerds notice a step of the clock of Redis; at in ms.
func (w *watchers) stepped(id, server string, at schedule.Millis, by time.Duration) {
	w.t.Helper()
	step := schedule.Step{Server: server, At: at, By: by.Milliseconds()}
	w.told[id] = append(w.told[id], step)
	w.all[id].stepped(step, "redis:6379")
	w.beat(id)
}

// beat sends a heartbeat.
func (w *watchers) beat(id string) {
	w.t.Helper()
	self := schedule.Self{Instance: id, Steady: true, Counts: &schedule.Counts{Steps: w.told[id]}}
	if _, err := w.Node.Heartbeat(w.t.Context(), self, time.Minute); err != nil {
		w.t.Fatal(err)
	}
}

// gone has both timerds find another one silent.
func (w *watchers) gone(id string) {
	w.t.Helper()
	at := float64(time.Now().Add(-time.Hour).UnixMilli())
	if err := w.Client.ZAdd(w.t.Context(), keys.Single.Members(), redis.Z{Score: at, Member: id}).Err(); err != nil {
		w.t.Fatal(err)
	}
	w.beat("a")
	members, err := query.Members(w.t.Context(), w.Schedule.Schedule)
	if err != nil {
		w.t.Fatal(err)
	}
	i := slices.IndexFunc(members, func(m query.Member) bool { return m.Instance == id && m.Silent })
	if i < 0 {
		w.t.Fatalf("%s is not silent: %+v", id, members)
	}
	for _, one := range w.all {
		one.gone(members[i])
	}
}

// run runs both timerds until the test ends.
func (w *watchers) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for _, one := range w.all {
		running.Go(func() { one.run(ctx) })
	}
}

// Each clock step, and each timerd that is gone, has one entry in the history, however many timerds notice it, also if
// NATS comes later. A timerd that is back has none.
func TestIncidentsAreWrittenOnce(t *testing.T) {
	t.Parallel()
	w := newWatchers(t)
	w.stepped("a", "", 1_000_000, -5*time.Second)
	w.stepped("b", "", 999_500, -5200*time.Millisecond) // the same, seen first
	w.stepped("b", "", 1_005_000, time.Minute)          // another one, which a has not seen
	w.stepped("a", "", 1_100_000, -5*time.Second)       // likewise, as large as the first
	w.stepped("a", "r:1", 1_000_000, -5*time.Second)    // on another server
	w.gone("host-\n\x00c")
	w.gone("d")
	w.beat("d")
	w.nats.Stop()
	w.run()
	w.log.Wait(t, time.Minute, "are not in the history yet")
	w.nats.Start()
	c := testenv.Collect(t, w.nats.JetStream(), "TIMERS_HISTORY", "timers.history.operator.>")
	var got []string
	for _, m := range c.Wait(5, time.Minute) {
		e, err := event.ParseEntry(m.Data)
		if err != nil || e.Via != event.ViaTimerd || e.Time.IsZero() {
			t.Errorf("%s: %v", m.Data, err)
		}
		words, _, _ := strings.Cut(history.Words(e), ", last seen at 20")
		if e.Kind == event.EntryClock { // by the first to see it
			words = e.By + " " + words
		}
		got = append(got, words)
	}
	slices.Sort(got)
	want := []string{
		"a saw the clock of Redis stepped, back by 5s to 1970-01-01T00:16:40.000Z, on redis:6379",
		"a saw the clock of Redis stepped, back by 5s to 1970-01-01T00:18:20.000Z, on redis:6379",
		"b saw the clock of Redis stepped, back by 5.2s to 1970-01-01T00:16:39.500Z, on redis:6379",
		"b saw the clock of Redis stepped, forward by 1m to 1970-01-01T00:16:45.000Z, on redis:6379",
		"found a timerd gone, host-  c",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	testenv.Eventually(t, time.Minute, func() bool {
		return len(w.all["a"].ripe())+len(w.all["b"].ripe()) == 0
	}, "the end of all incidents")
	c.Stays(5, 100*time.Millisecond)
}
