package status

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/schedule"
)

// A silent timerd is reported until ten minutes after the start of another one. Living timerds' reports of stops and
// clocks are shown as long as they last, but not impossible ones.
func TestSilentTimerdsAreReported(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	silent := func(id string, ago time.Duration) query.Member {
		return query.Member{Self: schedule.Self{Instance: id}, Seen: now.Add(-ago), Silent: true}
	}
	alive := func(started time.Duration, counts *schedule.Counts) query.Member {
		return query.Member{Self: schedule.Self{Instance: "a", Since: now.Add(-started), Counts: counts}, Alive: true,
			Seen: now}
	}
	stops := []schedule.Stop{{At: schedule.MillisOf(now), For: 12_000, Frozen: true},
		{At: schedule.MillisOf(now), For: 7000}}
	for name, c := range map[string]struct {
		members []query.Member
		want    []string
	}{
		"nobody": {[]query.Member{alive(time.Hour, nil)}, nil},
		"for a day": {[]query.Member{silent("b", 5*time.Hour), alive(6*time.Hour, nil)},
			[]string{"1 timerd is silent and did not end in order, so it died, is frozen, or does not reach Redis: b " +
				"since 2026-11-20T04:00:00.000Z"}},
		"replaced just now": {[]query.Member{silent("b", time.Hour), alive(9*time.Minute, nil)},
			[]string{"1 timerd is silent"}},
		"replaced a while ago": {[]query.Member{silent("b", time.Hour), alive(11*time.Minute, nil)}, nil},
		"several": {
			[]query.Member{silent("b", time.Hour), silent("c", time.Minute), silent("d", 2*time.Hour),
				silent("e;rm", 3*time.Hour), silent("f", 4*time.Hour), silent("g", 5*time.Hour),
				alive(10*time.Hour, nil)},
			[]string{"6 timerds are silent and did not end in order, so it died, is frozen, or does not reach Redis: " +
				"c since 2026-11-20T08:59:00.000Z, b since"},
		},
		"stopped": {[]query.Member{alive(time.Hour, &schedule.Counts{Stops: stops})}, []string{
			"a did not run for 12s until 2026-11-20T09:00:00.000Z: the process was frozen, or its machine",
			"a did not reach Redis for 7s until 2026-11-20T09:00:00.000Z, while other timerds did",
		}},
		"more than any says": {[]query.Member{alive(time.Hour,
			&schedule.Counts{Stops: make([]schedule.Stop, 6), Steps: make([]schedule.Step, 6)})}, nil},
		"a clock": {[]query.Member{alive(time.Hour, &schedule.Counts{
			Steps: []schedule.Step{{Server: "r:1", At: schedule.MillisOf(now), By: 3600_000},
				{Server: "r:1", At: schedule.MillisOf(now), By: -60_000}}})}, []string{
			"that of r:1 was stepped forward by 1h to 2026-11-20T09:00:00.000Z, back by 1m to " +
				"2026-11-20T09:00:00.000Z: timers fired early, or fire late, by as much",
		}},
	} {
		f := &facts{members: c.members, redis: &Redis{At: now}}
		var found diag.Findings
		checkSilent(f, &found)
		checkClocks(f, &found)
		found = found.Of(diag.Warn)
		if len(found) != len(c.want) {
			t.Errorf("%s: %+v, want %q", name, found, c.want)
			continue
		}
		for i, one := range found {
			if !strings.HasPrefix(one.Text, c.want[i]) || one.Fix == "" || strings.Contains(one.Fix, ";rm") {
				t.Errorf("%s: %+v, want %q", name, one, c.want[i])
			}
		}
	}
}
