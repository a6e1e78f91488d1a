package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// stopLog notes which parts have ended, and after how long.
type stopLog struct {
	mu    sync.Mutex
	began time.Time
	ended []string
}

// part returns a part that takes some time to end.
func (l *stopLog) part(name string, takes time.Duration) part {
	return part{name, func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(takes)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ended = append(l.ended, fmt.Sprintf("%s %v", name, time.Since(l.began)))
		return nil
	}}
}

func TestStopInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := stopLog{began: time.Now()}
		var out testenv.Output
		stop()
		err := runAll(ctx, out.Logger(), 10*time.Second,
			step{l.part("reconciler", 2*time.Second), l.part("consumer", time.Second)},
			step{l.part("publisher", 3*time.Second)},
			step{l.part("connections", time.Second)})
		if want := []string{"consumer 1s", "reconciler 2s", "publisher 5s", "connections 6s"}; err != nil ||
			!slices.Equal(l.ended, want) {
			t.Errorf("ended %q, %v; want %q", l.ended, err, want)
		}
		if out.String() != "" {
			t.Errorf("logged:\n%s", &out)
		}
	})
}

// All steps share one bound: a late part is named, and later steps are stopped all the same.
func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := stopLog{began: time.Now()}
		var out testenv.Output
		stop()
		err := runAll(ctx, out.Logger(), 10*time.Second,
			step{l.part("reconciler", 6*time.Second)},
			step{l.part("publisher", 6*time.Second), l.part("watcher", 0)},
			step{l.part("connections", time.Second)})
		if took := time.Since(l.began); err != nil || took != 10*time.Second {
			t.Errorf("it took %v, %v; want 10s", took, err)
		}
		for _, name := range []string{"publisher", "connections"} {
			if !strings.Contains(out.String(), "part="+name+" limit=10s") {
				t.Errorf("%s is not named:\n%s", name, &out)
			}
		}
		if n := strings.Count(out.String(), "\n"); n != 2 {
			t.Errorf("%d lines, want 2:\n%s", n, &out)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if want := []string{"reconciler 6s", "watcher 6s", "connections 11s", "publisher 12s"}; !slices.Equal(l.ended,
			want) {
			t.Errorf("ended %q, want %q", l.ended, want)
		}
	})
}

func TestAPartThatFailsStopsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := stopLog{began: time.Now()}
		var out testenv.Output
		broken := errors.New("broken")
		err := runAll(t.Context(), out.Logger(), time.Minute,
			step{l.part("reconciler", time.Second)},
			step{part{"http", func(context.Context) error { return broken }}})
		if !errors.Is(err, broken) || !slices.Equal(l.ended, []string{"reconciler 1s"}) {
			t.Errorf("got %v, ended %q", err, l.ended)
		}
	})
}
