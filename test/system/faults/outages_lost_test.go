package faults_test

import (
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

const acknowledge = `timerd status --acknowledge`

// lost is the row of data that was lost.
func lost() outage { return outage{level: diag.Fail, check: diag.CheckLosses, fix: acknowledge} }

// Data lost by Redis is reported until somebody acknowledges it.
func TestOutagesThatLoseTimers(t *testing.T) {
	t.Parallel()
	x := newScene(t)

	// A flush without timers is none.
	x.quiet()
	x.later(1)
	x.Do("FLUSHDB")
	x.later(2)
	flushed, older := lost(), lost()
	flushed.name = "FLUSHDB"
	flushed.text = "Redis has lost its data, flushed or replaced by an older copy, as was noticed at .*; it had 7 " +
		"timers at the last count, at "
	flushed.bring = func(x *scene) {
		x.set(7)
		x.Do("FLUSHDB")
	}
	older.name = "an older RDB put back"
	older.text = "Redis has lost its data, .* it had 5 timers at the last count, at "
	older.bring = func(x *scene) {
		folder := x.BackUp()
		x.p.AwaitReady(true)
		x.set(5)
		x.later(4)
		x.PutBack(folder)
	}
	torn := lost()
	torn.name = "a sorted set of timerd's deleted"
	torn.text = "[5-7] timers had vanished from the schedule of Redis, as was noticed at .*: somebody has deleted keys"
	torn.bring = func(x *scene) {
		x.set(7)
		x.Do("DEL", keys.Single.Due())
		testenv.Eventually(t, system.Patience, func() bool {
			return fmt.Sprint(x.Do("ZCARD", keys.Single.Due())) == "7"
		}, "the timers to be put back")
	}
	x.play(torn, flushed, older)
	x.p.Stop()
}

// So is a stream that was deleted, also by a timerd that starts afterwards.
func TestOutagesThatLoseEvents(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	deleted := lost()
	deleted.name = "stream TIMERS deleted"
	deleted.text = "the stream TIMERS was deleted, or is an older one, .* it had 1 events at the last count, at .*, " +
		"which consumers may not all have got"
	deleted.bring = func(x *scene) {
		x.Do("FCALL", "timer_set", 1, "shop:order:timeout:soon", "p", "PX", 50)
		x.counted(func(c count) bool { return c.Events == 1 })
		if err := x.JS.DeleteStream(t.Context(), "TIMERS"); err != nil {
			t.Fatal(err)
		}
	}

	// It stays over restarts of all that know of it.
	x.quiet()
	deleted.bring(x)
	x.tells(deleted)
	x.p.Stop()
	x.Redis.Restart()
	x.NATS.Restart()
	x.start()
	fix, _ := x.tells(deleted)
	t.Logf("%s: fix: %s", deleted.name, fix)
	x.do(acknowledge)
	x.quiet()

	// So does the acknowledgement, also where Redis is flushed again, or NATS is: neither has it alone.
	x.p.Stop()
	x.Redis.Restart()
	x.NATS.Restart()
	x.start()
	x.later(2)
	x.quiet()
	x.Do("FLUSHDB")
	x.later(2)
	x.quiet()
	x.p.Stop()
}
