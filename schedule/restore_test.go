package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// torn returns how much a scan finds to be lost.
func (x *index) torn() (missing int64) {
	x.t.Helper()
	found, err := x.ScanDue(x.t.Context(), schedule.Forever, time.Minute)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, torn := range found.Torn {
		missing += torn.Missing
	}
	return missing
}

// restores puts the index in order again, and compares how many timers were put back, and how many got no payload.
func (x *index) restores(timers, bare int64) {
	x.t.Helper()
	got, err := x.Restore(x.t.Context(), keys.Single, time.Second)
	if err != nil || got.Timers != timers || got.Bare != bare {
		x.t.Errorf("restored %+v, %v; want %d timers, %d bare", got, err, timers, bare)
	}
	if missing := x.torn(); missing != 0 {
		x.t.Errorf("%d are missing still", missing)
	}
}

// What somebody has deleted of the index comes back from the other half of it.
func TestLostHalvesAreRestored(t *testing.T) {
	t.Parallel()
	const later, library, gone, waits, claimed, held, plan = "a:b:later:1", "a:b:library:1", "a:b:gone:1", "a:b:waits:1", "a:b:claimed:1", "a:b:held:1", "a:b:plan:1"
	for _, c := range []struct {
		name string
		lose []any
		lost int64 // as a scan finds
		bare int64
	}{
		{"due", []any{"DEL", keys.Single.Due()}, 5, 0},
		{"a member of due", []any{"ZREM", keys.Single.Due(), library}, 1, 0},
		{"data", []any{"DEL", keys.Single.Data()}, 5, 5},
		{"firing", []any{"DEL", keys.Single.Firing()}, 2, 0},
		{"firingdata", []any{"DEL", keys.Single.FiringData()}, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			for _, key := range []string{claimed, held} {
				x.do("FCALL", "timer_set", 1, key, "claimed", "PX", brief)
			}
			x.awaitExpiry(held)
			x.claims(claimed+" deadline claimed", held+" deadline claimed")
			x.do("SET", later, "plain", "PX", 60000)
			x.observe(touched(later))
			x.do("FCALL", "timer_set", 1, library, "library", "PX", 60000, "LATE", 5000)
			x.do("FCALL", "timer_set", 1, gone, "gone", "PX", 60000)
			x.do("FCALL", "timer_set", 1, waits, "waits", "PX", 60000)
			x.do("FCALL", "timer_set", 1, plan, "plan", "PX", 60000)
			dues := fmt.Sprint(x.do("ZRANGE", keys.Single.Due(), 0, -1, "WITHSCORES"))
			before := fmt.Sprint(x.do("HGETALL", keys.Single.Data()), x.do("HGETALL", keys.Single.FiringData()), x.do("ZRANGE", keys.Single.Firing(), 0, -1))
			if missing := x.torn(); missing != 0 {
				t.Fatalf("%d are missing before", missing)
			}
			x.do(c.lose...)
			if missing := x.torn(); missing != c.lost {
				t.Errorf("%d are missing, want %d", missing, c.lost)
			}
			x.restores(c.lost-c.bare, c.bare)
			if again := fmt.Sprint(x.do("ZRANGE", keys.Single.Due(), 0, -1, "WITHSCORES")); again != dues {
				t.Errorf("due are %s, want %s", again, dues)
			}
			after := fmt.Sprint(x.do("HGETALL", keys.Single.Data()), x.do("HGETALL", keys.Single.FiringData()), x.do("ZRANGE", keys.Single.Firing(), 0, -1))
			if c.bare == 0 && len(after) != len(before) {
				t.Errorf("the index is\n%s\nwant\n%s", after, before)
			}
			x.restores(0, 0)
		})
	}
}

// Events of timers that due has lost come before they are put back: the payloads stay, and each fires once, or not at all where it was
// deleted.
func TestEventsOfLostTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const set, runOut, deleted = "a:b:set:1", "a:b:out:1", "a:b:deleted:1"
	x.do("FCALL", "timer_set", 1, set, "set", "PX", 60000)
	x.do("FCALL", "timer_set", 1, deleted, "deleted", "PX", 60000)
	x.do("FCALL", "timer_set", 1, runOut, "out", "PX", brief)
	due := x.due(runOut)
	x.do("DEL", keys.Single.Due())
	x.awaitClock(due)
	x.do("EXPIRE", set, 3600)
	x.do("DEL", deleted)
	x.observe(touched(set), gone(deleted), expired(runOut), audited(set))
	x.claims(runOut + " expired out")
	x.restores(0, 0)
	if record := x.do("HGET", keys.Single.Data(), set); record != ":set" {
		t.Errorf("the record is %v, want the payload", record)
	}
	x.claims()
}

// A timer whose key is gone when it is put back fires at once: it may have run out.
func TestLostTimersWithoutKeys(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "v", "PX", brief)
	due := x.due(k)
	x.do("ZREM", keys.Single.Due(), k)
	x.awaitClock(due)
	x.restores(1, 0)
	x.claims(k + " deadline v")
}
