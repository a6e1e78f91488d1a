package service

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// What was counted is said once a second at most, and once in a while though nothing has changed.
func TestCountsAreSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counts{}
		if said := c.say(); said == nil || len(said.Lateness) != 0 {
			t.Errorf("at first: %+v", said)
		}
		said := 0
		for range 100 {
			c.fired("shop", time.Millisecond)
			c.add(func(all *schedule.Counts) { all.Gaps++ })
			time.Sleep(100 * time.Millisecond)
			if now := c.say(); now != nil {
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
			if c.say() != nil {
				said++
			}
		}
		if said < 3 || said > 4 {
			t.Errorf("said %d times in 30 s in which nothing happened", said)
		}
		before := c.say()
		c.fired("shop", time.Millisecond)
		if before != nil {
			t.Errorf("%+v", before)
		}
	})
}
