package deliver

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestCircuitOpens(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for _, test := range []struct {
		name  string
		fails func(i int) bool
		at    int // the call that opens it; 0: none of 1,000
	}{
		{"never", func(int) bool { return false }, 0},
		{"always", func(int) bool { return true }, 20},
		{"nineteen in a row", func(i int) bool { return i%21 < 19 && i < 99 }, 100}, // and 50 % of 100
		{"every second", func(i int) bool { return i%2 == 0 }, 100},
		{"every third", func(i int) bool { return i%3 == 0 }, 0},
		{"the older ones do not count", func(i int) bool { return i < 60 && i%4 == 0 || i >= 60 && i%5 < 2 }, 0},
		{"after many successes", func(i int) bool { return i >= 500 }, 520},
	} {
		var c circuit
		opened := 0
		for i := range 1000 {
			if _, ok := c.admit(now, time.Second); !ok {
				break
			}
			if c.end(now, test.fails(i), c.begin()) {
				opened = i + 1
				break
			}
		}
		if opened != test.at {
			t.Errorf("%s: opened by call %d, want %d", test.name, opened, test.at)
		}
	}
}

func TestCircuitDoublesAndCloses(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	var c circuit
	for range failuresInRow {
		c.end(now, true, c.begin())
	}
	want := firstOpen
	for range 10 {
		if wait, ok := c.admit(now, time.Second); ok || wait != want {
			t.Fatalf("admitted %t, wait %v, want %v", ok, wait, want)
		}
		if c.end(now, false, false) || c.end(now, true, false) {
			t.Fatal("a call that was begun before changed it")
		}
		now = now.Add(want)
		if _, ok := c.admit(now, time.Second); !ok || !c.begin() {
			t.Fatal("no probe when its time was over")
		}
		if wait, ok := c.admit(now, time.Second); ok || wait != time.Second {
			t.Fatalf("a second probe: %t, %v", ok, wait)
		}
		c.end(now, true, true)
		want = min(2*want, 10*time.Minute)
	}
	now = now.Add(want)
	c.admit(now, time.Second)
	c.abandon(c.begin()) // cut short: the next one is the probe
	if _, ok := c.admit(now, time.Second); !ok {
		t.Fatal("no probe after one was cut short")
	}
	if !c.end(now, false, c.begin()) || c.open() {
		t.Fatal("a probe that worked did not close it")
	}
	for i := range failuresInRow {
		if changed := c.end(now, true, c.begin()); changed != (i == failuresInRow-1) {
			t.Fatalf("changed %t by failure %d after it was closed", changed, i+1)
		}
	}
	if c.length != firstOpen {
		t.Errorf("open for %v, want %v", c.length, firstOpen)
	}
}

// Whatever happens, there is one probe at a time, no call within the time of an open circuit, and always a way out.
func TestRandomCircuits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1_700_000_000, 0)
		var c circuit
		var underWay []bool // probe
		probes := 0
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds")) * time.Second)
			case 1:
				wasOpen, until := c.open(), c.until
				wait, ok := c.admit(now, time.Minute)
				if !ok && (wait <= 0 || wait > longestOpen) {
					t.Fatalf("wait %v", wait)
				}
				if ok && wasOpen && now.Before(until) {
					t.Fatal("admitted before its time")
				}
				if ok {
					probe := c.begin()
					if probe != wasOpen {
						t.Fatalf("probe %t of a circuit that is open: %t", probe, wasOpen)
					}
					if probe {
						probes++
					}
					underWay = append(underWay, probe)
				}
			default:
				if len(underWay) == 0 {
					continue
				}
				i := rapid.IntRange(0, len(underWay)-1).Draw(t, "call")
				probe := underWay[i]
				underWay = append(underWay[:i], underWay[i+1:]...)
				if probe {
					probes--
				}
				if rapid.Bool().Draw(t, "cut short") {
					c.abandon(probe)
				} else {
					c.end(now, rapid.IntRange(0, 9).Draw(t, "outcome") > 0, probe)
				}
			}
			if probes > 1 || probes == 1 != c.probing {
				t.Fatalf("%d probes, probing %t", probes, c.probing)
			}
			failed := 0
			for _, f := range c.outcomes {
				if f {
					failed++
				}
			}
			if failed != c.failed || c.row > c.failed {
				t.Fatalf("%d failures counted, %d there, %d in a row", c.failed, failed, c.row)
			}
		}
	})
}

func limits(concurrency int, rate float64) *Endpoint {
	return &Endpoint{Timeout: 15 * time.Second, Concurrency: concurrency, Rate: rate}
}

func TestHostConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: 100}, limits(2, 0)
		first, _ := h.begin("a:1", e, p)
		second, _ := h.begin("a:1", e, p)
		if first == nil || second == nil {
			t.Fatal("no two calls")
		}
		var waits []time.Duration
		for range 3 {
			call, wait := h.begin("a:1", e, p)
			if call != nil || wait.circuit {
				t.Fatalf("a third call, or %+v", wait)
			}
			waits = append(waits, wait.wait)
		}
		if waits[0] < leastWait || waits[1] <= waits[0] || waits[2] <= waits[1] {
			t.Errorf("held back for %v, want one after the other", waits)
		}
		if other, _ := h.begin("b:1", e, p); other == nil {
			t.Error("another host is held back")
		} else {
			other.end(false, false)
		}
		first.end(false, false)
		if third, _ := h.begin("a:1", e, p); third == nil {
			t.Error("no call though one has ended")
		} else {
			third.end(false, false)
		}
		second.end(false, true)
	})
}

// A rate is kept over any second, and what is held back comes back in its turn, so that all of it gets through.
func TestHostRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: 1000}, limits(1000, 50)
		const all = 500
		began := time.Now()
		times := make(chan time.Duration, all)
		held := make(chan int, all)
		for range all {
			go func() {
				n := 0
				for {
					call, wait := h.begin("a:1", e, p)
					if wait == nil {
						times <- time.Since(began)
						held <- n
						call.end(false, false)
						return
					}
					n++
					time.Sleep(wait.wait)
				}
			}()
		}
		perSecond := map[int]int{}
		worst, most := time.Duration(0), 0
		for range all {
			at := <-times
			worst, most = max(worst, at), max(most, <-held)
			perSecond[int(at/time.Second)]++
		}
		for second, n := range perSecond {
			if n > 50+6 {
				t.Errorf("%d calls in second %d, want at most 56", n, second)
			}
		}
		if worst > 12*time.Second || most > 5 {
			t.Errorf("the last one after %v, the unluckiest was held back %d times", worst, most)
		}
	})
}

// Hosts that let every call hang take half of the places at most, and a host that answers always finds one.
func TestHangingHostsLeavePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 400
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: most}, limits(64, 0)
		var taken atomic.Int64
		for round := range 200 { // 20 s
			for i := range 20 {
				call, wait := h.begin(fmt.Sprintf("dead-%d:1", (20*round+i)%100), e, p)
				if wait != nil {
					continue
				}
				taken.Add(1)
				time.AfterFunc(15*time.Second, func() {
					call.end(true, false)
					taken.Add(-1)
				})
			}
			if taken.Load() > most/2+220 {
				t.Fatalf("%d of %d places taken in round %d", taken.Load(), most, round)
			}
			for i := range 50 {
				call, wait := h.begin(fmt.Sprintf("living-%d:1", i), e, p)
				if wait != nil {
					t.Fatalf("a living host is held back in round %d: %+v", round, wait)
				}
				call.end(false, false)
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		time.Sleep(20 * time.Second)
	})
}

// Of any number of hosts that let every call hang, each called for the first time, a host that has answered is not held
// up, though a call of its own is slow now and then.
func TestMoreHangingHostsThanPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most, perRound = 400, 10
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: most}, limits(64, 0)
		living := func(round int) (slow *call) {
			for i := range 50 {
				call, wait := h.begin(fmt.Sprintf("living-%d:1", i), e, p)
				if wait != nil {
					t.Fatalf("a living host is held back in round %d: %+v", round, wait)
				}
				if round%15 == 1 && i == 0 {
					slow = call
					continue
				}
				call.end(false, false)
			}
			return slow
		}
		living(0)
		var slow *call
		for round := range 200 { // 20 s
			for i := range perRound {
				if call, wait := h.begin(fmt.Sprintf("dead-%d:1", perRound*round+i), e, p); wait == nil {
					time.AfterFunc(15*time.Second, func() { call.end(true, false) })
				}
			}
			if p.taken >= most {
				t.Fatalf("all %d places are taken in round %d", p.taken, round)
			}
			if next := living(round); next != nil {
				slow = next
			} else if round%15 == 14 && slow != nil {
				slow.end(false, false) // after 1.3 s
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		slow.end(false, false)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if p.taken != 0 || p.slow != 0 {
			t.Errorf("%d places are taken in the end, %d by slow calls", p.taken, p.slow)
		}
	})
}

// Hosts that die in one moment, with as many deliveries due as they may be called at a time, leave places.
func TestHostsThatDieTogetherLeavePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: DefaultCalls}, limits(DefaultConcurrency, 0)
		name := func(host int) string { return fmt.Sprintf("dead-%d:1", host) }
		for host := range DefaultCalls / DefaultConcurrency { // they have answered until now
			call, _ := h.begin(name(host), e, p)
			call.end(false, false)
		}
		var calls []*call
		for host := range DefaultCalls / DefaultConcurrency {
			for range 2 * DefaultConcurrency {
				if call, wait := h.begin(name(host), e, p); wait == nil {
					calls = append(calls, call)
				}
			}
		}
		if free := p.most - p.taken; free < 100 {
			t.Errorf("%d places are left", free)
		}
		for _, call := range calls {
			call.end(true, false)
		}
	})
}

// However much waits for its turn at a slow host, none waits for hours: the host may have come back by then.
func TestTurnsOfSlowHostsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: 1000}, limits(1, 0)
		slow, _ := h.begin("a:1", e, p)
		time.Sleep(15 * time.Second)
		slow.end(false, false)
		slow, _ = h.begin("a:1", e, p)
		for i := range 10_000 {
			if _, wait := h.begin("a:1", e, p); wait.wait > longestTurn {
				t.Fatalf("number %d waits %v", i, wait.wait)
			}
		}
		slow.end(false, false)
	})
}

func TestHostsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: 100}, limits(1, 0)
		fail := func(name string, times int) {
			for range times {
				call, _ := h.begin(name, e, p)
				call.end(true, false)
			}
		}
		fail("open:1", failuresInRow)
		fail("failing:1", 3)
		busy, _ := h.begin("busy:1", e, p)
		time.Sleep(hostIdle)
		h.forget()
		if len(h.all) != 2 || h.all["open:1"] == nil || h.all["busy:1"] == nil || h.openCircuits() != 1 {
			t.Errorf("remembered %v", h.all)
		}
		busy.end(false, false)
		time.Sleep(openIdle)
		h.forget()
		if len(h.all) != 0 || h.openCircuits() != 0 {
			t.Errorf("remembered %v, %d open", h.all, h.openCircuits())
		}
		for i := range maxHosts + 1000 {
			call, _ := h.begin(fmt.Sprintf("%d.attacker:1", i), e, p)
			call.end(true, false)
		}
		if len(h.all) > maxHosts {
			t.Errorf("%d hosts remembered, want at most %d", len(h.all), maxHosts)
		}
	})
}
