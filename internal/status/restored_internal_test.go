package status

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
)

// Timers of a restored Redis that a timerd will compare are a warning; any others need an operator, and the fix says
// which command.
func TestCheckRestored(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		seen  time.Time
		ahead bool
		short *history.ShortStream
		level diag.Level
		fix   string
	}{
		"compared soon": {at.Add(-time.Hour), false, nil, diag.Warn, "wait until a timerd has compared them"},
		"purged": {at.Add(-time.Hour), false, &history.ShortStream{Stream: "TIMERS"}, diag.Fail,
			"timerd status --acknowledge"},
		"too short": {at.Add(-time.Hour), false, &history.ShortStream{Stream: "TIMERS", From: at}, diag.Fail,
			"timerd reconcile --since 2026-11-28T09:00:00Z"},
		"a clock ahead": {at.Add(time.Hour), true, nil, diag.Fail, "timerd reconcile --since"},
	} {
		var found diag.Findings
		checkRestored(&facts{redis: &Redis{Restored: []Restored{{"", at, c.seen, 1, c.ahead, c.short}}}}, &found)
		if len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].Fix, c.fix) ||
			!strings.Contains(found[0].Text, "1 timer waits") {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
