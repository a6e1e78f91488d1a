package status_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
)

// That a living timerd does not count the timers is a warning, once it has had the time for it.
func TestUncountedTimersAreAWarning(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("young", nil)
	if r := x.report(); len(r.Problems) > 0 {
		t.Errorf("at the start: %+v", r.Problems)
	}
	x.beatSince(time.Now().Add(-time.Minute), "old", nil)
	r := x.report()
	if len(r.Problems) != 1 || r.Problems[0].Level != diag.Warn || r.Problems[0].Check != diag.CheckCounting ||
		!strings.Contains(r.Problems[0].Text, "TIMERS_STATE: there is no such stream: the timers are not counted") {
		t.Errorf("%+v", r.Problems)
	}
	_, err := x.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_STATE",
		Subjects: []string{"timers.state.>"}})
	if err == nil {
		_, err = x.js.Publish(t.Context(), "timers.state.counts", []byte("{}"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := x.report(); len(r.Problems) > 0 {
		t.Errorf("with a count: %+v", r.Problems)
	}
}

// A loss on a Redis server is reported with the server's present number of timers in any state. It is reported without
// a number if the server does not answer, for a stream, and if timers are not counted.
func TestLossesAreReportedWithPresentNumbers(t *testing.T) {
	t.Parallel()
	x := newInstallation(t)
	x.beat("a", nil)
	x.sched.SetDue(2)
	if err := x.sched.Client.FCall(t.Context(), "timer_set", []string{"shop:a:b:1"}, "p", "PX",
		3600_000).Err(); err != nil {
		t.Fatal(err)
	}
	x.sched.Claim(1, time.Minute)
	at := time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)
	text, err := json.Marshal([]streams.Loss{
		{At: at, Counted: at, Had: 7},
		{At: at, Counted: at, Had: 7, Server: x.sched.Server.Addr()},
		{At: at, Counted: at, Had: 7, Server: "10.0.0.9:6379"},
		{At: at, Counted: at, Had: 7, Stream: "TIMERS"},
	})
	if err == nil {
		_, err = x.js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_STATE",
			Subjects: []string{"timers.state.>"}, AllowDirect: true})
	}
	if err == nil {
		_, err = x.js.Publish(t.Context(), "timers.state.losses", text)
	}
	if err != nil {
		t.Fatal(err)
	}
	const lost, had = " has lost its data, flushed or replaced by an older copy, as was noticed at " +
		"2026-11-24T09:00:00Z; it had 7 timers at the last count, at 2026-11-24T09:00:00Z", ", and has 3 now"
	r := x.report()
	for i, want := range []string{
		"Redis" + lost + had,
		"Redis at " + x.sched.Server.Addr() + lost + had,
		"Redis at 10.0.0.9:6379" + lost,
		"the stream TIMERS was deleted, or is an older one, as was noticed at 2026-11-24T09:00:00Z; it had 7 events " +
			"at the last count, at 2026-11-24T09:00:00Z, which consumers may not all have got, and its consumers " +
			"went with it",
	} {
		if len(r.Problems) != 4 || r.Problems[i].Text != want {
			t.Fatalf("%+v\nwant as number %d\n%s", r.Problems, i+1, want)
		}
	}
	brief := status.Sources{Schedule: x.sched.Schedule, JetStream: x.js, Brief: true}.Gather(t.Context())
	if len(brief.Problems) != 4 || brief.Problems[0].Text != "Redis"+lost {
		t.Errorf("without counts: %+v", brief.Problems)
	}
}
