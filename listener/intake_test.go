package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// newIntake returns an intake that hands hints to an observer.
func newIntake(o Observer) *intake {
	return &intake{
		observer: o, hints: newBuffer(), health: newHealth(), log: slog.Default(),
		agenda: noAgenda{}, metrics: noMetrics{},
	}
}

// start hands hints over until end is called; end waits for the last ones.
func (i *intake) start(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		i.run(ctx)
		close(done)
	}()
	return func() {
		cancel()
		<-done
	}
}

// slowNode is an Observer that passes its hints on after a delay.
type slowNode struct {
	got   chan string
	delay time.Duration
}

func (s slowNode) Observe(ctx context.Context, hints []schedule.Hint, _ time.Time) (schedule.Observed, error) {
	select {
	case <-time.After(s.delay):
	case <-ctx.Done():
		return schedule.Observed{}, ctx.Err()
	}
	for _, h := range hints {
		s.got <- describe(h)
	}
	return schedule.Observed{}, nil
}

// At the end no hint is dropped.
func TestHintsAreTakenInAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := slowNode{got: make(chan string, 10)}
		in := newIntake(s)
		in.hints.busy = func() bool { return true }
		end := in.start(t)
		in.hints.addAll(t, "expired a")
		time.Sleep(400 * time.Millisecond)
		if len(s.got) > 0 {
			t.Fatal("taken in too soon to show anything")
		}
		end()
		if len(s.got) != 1 {
			t.Error("the hints were dropped")
		}
	})
}

// A mark must not cover hints that were heard but not taken in.
func TestHintsAreIdleOnceTakenIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := slowNode{got: make(chan string, 10), delay: time.Second}
		in := newIntake(s)
		end := in.start(t)
		for _, want := range []string{"touched a", "expired b"} {
			synctest.Wait()
			if !in.hints.idle() {
				t.Error("busy before anything came")
			}
			in.hints.addAll(t, want)
			if in.hints.idle() {
				t.Error("idle while a hint waits")
			}
			time.Sleep(500 * time.Millisecond)
			if in.hints.idle() {
				t.Error("idle while a hint is being taken in")
			}
			if got := <-s.got; got != want {
				t.Errorf("%s was taken in, want %s", got, want)
			}
		}
		end()
	})
}

// At the end the intake finishes its hints, but not without a time limit.
func TestHintsUnderWayAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		delay, took time.Duration
		want        int
	}{{100 * time.Millisecond, 400 * time.Millisecond, 2*schedule.MaxHints + 2}, {time.Hour, lastIntake, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s := slowNode{make(chan string, 1000), c.delay}
			in := newIntake(s)
			for i := range 2*schedule.MaxHints + 1 {
				in.hints.addAll(t, fmt.Sprint("touched ", i))
			}
			end := in.start(t)
			synctest.Wait()
			in.hints.addAll(t, "expired a")
			began := time.Now()
			end()
			if took := time.Since(began); len(s.got) != c.want || took != c.took {
				t.Errorf("%s a call: %d hints taken in after %s, want %d after %s", c.delay, len(s.got), took, c.want,
					c.took)
			}
		})
	}
}

// leavingNode is an Observer that leaves alone the hints that may wait. Their keys change meanwhile.
type leavingNode struct {
	slowNode
	happens func()
	heard   chan time.Time
}

func (l leavingNode) Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error) {
	l.heard <- heard
	seen, err := l.slowNode.Observe(ctx, hints, heard)
	if hints[0].MayWait {
		l.happens()
		hints[0].MayWait = false
		seen.Left = hints[:1]
	}
	return seen, err
}

// An expired event that was left alone and then overtaken counts as heard when it was left alone, as nothing had
// explained it.
func TestHintsThatAreOvertakenAreYoung(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		node := leavingNode{slowNode{got: make(chan string, 10), delay: 10 * time.Second}, nil,
			make(chan time.Time, 10)}
		var in *intake
		node.happens = func() { in.hints.addAll(t, "touched a") }
		in = newIntake(&node)
		in.hints.busy = func() bool { return true }
		end := in.start(t)
		began := time.Now()
		in.hints.addAll(t, "expired a")
		for _, want := range []string{"expired a (may wait)", "expired a", "touched a"} {
			if got := <-node.got; got != want {
				t.Errorf("%s was taken in, want %s", got, want)
			}
		}
		if heard := []time.Duration{(<-node.heard).Sub(began), (<-node.heard).Sub(began)}; heard[0] != 0 ||
			heard[1] != longestLinger {
			t.Errorf("heard after %s, want at once, and when it was left alone", heard)
		}
		end()
	})
}

// movingNode is an Observer that reports the slots of all keys as moving.
type movingNode struct{}

func (movingNode) Observe(_ context.Context, hints []schedule.Hint, _ time.Time) (schedule.Observed, error) {
	return schedule.Observed{}, &schedule.MovingError{Hints: hints, Err: errors.New("TRYAGAIN")}
}

// Hints left at the end are logged.
func TestHintsOfMovingSlotsAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in := newIntake(movingNode{})
		var log strings.Builder
		in.log = slog.New(slog.NewTextHandler(&log, nil))
		end := in.start(t)
		in.hints.addAll(t, "touched a", "gone b")
		synctest.Wait()
		end()
		if !strings.Contains(log.String(), "waiting=2") {
			t.Errorf("log:\n%s", &log)
		}
	})
}
