package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/schedule"
)

// fleet is some timerds that fire.
type fleet struct {
	mu      sync.Mutex
	members []query.Member
	err     error
	asked   int
}

func (f *fleet) ask(context.Context) ([]query.Member, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.err != nil {
		return nil, f.err
	}
	said := make([]query.Member, len(f.members))
	for i, m := range f.members {
		if said[i] = m; m.Counts != nil {
			said[i].Counts = m.Counts.Clone()
		}
	}
	return said, nil
}

// join adds a timerd that has counted something since its start.
func (f *fleet) join(name string, since time.Time) *schedule.Counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &schedule.Counts{Lateness: map[string]schedule.Lateness{}}
	f.members = append(f.members, query.Member{Self: schedule.Self{Instance: name, Since: since, Counts: c},
		Alive: true})
	return c
}

// fire has one of them fire n timers.
func (f *fleet) fire(c *schedule.Counts, namespace string, n int, late time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := c.Lateness[namespace]
	for range n {
		l.Add(late)
	}
	c.Lateness[namespace] = l
}

// times returns how often they were asked.
func (f *fleet) times() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// change changes their counts.
func (f *fleet) change(how func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	how()
}

// start runs a Live for the time of the test, which is a bubble.
func start(t *testing.T, f *fleet) *Live {
	t.Helper()
	p := NewLive(f.ask)
	ctx, cancel := context.WithCancel(context.Background())
	go p.Run(ctx)
	t.Cleanup(cancel)
	synctest.Wait()
	return p
}

// Firings are shown per second, by namespace, with their lateness, from the first sample on.
func TestRates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{}
		began := time.Now()
		one, two := f.join("one", began.Add(-time.Hour)), f.join("two", began.Add(-time.Hour))
		f.fire(one, "shop", 1_000_000, time.Minute) // before it looked
		p := start(t, f)
		for range 60 {
			p.View()
			f.fire(one, "shop", 80, time.Millisecond)
			f.fire(two, "shop", 19, time.Millisecond)
			f.fire(two, "pay", 1, 50*time.Millisecond)
			f.change(func() { two.Gaps++ })
			time.Sleep(time.Second)
			synctest.Wait()
		}
		v := p.View()
		if v.At.Sub(began) < 59*time.Second {
			t.Errorf("%+v", v)
		}
		if math.Abs(v.FiredPerSecond-100) > 1 || v.Lateness.Count() < 5900 || v.Gaps < 59 {
			t.Errorf("%.1f a second, %d in all, %d gaps", v.FiredPerSecond, v.Lateness.Count(), v.Gaps)
		}
		if p50, p99 := v.Lateness.Quantile(.5), v.Lateness.Quantile(.995); p50 > 2*time.Millisecond ||
			p50 < 500*time.Microsecond || p99 < 30*time.Millisecond || p99 > 70*time.Millisecond {
			t.Errorf("p50 %v, p99.5 %v", p50, p99)
		}
		if len(v.Namespaces) != 2 || v.Namespaces[0].Name != "shop" || math.Abs(v.Namespaces[1].FiredPerSecond-1) > .1 {
			t.Errorf("%+v", v.Namespaces)
		}
		if len(v.Points) != 6 || v.Points[2].Fired != 1000 {
			t.Errorf("%d points, %d fired in the third", len(v.Points), v.Points[2].Fired)
		}
	})
}

// A new timerd counts from its start, and a restarted one again; one that goes and returns subtracts nothing and adds
// nothing twice.
func TestRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{}
		one := f.join("one", time.Now())
		f.fire(one, "shop", 1000, time.Millisecond)
		p := start(t, f)
		total := func() int64 {
			time.Sleep(slowPause)
			synctest.Wait()
			v := p.View()
			return v.Lateness.Count()
		}
		if n := total(); n != 0 {
			t.Errorf("%d of the earlier ones", n)
		}
		two := f.join("two", time.Now())
		f.fire(two, "shop", 10, time.Millisecond)
		if n := total(); n != 10 {
			t.Errorf("%d, want the 10 of the one that has come", n)
		}
		// the same instance id, for once
		f.change(func() { *one = schedule.Counts{Lateness: map[string]schedule.Lateness{}} })
		f.fire(one, "shop", 5, time.Millisecond)
		if n := total(); n != 15 {
			t.Errorf("%d, want 5 more", n)
		}
		away := f.members
		f.change(func() { f.members = f.members[:1] })
		total()
		f.fire(two, "shop", 3, time.Millisecond)
		f.change(func() { f.members = away })
		if n := total(); n != 18 {
			t.Errorf("%d, want the 3 of the one that was away", n)
		}
		old := f.join("long cut off", time.Now().Add(-time.Hour))
		f.fire(old, "shop", 1000, time.Millisecond)
		if n := total(); n != 18 {
			t.Errorf("%d, want no old ones", n)
		}
		f.fire(old, "shop", 1, time.Millisecond)
		if n := total(); n != 19 {
			t.Errorf("%d, want 1 more", n)
		}
		f.change(func() {
			f.members = append(f.members, query.Member{Self: schedule.Self{Instance: "counts were lost"}, Alive: true})
		})
		if n := total(); n != 19 {
			t.Errorf("%d, want none of one whose counts were lost", n)
		}
	})
}

// The past is 15 minutes long, however long it looks.
func TestLivePastIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{}
		one := f.join("one", time.Now())
		p := start(t, f)
		for i := range 400 {
			f.fire(one, fmt.Sprint("app", i/200), 10, time.Millisecond)
			time.Sleep(pointSpan)
			synctest.Wait()
		}
		v := p.View()
		if len(v.Points) < 89 || len(v.Points) > 91 || v.Lateness.Count() > 910 || v.Lateness.Count() < 890 {
			t.Errorf("%d points, %d fired", len(v.Points), v.Lateness.Count())
		}
		if len(v.Namespaces) != 1 || v.Namespaces[0].Name != "app1" || math.Abs(v.FiredPerSecond-1) > .01 {
			t.Errorf("%+v, %f", v.Namespaces, v.FiredPerSecond)
		}
	})
}

// While nobody looks it asks seldom, and as soon as somebody does, at once and each second.
func TestAsksWhileSomebodyLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{}
		p := start(t, f)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if f.times() > 62 {
			t.Errorf("asked %d times in 10 minutes", f.times())
		}
		time.Sleep(5 * time.Second)
		before := f.times()
		p.View()
		synctest.Wait()
		if f.times() != before+1 {
			t.Error("a look brings no sample")
		}
		for range 30 {
			p.View()
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := f.times() - before; n < 29 || n > 32 {
			t.Errorf("asked %d times in 30 seconds", n)
		}
	})
}

// The known numbers stay when the timerds cannot be asked.
func TestErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{}
		one := f.join("one", time.Now())
		p := start(t, f)
		f.fire(one, "shop", 10, time.Millisecond)
		time.Sleep(slowPause)
		synctest.Wait()
		f.change(func() { f.err = errors.New("away") })
		time.Sleep(slowPause)
		synctest.Wait()
		if v := p.View(); v.Lateness.Count() != 10 || time.Since(v.At) < slowPause {
			t.Errorf("%+v", v)
		}
		f.change(func() { f.err = nil })
		f.fire(one, "shop", 10, time.Millisecond)
		time.Sleep(slowPause)
		synctest.Wait()
		if v := p.View(); v.Lateness.Count() != 20 {
			t.Errorf("%+v", v)
		}
	})
}
