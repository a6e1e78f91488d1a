package retry

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/keys"
)

const window = 32

// tries counts how many requests of a lane may be tried at once.
func tries(l *lanes, name string) (all []*lane) {
	for len(all) < window {
		on := l.enter(name, window)
		if on == nil {
			break
		}
		all = append(all, on)
	}
	return all
}

func TestLanesShareTheWindow(t *testing.T) {
	t.Parallel()
	l := newLanes(timerShare, 1)
	trusted := l.enter("trusted", window)
	l.leave(trusted, works)
	fresh := tries(&l, "new")
	if len(fresh) != window/timerShare {
		t.Errorf("%d tries in a new lane, want %d", len(fresh), window/timerShare)
	}
	if l.enter("another", window) != nil {
		t.Error("new lanes fill more than their share together")
	}
	if got := len(tries(&l, "trusted")); got != window {
		t.Errorf("%d tries in a trusted lane, want %d", got, window)
	}
	for i, on := range fresh {
		if news := l.leave(on, fails); news != (i == 0) {
			t.Errorf("failure %d is news: %v", i+1, news)
		}
	}
	if got := tries(&l, "new"); len(got) != 1 {
		t.Errorf("%d tries in a lane that fails, want 1", len(got))
	}
	for i := range window {
		if on := l.enter(fmt.Sprint("failing", i), window); on != nil && i >= window/timerShare {
			t.Error("failing lanes fill more than their share together")
		}
	}
}

func TestLanesThatWorkAgain(t *testing.T) {
	t.Parallel()
	l := newLanes(timerShare, 1)
	l.leave(l.enter("x", window), fails)
	probe := l.enter("x", window)
	if !l.failing("x") || l.enter("x", window) != nil {
		t.Fatal("a lane that fails takes more than one try")
	}
	l.leave(probe, works)
	if all := tries(&l, "x"); l.failing("x") || len(all) != window || l.untrusted != 0 {
		t.Errorf("%d tries in a lane that works again, %d without trust", len(all), l.untrusted)
	} else {
		l.leave(all[0], fails) // the others are without trust now
		for _, on := range all[1:] {
			l.leave(on, nothing)
		}
	}
	l.leave(l.enter("x", window), nothing) // says nothing
	if l.untrusted != 0 || !l.failing("x") {
		t.Errorf("%d tries without trust, want none", l.untrusted)
	}
	for i := range 3 * maxLanes {
		l.leave(l.enter(fmt.Sprint(i), window), fails)
	}
	if len(l.known) > maxLanes {
		t.Errorf("%d lanes are remembered", len(l.known))
	}
}

// A server that works may fill half of the window, whatever lanes its requests are of.
func TestNoServerFillsTheWindow(t *testing.T) {
	t.Parallel()
	c := &Consumer{Window: window, servers: newLanes(timerShare, serverShare), timers: newLanes(timerShare, 1)}
	through := func(server string, slot int) []passage {
		return []passage{{&c.servers, laneOfServer(server)}, {&c.timers, laneOfTimer(keys.SlotPartition(slot))}}
	}
	carryOut := func(server string, slot int, v verdict) outcome {
		on, result := c.enter(through(server, slot))
		if result == carriedOut {
			c.leave(through(server, slot), on, v)
		}
		return result
	}
	for slot := range 100 {
		carryOut("a", slot, verdict{lane: works, server: works})
		carryOut("b", 1000+slot, verdict{lane: works, server: works})
	}
	var silent [][]*lane
	for slot := range 100 {
		if on, result := c.enter(through("a", slot)); result == carriedOut {
			silent = append(silent, on)
		}
	}
	if len(silent) != window/serverShare {
		t.Errorf("%d tries on one server, want %d", len(silent), window/serverShare)
	}
	if result := carryOut("b", 1000, verdict{lane: works, server: works}); result != carriedOut {
		t.Errorf("another server: %v", result)
	}
	for i, on := range silent {
		c.leave(through("a", i), on, verdict{server: fails})
	}
	on, result := c.enter(through("a", 0))
	if result != carriedOut {
		t.Errorf("a server that fails is not tried: %v", result)
	}
	for slot := range 100 {
		if _, result := c.enter(through("a", slot)); result != failing {
			t.Fatalf("slot %d of a server that fails: %v", slot, result)
		}
	}
	if c.timers.untrusted != 0 || c.timers.failing(laneOfTimer(keys.SlotPartition(0))) {
		t.Error("its slots are blamed")
	}
	c.leave(through("a", 0), on, verdict{lane: works, server: works})
	if result := carryOut("a", 50, verdict{lane: works, server: works}); result != carriedOut {
		t.Errorf("a server that works again: %v", result)
	}
}

func TestWaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSettling()
		for range 10 * waveSize {
			s.addToWave(nil, time.Minute)
		}
		at := map[time.Time]int{}
		_, back := s.take()
		for _, b := range back {
			at[b.at]++
			if wait := time.Until(b.at); wait < time.Minute || wait > time.Minute+11*waveEvery {
				t.Errorf("comes after %v", wait)
			}
		}
		if len(at) != 10 || s.pause() != waveEvery {
			t.Errorf("%d waves, and a burst every %v", len(at), s.pause())
		}
		time.Sleep(70 * time.Second)
		if s.take(); len(s.waves) != 0 || s.waiting != 0 || s.pause() != settleEvery {
			t.Errorf("%d waves are remembered, of %d requests", len(s.waves), s.waiting)
		}
	})
}

// The more wait the later each one comes again, so that they leave time for others, but within longestAway.
func TestCrowdComesAgainLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSettling()
		const n = 10_000
		for range n {
			s.addToWave(nil, firstPause)
		}
		_, back := s.take()
		for i, b := range back {
			least := max(min(time.Duration(i)*spacing, longestAway), firstPause)
			// Those that are all to come at the end of longestAway fill waves beyond it.
			most := least + 2*waveEvery + time.Duration(max(i-int(longestAway/spacing), 0)/waveSize)*waveEvery
			if wait := time.Until(b.at); wait < least || wait > most {
				t.Fatalf("number %d comes after %v, want %v to %v", i, wait, least, most)
			}
		}
	})
}

// What is given back comes again when it should whatever happens to the wall clock meanwhile.
func TestGivingBackIsIndependentOfTheWallClock(t *testing.T) {
	t.Parallel()
	s := newSettling()
	s.addBack(nil, time.Minute)
	s.addToWave(nil, time.Minute)
	_, back := s.take()
	for _, b := range back {
		if wait := time.Until(b.at); wait < 59*time.Second || wait > time.Minute+waveEvery {
			t.Errorf("it comes again after %s, want a minute", wait)
		}
		if !strings.Contains(b.at.String(), " m=") {
			t.Errorf("%s is by the wall clock", b.at)
		}
	}
}
