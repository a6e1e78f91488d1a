package faults_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
)

// Data that was lost is told until somebody acknowledges it, also by a timerd that starts afterwards.
func TestOutagesThatLoseData(t *testing.T) {
	t.Parallel()
	x := newScene(t)
	const acknowledge = `timerd status --acknowledge`
	lost := outage{level: diag.Fail, check: diag.CheckLosses, fix: acknowledge}

	// A flush without timers is none.
	x.quiet()
	x.later(1)
	x.Do("FLUSHDB")
	x.later(2)
	flushed, deleted, older := lost, lost, lost
	flushed.name = "FLUSHDB"
	flushed.text = "Redis has lost its data, flushed or replaced by an older copy, as was noticed at .*; it had 7 timers at the last count, at "
	flushed.bring = func(x *scene) {
		x.set(7)
		x.Do("FLUSHDB")
	}
	older.name = "an older RDB put back"
	older.text = "Redis has lost its data, .* it had 5 timers at the last count, at "
	older.bring = func(x *scene) {
		dir := filepath.Join(t.TempDir(), "older")
		x.Redis.Stop()
		if err := os.CopyFS(dir, os.DirFS(x.Redis.Dir())); err != nil {
			t.Fatal(err)
		}
		x.Redis.Start()
		x.p.AwaitReady(true)
		x.set(5)
		x.later(4)
		x.Redis.Stop()
		if err := os.RemoveAll(filepath.Join(x.Redis.Dir(), "appendonlydir")); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(x.Redis.Dir(), "appendonlydir"), os.DirFS(filepath.Join(dir, "appendonlydir"))); err != nil {
			t.Fatal(err)
		}
		x.Redis.Start()
	}
	deleted.name = "stream TIMERS deleted"
	deleted.text = "the stream TIMERS was deleted, or is an older one, .* it had 1 events at the last count, at .*, which consumers may not all have got"
	deleted.bring = func(x *scene) {
		x.Do("FCALL", "timer_set", 1, "shop:order:timeout:soon", "p", "PX", 50)
		x.counted(func(c count) bool { return c.Events == 1 })
		if err := x.JS.DeleteStream(t.Context(), "TIMERS"); err != nil {
			t.Fatal(err)
		}
	}
	x.play(flushed, older)

	// It stays over restarts of all that know of it.
	deleted.end = nil
	deleted.fix = ""
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
