package backoff_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
)

func TestDelayGrowsUpToTheLongest(t *testing.T) {
	t.Parallel()
	p := backoff.Policy{First: 50 * time.Millisecond, Longest: 2 * time.Second}
	if d := p.Delay(0); d != 0 {
		t.Errorf("after no failure: %v, want 0", d)
	}
	for failures, want := range map[int]time.Duration{
		1: 50 * time.Millisecond, 2: 100 * time.Millisecond, 6: 1600 * time.Millisecond,
		7: 2 * time.Second, 31: 2 * time.Second, 64: 2 * time.Second, 1 << 40: 2 * time.Second,
	} {
		for range 100 {
			if d := p.Delay(failures); d > want || d < want*4/5-1 {
				t.Fatalf("after %d failures: %v, want %v or up to a fifth less", failures, d, want)
			}
		}
	}
}

func TestFailLogsNewErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		b := backoff.Backoff{
			Policy: backoff.Policy{First: time.Second, Longest: 8 * time.Second},
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}
		lines := func() int { return strings.Count(log.String(), "\n") }

		away, refused := errors.New("away"), errors.New("refused")
		var waited time.Duration
		for _, step := range []struct {
			err  error
			want int // lines so far
		}{{away, 1}, {away, 1}, {refused, 2}, {refused, 2}, {away, 3}} {
			d := b.Fail("cannot connect", step.err, "server", "a")
			if lines() != step.want {
				t.Fatalf("%d lines after %v, want %d:\n%s", lines(), step.err, step.want, &log)
			}
			waited += d
			if !backoff.Sleep(t.Context(), d) {
				t.Fatal("Sleep was cut short")
			}
		}
		if !strings.Contains(log.String(), `msg="cannot connect" server=a err=away attempt=5 delay=`) {
			t.Errorf("log:\n%s", &log)
		}
		if took := b.Succeed(); took != waited {
			t.Errorf("Succeed = %v, want %v", took, waited)
		}
		if took := b.Succeed(); took != 0 {
			t.Errorf("Succeed again = %v, want 0", took)
		}

		b.Fail("cannot connect", away)
		time.Sleep(time.Minute)
		b.Fail("cannot connect", away)
		if lines() != 5 {
			t.Errorf("%d lines a minute later, want 5:\n%s", lines(), &log)
		}
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if backoff.Sleep(ctx, time.Hour) {
		t.Error("Sleep waited although its context had ended")
	}
}
