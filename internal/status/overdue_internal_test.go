package status

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
)

// Overdue timers that move on are a warning with their rate. Those that stand still for a lease are a failure.
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
		timers        int64 // 0 for entries
		justBecameOld bool  // they became overdue at began
	}
	for name, looks := range map[string][]look{
		"a million that drain":            {{entries: 1e6}, {after: 2 * time.Second, entries: 990000, perSecond: 5000}, {after: 4 * time.Second, entries: 990000}},
		"more come than go":               {{entries: 100}, {after: 2 * time.Second, entries: 120, due: time.Second}, {after: 4 * time.Second, entries: 140, due: 2 * time.Second}},
		"a standstill that was there":     {{entries: 3}, {after: time.Second, entries: 3, stuck: true}},
		"a standstill that begins":        {{entries: 9}, {after: time.Second, entries: 3, perSecond: 6}, {after: 10 * time.Second, entries: 3}, {after: 11 * time.Second, entries: 5, stuck: true}},
		"a backlog that just became old":  {{entries: 3, justBecameOld: true}, {after: 2 * time.Second, entries: 4, justBecameOld: true}},
		"what was over begins once again": {{entries: 3}, {after: time.Second, entries: 3, stuck: true}, {after: 2 * time.Second, timers: -1}, {after: 3 * time.Second, entries: 3}},
	} {
		var w OverdueWatch
		for i, l := range looks {
			seen := query.Overdue{At: began.Add(l.after), Timers: max(l.entries+l.timers, 0), Entries: l.entries, Due: due.Add(l.due)}
			if l.justBecameOld {
				seen.Due = began.Add(-since)
			}
			w.note(seen, began.Add(l.after), lease, since)
			if w.last == nil {
				if l.timers == 0 {
					t.Errorf("%s: %d: none", name, i)
				}
				continue
			}
			if w.last.Stuck != l.stuck || w.last.PerSecond != l.perSecond {
				t.Errorf("%s: %d: %+v, want %+v", name, i, w.last, l)
			}
		}
	}
}

// A look that had to wait for another one until its time was over blames no server, and proposes no rights.
func TestOverdueInNoTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &facts{}
	f.gatherOverdue(ctx)
	var found diag.Findings
	checkOverdue(f, &found)
	want := "cannot tell whether timers are overdue: context canceled"
	if len(found) != 1 || found[0].Text != want || strings.Contains(found[0].Fix, "users.acl") {
		t.Errorf("%+v, want %s", found, want)
	}
}
