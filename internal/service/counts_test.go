package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// Counts are reported once a second at most, and now and then without a change.
func TestCountsAreReportedAtMostOnceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counts{}
		if said := c.next(); said == nil || len(said.Lateness) != 0 {
			t.Errorf("at first: %+v", said)
		}
		said := 0
		for range 100 {
			c.fired("shop", time.Millisecond)
			c.add(func(all *schedule.Counts) { all.Gaps++ })
			time.Sleep(100 * time.Millisecond)
			if now := c.next(); now != nil {
				said++
				l := now.Lateness["shop"]
				if l.Count() == 0 || now.Gaps != l.Count() {
					t.Errorf("%+v", now)
				}
			}
		}
		if said < 9 || said > 12 {
			t.Errorf("said %d times in 10 s", said)
		}
		said = 0
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			if c.next() != nil {
				said++
			}
		}
		if said < 3 || said > 4 {
			t.Errorf("said %d times in 30 s in which nothing happened", said)
		}
		before := c.next()
		c.fired("shop", time.Millisecond)
		if before != nil {
			t.Errorf("%+v", before)
		}
	})
}

// Stops and steps of clocks are said for ten minutes, the last five of each. Who notices the same stop says it once.
func TestStopsAndClockStepsAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counts{}
		said := func(stops, steps int) schedule.Counts {
			t.Helper()
			time.Sleep(time.Second)
			now := c.next()
			if now == nil {
				t.Fatal("nothing is said")
			}
			if len(now.Stops) != stops || len(now.Steps) != steps {
				t.Fatalf("%+v, want %d stops and %d steps", now, stops, steps)
			}
			return *now
		}
		said(0, 0)
		c.noteStop(4*time.Second, false)
		time.Sleep(100 * time.Millisecond)
		c.noteStop(5*time.Second, true)
		c.noteStep("r:1", schedule.ClockStep{At: time.UnixMilli(1000), By: -time.Hour})
		if now := said(1, 1); !now.Stops[0].Frozen || now.Stops[0].For != 5000 ||
			now.Steps[0] != (schedule.Step{Server: "r:1", At: 1000, By: -3600_000}) {
			t.Errorf("%+v", now)
		}
		time.Sleep(9 * time.Minute)
		c.noteStop(4*time.Second, true)
		said(2, 1)
		time.Sleep(time.Minute)
		said(1, 0)
		for range 10 {
			c.noteStep("", schedule.ClockStep{By: time.Hour})
		}
		said(1, 5)
		time.Sleep(10 * time.Minute)
		said(0, 0)
	})
}
