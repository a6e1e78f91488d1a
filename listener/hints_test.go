package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// kinds are the kinds of hint under the names that these tests use.
var kinds = map[string]schedule.HintKind{"touched": schedule.Touched, "gone": schedule.Gone, "expired": schedule.Expired}

// describe writes a hint as "kind key".
func describe(h schedule.Hint) string {
	for name, kind := range kinds {
		if kind == h.Kind {
			said := name + " " + h.Key
			if h.MayWait {
				said += " (may wait)"
			}
			return said
		}
	}
	return fmt.Sprintf("%q %s", h.Kind, h.Key)
}

// addAll adds hints that are given as describe writes them. A key that is "claimed" or "set" is one that a message explains.
func (b *hintBuffer) addAll(t *testing.T, hints ...string) {
	t.Helper()
	for _, h := range hints {
		kind, key, _ := strings.Cut(h, " ")
		switch kind {
		case "claimed":
			b.forget(fmt.Appendf(nil, "%d:%s", len(key), key))
			continue
		case "set":
			b.forgetLast(key)
			continue
		}
		if _, fits := b.add(schedule.Hint{Kind: kinds[kind], Key: key}, time.Now()); !fits {
			t.Fatalf("%s was dropped", h)
		}
	}
	b.wakeUp()
}

// newBusyBuffer returns a buffer in a backlog, for as long as busy is true.
func newBusyBuffer() (b *hintBuffer, busy *atomic.Bool) {
	b, busy = newHintBuffer(), new(atomic.Bool)
	busy.Store(true)
	b.busy = busy.Load
	return b, busy
}

// next waits for hints and describes them, and how long that took.
func (b *hintBuffer) next(t *testing.T) string {
	t.Helper()
	began := time.Now()
	hints, heard := b.wait(t.Context(), noEnd)
	var said []string
	for _, h := range hints {
		said = append(said, describe(h))
	}
	return fmt.Sprintf("%s after %s, heard %s ago", strings.Join(said, ", "), time.Since(began), time.Since(heard))
}

func TestHintsHaveABound(t *testing.T) {
	t.Parallel()
	b := newHintBuffer()
	if b.most != maxHints {
		t.Errorf("a bound of %d, want %d", b.most, maxHints)
	}
	b.most = 5000
	for i := range b.most {
		kind := schedule.Expired
		if i%2 == 0 {
			kind = schedule.Touched
		}
		if _, fits := b.add(schedule.Hint{Kind: kind, Key: fmt.Sprint(i)}, time.Now()); !fits {
			t.Fatalf("hint %d was dropped", i)
		}
	}
	if _, fits := b.add(schedule.Hint{Kind: schedule.Expired, Key: "one more"}, time.Now()); fits {
		t.Error("one too many was taken")
	}
	b.addAll(t, "touched a")
	if hints, _ := b.wait(t.Context(), 0); len(hints) != 1 {
		t.Errorf("%d hints after all were dropped, want the one since", len(hints))
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHintBuffer()
		if hints, _ := b.wait(t.Context(), time.Second); hints != nil {
			t.Errorf("got %v, want none within the time", hints)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if hints, _ := b.wait(ctx, noEnd); hints != nil {
			t.Errorf("got %v, want none when the context ends", hints)
		}
	})
}

// slowNode is a Node that tells what it gets, after some time.
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

func (s slowNode) Apps(context.Context) ([]string, error) { return nil, nil }

func (s slowNode) AnyPartition() keys.Partition { return keys.Single }

func (s slowNode) StartHearing(context.Context) error { return nil }

func (s slowNode) StopHearing() {}

func (s slowNode) ReadClock(_, _, _ time.Time) {}

func (s slowNode) Mark(context.Context, string, string) error { return nil }

// Nothing is dropped at the end that has been heard.
func TestHintsAreTakenInAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := slowNode{got: make(chan string, 10)}
		l := New(nil, s, nil, 0, nil, "i")
		l.hints.busy = func() bool { return true }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			l.observe(ctx)
			close(done)
		}()
		l.hints.addAll(t, "expired a")
		time.Sleep(400 * time.Millisecond)
		if len(s.got) > 0 {
			t.Fatal("taken in too soon to show anything")
		}
		cancel()
		<-done
		if len(s.got) != 1 {
			t.Error("what was heard was dropped")
		}
	})
}

// A mark must not say that something is known that has been heard and not taken in.
func TestHintsAreIdleOnceTakenIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := slowNode{got: make(chan string, 10), delay: time.Second}
		l := New(nil, s, nil, 0, nil, "i")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			l.observe(ctx)
			close(done)
		}()
		for _, want := range []string{"touched a", "expired b"} {
			synctest.Wait()
			if !l.hints.idle() {
				t.Error("busy before anything came")
			}
			l.hints.addAll(t, want)
			if l.hints.idle() {
				t.Error("idle while a hint waits")
			}
			time.Sleep(500 * time.Millisecond)
			if l.hints.idle() {
				t.Error("idle while a hint is being taken in")
			}
			if got := <-s.got; got != want {
				t.Errorf("%s was taken in, want %s", got, want)
			}
		}
		cancel()
		<-done
	})
}

// Hints that are being taken in at the end are taken in, but not for ever.
func TestHintsUnderWayAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		delay, took time.Duration
		want        int
	}{{100 * time.Millisecond, 400 * time.Millisecond, 2*schedule.MaxHints + 2}, {time.Hour, lastTake, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s := slowNode{make(chan string, 1000), c.delay}
			l := New(nil, s, nil, 0, nil, "i")
			ctx, cancel := context.WithCancel(t.Context())
			for i := range 2*schedule.MaxHints + 1 {
				l.hints.addAll(t, fmt.Sprint("touched ", i))
			}
			done := make(chan struct{})
			go func() {
				l.observe(ctx)
				close(done)
			}()
			synctest.Wait()
			l.hints.addAll(t, "expired a")
			began := time.Now()
			cancel()
			<-done
			if took := time.Since(began); len(s.got) != c.want || took != c.took {
				t.Errorf("%s a call: %d hints taken in after %s, want %d after %s", c.delay, len(s.got), took, c.want, c.took)
			}
		})
	}
}

// leavingNode is a Node that leaves alone what may wait. Something happens to the keys meanwhile.
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

// An expired event that was left alone, and is overtaken, is no older than that: nothing explained it then.
func TestHintsThatAreOvertakenAreYoung(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		node := leavingNode{slowNode{got: make(chan string, 10), delay: 10 * time.Second}, nil, make(chan time.Time, 10)}
		var l *Listener
		node.happens = func() { l.hints.addAll(t, "touched a") }
		l = New(nil, &node, nil, 0, nil, "i")
		l.hints.busy = func() bool { return true }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			l.observe(ctx)
			close(done)
		}()
		began := time.Now()
		l.hints.addAll(t, "expired a")
		for _, want := range []string{"expired a (may wait)", "expired a", "touched a"} {
			if got := <-node.got; got != want {
				t.Errorf("%s was taken in, want %s", got, want)
			}
		}
		if heard := []time.Duration{(<-node.heard).Sub(began), (<-node.heard).Sub(began)}; heard[0] != 0 || heard[1] != longestLinger {
			t.Errorf("heard after %s, want at once, and when it was left alone", heard)
		}
		cancel()
		<-done
	})
}

// movingNode is a Node whose keys are all on the move.
type movingNode struct{ slowNode }

func (movingNode) Observe(_ context.Context, hints []schedule.Hint, _ time.Time) (schedule.Observed, error) {
	return schedule.Observed{}, &schedule.MovingError{Hints: hints, Err: errors.New("TRYAGAIN")}
}

// What could not be taken in at the end is told of.
func TestHintsOfMovingSlotsAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(nil, movingNode{}, nil, 0, nil, "i")
		var log strings.Builder
		l.Logger = slog.New(slog.NewTextHandler(&log, nil))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			l.observe(ctx)
			close(done)
		}()
		l.hints.addAll(t, "touched a", "gone b")
		synctest.Wait()
		cancel()
		<-done
		if !strings.Contains(log.String(), "waiting=2") {
			t.Errorf("log:\n%s", &log)
		}
	})
}

// A subscription's hints do not wait beyond its end.
func TestHintsAreFlushed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newHintBuffer()
		b.busy = func() bool { return true }
		b.addAll(t, "expired a")
		time.AfterFunc(5*time.Millisecond, b.flush)
		if got, want := b.next(t), "expired a after 5ms, heard 5ms ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
		b.flush()
		if hints, _ := b.wait(t.Context(), time.Second); hints != nil {
			t.Errorf("got %v though nothing was left", hints)
		}
		b.addAll(t, "expired a", "expired b")
		_ = b.next(t)
		_ = b.keepAll("a")
		b.flush()
		if got, want := b.keepAll("b"), "expired b"; got != want {
			t.Errorf("while the subscription ended, %q was overtaken, want %q", got, want)
		}
		if got, want := b.next(t), "expired a after 0s, heard 0s ago"; got != want {
			t.Errorf("got %s; want %s", got, want)
		}
	})
}

// Hints that were refused are as old as the oldest of them.
func TestLateHintsKeepTheirAge(t *testing.T) {
	t.Parallel()
	q := newLateHints()
	now := time.Now()
	q.add([]schedule.Hint{{Kind: schedule.Touched, Key: "a"}}, now)
	q.append([]schedule.Hint{{Kind: schedule.Expired, Key: "b"}}, now.Add(-2*time.Second))
	q.append([]schedule.Hint{{Kind: schedule.Expired, Key: "a"}}, now.Add(-time.Second))
	if hints, heard := q.take(); len(hints) != 2 || !heard.Equal(now.Add(-time.Second)) {
		t.Errorf("%d hints, heard %s ago; want 2, 1s", len(hints), now.Sub(heard))
	}
}
