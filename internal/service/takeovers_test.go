package service

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A takeover over several claims is logged once, with its size, the first key, and the times.
func TestTakeoversAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var said testenv.Output
		taken := &takeovers{instance: "me", log: slog.New(slog.NewTextHandler(&said, nil))}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			taken.run(ctx)
		}()
		at := time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)
		claim := func(trigger schedule.Trigger, due ...int) {
			result := &schedule.ClaimResult{At: at}
			for _, seconds := range due {
				f := schedule.Firing{Trigger: trigger, Due: schedule.MillisOf(
					at.Add(time.Duration(-seconds) * time.Second))}
				f.Key = keys.Key{App: "a", Module: "b", Type: "c",
					ID: time.Duration(seconds * int(time.Second)).String()}
				result.Firings = append(result.Firings, f)
			}
			taken.note(result)
			at = at.Add(time.Second)
			time.Sleep(time.Second)
		}
		claim(schedule.TriggerDeadline, 1, 2)
		time.Sleep(time.Minute)
		if said.String() != "" {
			t.Errorf("nothing was taken over: %s", &said)
		}
		claim(schedule.TriggerReclaim, 12, 13)
		claim(schedule.TriggerReclaim, 11)
		time.Sleep(takeoverPause)
		want := `level=WARN msg="took over firings that were claimed before and not settled within their lease: a timerd died, stood still, or could not publish" ` +
			"instance=me firings=3 key=a:b:c:12s due_at=2026-11-24T08:59:48Z from=2026-11-24T09:00:01Z " +
			"until=2026-11-24T09:00:02Z\n"
		if !strings.HasSuffix(said.String(), want) || strings.Count(said.String(), "\n") != 1 {
			t.Errorf("%s\nwant %s", &said, want)
		}
		for range 40 {
			claim(schedule.TriggerReclaim, 12)
		}
		cancel()
		<-ended
		if n := strings.Count(said.String(), "\n"); n != 3 {
			t.Errorf("%d lines, want one, one after %v and one at the end:\n%s", n, takeoverMost, &said)
		}
	})
}
