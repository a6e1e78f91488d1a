package faults_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
)

// A NATS server that could not write, because its disk was full, is named with its reason, and with the fix that works.
func TestOutageOfTheDisk(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	c := x.Collect()
	fire := func(n int) {
		x.Do("FCALL", "timer_set", 1, fmt.Sprint("shop:order:timeout:", n), "p", "PX", 20)
	}
	fire(1)
	x.Expect(c, "shop:order:timeout:1=p")
	x.play(outage{
		name: "a full disk", level: diag.Fail, check: diag.CheckStreams, ready: "jetstream",
		text:   `TIMERS: the NATS server cannot write it, and answers no message: write .*/TIMERS/msgs/1.blk: no space left on device`,
		advice: "make space on the disk of the NATS server, or repair the named cause, and then restart nats-server",
		bring: func(*scene) {
			x.NATS.FillDisk("TIMERS")
			fire(2)
			fire(3)
		},
		end: func(x *scene) {
			x.NATS.Restart()
			x.Expect(c, "shop:order:timeout:1=p", "shop:order:timeout:2=p", "shop:order:timeout:3=p")
		},
	})
	x.p.Stop()
}
