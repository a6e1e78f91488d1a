package load

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/bench/internal/firing"
)

func TestEvaluate(t *testing.T) {
	due := time.UnixMilli(1_763_629_200_000)
	dues := []time.Time{due, due.Add(10 * time.Millisecond), due.Add(20 * time.Millisecond),
		due.Add(30 * time.Millisecond)}
	at := func(n int64, afterMs int) firing.Firing {
		return firing.Firing{N: n, Received: due.Add(time.Duration(afterMs) * time.Millisecond)}
	}
	f := evaluate(100, dues, []firing.Firing{
		at(101, 9),  // a ms early
		at(100, 5),  // 5 ms late
		at(100, 50), // again
		at(102, 60), // 40 ms late
	})
	if f.Timers != 4 || f.Delivered != 3 || f.Undelivered() != 1 || f.Early != 1 || f.Duplicates != 1 {
		t.Errorf("counts %+v", f)
	}
	if f.Consumed.P50 != 5 || f.Consumed.Max != 40 || f.Consumed.Quantiles[0] != -1 {
		t.Errorf("lateness %+v", f.Consumed)
	}
	if f.Published != nil {
		t.Errorf("published %+v of a system without a stream", f.Published)
	}
	if f.Drained != 30 { // the last one 60 ms after the first due time, the last due time 30 ms after it
		t.Errorf("drained after %v ms, want 30", f.Drained)
	}
	if f.Gap != 51 { // received after 5, 9 and 60 ms
		t.Errorf("a gap of %v ms, want 51", f.Gap)
	}
	if last := f.Curve[len(f.Curve)-1]; last.N != 3 || last.Ms != 60 {
		t.Errorf("curve %+v", f.Curve)
	}
	f = evaluate(1, dues[:1], []firing.Firing{{N: 1, Received: due.Add(time.Second),
		Published: due.Add(990 * time.Millisecond), Due: due.Add(980 * time.Millisecond)}})
	if f.Consumed.Max != 20 || f.Published == nil || f.Published.Max != 10 {
		t.Errorf("by the due time that the system says: %+v", f)
	}
	if f := evaluate(1, dues, nil); f.Undelivered() != len(dues) || f.Curve != nil {
		t.Errorf("nothing fired: %+v", f)
	}
}

func TestSpreadAndShuffle(t *testing.T) {
	start := time.Now()
	shape := Shape{Timers: 1000, Spread: time.Second}
	timers := spread(7, shape, start)
	for i, timer := range timers {
		want := start.Truncate(time.Millisecond).Add(time.Duration(i) * time.Millisecond)
		if timer.N != int64(7+i) || !timer.Due.Equal(want) {
			t.Fatalf("timer %d is %+v, want due %v", i, timer, want)
		}
	}
	other := spread(7, shape, start)
	shuffle(timers)
	shuffle(other)
	seen := make(map[int64]bool)
	inOrder := 0
	for i, timer := range timers {
		if timer != other[i] {
			t.Fatal("two shuffles differ")
		}
		seen[timer.N] = true
		if i > 0 && timer.N == timers[i-1].N+1 {
			inOrder++
		}
	}
	if len(seen) != shape.Timers || inOrder > shape.Timers/10 {
		t.Errorf("%d timers after shuffling, %d of them in order", len(seen), inOrder)
	}
	for _, timer := range spread(1, Shape{Timers: 10}, start) {
		if !timer.Due.Equal(start.Truncate(time.Millisecond)) {
			t.Errorf("a spike's timer is due at %v", timer.Due)
		}
	}
}

func TestCollector(t *testing.T) {
	c := newCollector()
	c.begin(10, 2)
	for _, n := range []int64{9, 10, 10, 12} { // the first and the last are others'
		c.fired(firing.Firing{N: n})
	}
	if err := c.wait(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if got := c.got(); len(got) != 2 || c.missing != 1 || c.strays != 2 {
		t.Errorf("%d firings, %d missing, %d strays; want 2, 1, 2", len(got), c.missing, c.strays)
	}
	c.fired(firing.Firing{N: 11})
	began := time.Now()
	if err := c.wait(t.Context(), began.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if c.missing != 0 {
		t.Errorf("%d missing", c.missing)
	}
}
