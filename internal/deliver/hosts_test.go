package deliver

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

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

// A rate is kept over any second, and postponed deliveries come back in their turn, so that all get through.
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

// Failures that are far apart do not add up, however rarely forget is called.
func TestIdleHostsAreForgottenAtTheirNextCall(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	h, p, e := newHosts(func(string, time.Duration) {}), &places{most: 100}, limits(1, 0)
	h.now = func() time.Time { return now }
	for range 2 * failuresInRow {
		call, wait := h.begin("rare:1", e, p)
		if wait != nil {
			t.Fatalf("held back: %+v", wait)
		}
		call.end(true, false)
		now = now.Add(hostIdle)
	}
	if n := h.openCircuits(); n != 0 {
		t.Errorf("%d open circuits", n)
	}
}

// Of hosts that are called for the first time and let each call hang, 5,000 are due at one moment. A host that has
// answered before is not held up for a moment, whenever it is called.
func TestStrangersNeverTakeAllPlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: DefaultCalls}, limits(DefaultConcurrency, 0)
		living := func() {
			call, wait := h.begin("living:1", e, p)
			if wait != nil {
				t.Fatalf("the living host is held back: %+v", wait)
			}
			time.Sleep(time.Millisecond)
			call.end(false, false)
		}
		living()
		called := 0
		for round := range 60 { // 60 s: the calls that hang end three times
			for i := range 5000 {
				if call, wait := h.begin(fmt.Sprintf("dead-%d:1", i), e, p); wait == nil {
					called++
					time.AfterFunc(15*time.Second, func() { call.end(true, false) })
				}
			}
			if p.taken > DefaultCalls/2 {
				t.Fatalf("%d places are with hosts that never answered in round %d", p.taken, round)
			}
			for range 5 {
				living()
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if called < 5000 {
			t.Errorf("%d calls of 5,000 hosts in a minute", called)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if p.taken != 0 || p.slow != 0 || p.by != [standings]int{} {
			t.Errorf("%d places are taken in the end, %d by slow calls, %v", p.taken, p.slow, p.by)
		}
	})
}

// Hosts that answered until now die in one moment, more of them than there are places. One that lives, and is called
// all the time, is not held up.
func TestMoreHostsDieTogetherThanThereArePlaces(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, p, e := newHosts(func(string, time.Duration) {}), &places{most: DefaultCalls}, limits(DefaultConcurrency, 0)
		answer := func(name string) {
			call, wait := h.begin(name, e, p)
			if wait != nil {
				t.Fatalf("%s is held back: %+v", name, wait)
			}
			time.Sleep(time.Microsecond)
			call.end(false, false)
		}
		for i := range 5000 {
			answer(fmt.Sprintf("dead-%d:1", i))
		}
		answer("living:1")
		for i := range 5000 {
			if call, wait := h.begin(fmt.Sprintf("dead-%d:1", i), e, p); wait == nil {
				time.AfterFunc(15*time.Second, func() { call.end(true, false) })
			}
			if i%100 == 0 {
				answer("living:1")
			}
		}
		for range 30 {
			answer("living:1")
			time.Sleep(time.Second)
		}
	})
}
