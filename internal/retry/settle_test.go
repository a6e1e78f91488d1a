package retry

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReturnsComeInWaves(t *testing.T) {
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
			// Requests that all return at the end of longestAway fill waves beyond it.
			most := least + 2*waveEvery + time.Duration(max(i-int(longestAway/spacing), 0)/waveSize)*waveEvery
			if wait := time.Until(b.at); wait < least || wait > most {
				t.Fatalf("number %d comes after %v, want %v to %v", i, wait, least, most)
			}
		}
	})
}

// A request given back comes again at the right time, whatever the wall clock does meanwhile.
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
