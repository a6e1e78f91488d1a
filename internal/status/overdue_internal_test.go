package status

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// Overdue timers that become fewer are a warning with their rate. If none is settled for a lease, it is a failure.
func TestOverdueTimersMoveOnOrStandStill(t *testing.T) {
	t.Parallel()
	const lease, since = 10 * time.Second, 12 * time.Second
	began := time.Now()
	due := began.Add(-time.Minute)
	type look struct {
		after         time.Duration // since began
		entries       int64
		due           time.Duration // of the oldest, after the first one's
		stuck         bool
		perSecond     float64
		timers        int64 // how many more timers than entries
		over          bool  // not all were counted
		drains        bool
		justBecameOld bool // they became overdue at began
	}
	for name, looks := range map[string][]look{
		"a million that drain": {{entries: 1e6}, {after: 2 * time.Second, entries: 990000, perSecond: 5000,
			drains: true}, {after: 4 * time.Second, entries: 990000, drains: true}},
		"more come than go": {{entries: 100}, {after: 2 * time.Second, entries: 120, due: time.Second,
			drains: true}, {after: 4 * time.Second, entries: 140, due: 2 * time.Second, drains: true}},
		"a standstill that was there": {{entries: 3}, {after: time.Second, entries: 3, stuck: true}},
		"a standstill that begins": {{entries: 9}, {after: time.Second, entries: 3, perSecond: 6, drains: true},
			{after: 10 * time.Second, entries: 3, drains: true}, {after: 11 * time.Second, entries: 5, stuck: true}},
		"a backlog that just became old": {{entries: 3, justBecameOld: true},
			{after: 2 * time.Second, entries: 4, justBecameOld: true}},
		"traffic beside a standstill": {{entries: 900, timers: -897},
			{after: time.Second, entries: 100, timers: -97, stuck: true}},
		"a count that stops early": {{entries: 20000, over: true},
			{after: time.Second, entries: 19500, over: true, stuck: true}},
		"a standstill that was over begins once again": {{entries: 3}, {after: time.Second, entries: 3, stuck: true},
			{after: 2 * time.Second, timers: -1}, {after: 3 * time.Second, entries: 3}},
	} {
		var w OverdueWatch
		for i, l := range looks {
			seen := query.Overdue{At: began.Add(l.after), Timers: max(l.entries+l.timers, 0), Entries: l.entries,
				Due: due.Add(l.due), Over: l.over}
			if l.justBecameOld {
				seen.Due = began.Add(-since)
			}
			w.note(seen, began.Add(l.after), lease, since)
			if w.last == nil {
				if l.timers == 0 || l.entries > 0 {
					t.Errorf("%s: %d: none", name, i)
				}
				continue
			}
			if w.last.Stuck != l.stuck || w.last.PerSecond != l.perSecond || w.last.Drains() != l.drains {
				t.Errorf("%s: %d: %+v, want %+v", name, i, w.last, l)
			}
		}
	}
}

// Silence is no lack of rights: the fix of a question without an answer proposes none. A look that had to wait for
// another one until its time was over blames no server.
func TestFixesOfUnansweredQuestions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &facts{}
	f.gatherOverdue(ctx)
	if f.overdueErr == nil {
		t.Fatal("overdue timers are counted in no time")
	}
	node := testenv.NewSchedule(t).Node
	refused := errors.New("NOPERM this user has no permissions to run the 'zcount' command")
	for _, c := range []struct {
		err    error
		rights bool
	}{{f.overdueErr, false}, {fmt.Errorf("schedule: count: %w", os.ErrDeadlineExceeded), false}, {refused, true}} {
		of := facts{overdueErr: c.err, auditsErr: c.err, holdsErr: c.err, membersErr: c.err}
		ofServer := facts{
			Sources: Sources{Schedule: &schedule.Schedule{}}, servers: []server{{node: node, uncounted: c.err}},
		}
		for _, found := range []diag.Findings{
			judged(&of, checkOverdue), judged(&of, checkAudits), judged(&of, checkHolds), judged(&of, checkMembers),
			judged(&ofServer, checkRedis),
		} {
			if len(found) != 1 || !strings.Contains(found[0].Text, c.err.Error()) ||
				strings.Contains(found[0].Fix, "users.acl") != c.rights {
				t.Errorf("%v: %+v", c.err, found)
			}
		}
	}
}

func judged(f *facts, check func(*facts, *diag.Findings)) (found diag.Findings) {
	check(f, &found)
	return found
}

// Anybody may write a heartbeat: one with a lease of months makes nothing that is overdue look on time.
func TestLongLeasesAreNotBelieved(t *testing.T) {
	t.Parallel()
	of := func(lease, sweep string, alive bool) query.Member {
		return query.Member{Alive: alive, Self: schedule.Self{
			Settings: map[string]string{"TIMERD_LEASE": lease, "TIMERD_SWEEP_INTERVAL": sweep}}}
	}
	for _, c := range []struct {
		members      []query.Member
		lease, since time.Duration
	}{
		{nil, 10 * time.Second, 12 * time.Second},
		{[]query.Member{of("2s", "200ms", true), of("20s", "1s", false)}, 2 * time.Second, 2400 * time.Millisecond},
		{[]query.Member{of("2s", "200ms", true), of("9999h", "9999h", true)}, 30 * time.Second, 150 * time.Second},
	} {
		if lease, since := overdueAfter(c.members); lease != c.lease || since != c.since {
			t.Errorf("%+v: %v, %v, want %v, %v", c.members, lease, since, c.lease, c.since)
		}
	}
}
