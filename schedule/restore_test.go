package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// torn returns a scan's numbers of lost records or members, and of firings.
func (x *index) torn() (missing, firing int64) {
	x.t.Helper()
	found, err := x.ScanDue(x.t.Context(), schedule.Forever, time.Minute)
	if err != nil {
		x.t.Fatal(err)
	}
	for _, torn := range found.Torn {
		missing += torn.Missing
	}
	return missing, found.Firing
}

// restores brings the index in order, and compares the result except for the first due time.
func (x *index) restores(want schedule.Restored) {
	x.t.Helper()
	got, err := x.Restore(x.t.Context(), keys.Single, time.Second)
	got.Due = 0
	if err != nil || got != want {
		x.t.Errorf("restored %+v, %v; want %+v", got, err, want)
	}
	if missing, _ := x.torn(); missing != want.Unknown {
		x.t.Errorf("%d are missing still, want %d", missing, want.Unknown)
	}
}

// If somebody deletes one half of the index, it comes back from the other half.
func TestLostHalvesAreRestored(t *testing.T) {
	t.Parallel()
	const later, library, gone, waits = "a:b:later:1", "a:b:library:1", "a:b:gone:1", "a:b:waits:1"
	const claimed, held, plan = "a:b:claimed:1", "a:b:held:1", "a:b:plan:1"
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
			before := fmt.Sprint(x.do("HGETALL", keys.Single.Data()), x.do("HGETALL", keys.Single.FiringData()),
				x.do("ZRANGE", keys.Single.Firing(), 0, -1))
			if missing, _ := x.torn(); missing != 0 {
				t.Fatalf("%d are missing before", missing)
			}
			x.do(c.lose...)
			firings := int64(2)
			if c.name == "firing" {
				firings = 0
			}
			if missing, firing := x.torn(); missing != c.lost || firing != firings {
				t.Errorf("%d are missing of %d firings, want %d of %d", missing, firing, c.lost, firings)
			}
			x.restores(schedule.Restored{Timers: c.lost - c.bare, Bare: c.bare})
			if again := fmt.Sprint(x.do("ZRANGE", keys.Single.Due(), 0, -1, "WITHSCORES")); again != dues {
				t.Errorf("due are %s, want %s", again, dues)
			}
			after := fmt.Sprint(x.do("HGETALL", keys.Single.Data()), x.do("HGETALL", keys.Single.FiringData()),
				x.do("ZRANGE", keys.Single.Firing(), 0, -1))
			if c.bare == 0 && len(after) != len(before) {
				t.Errorf("the index is\n%s\nwant\n%s", after, before)
			}
			x.restores(schedule.Restored{})
		})
	}
}

// A timer that is due in the same ms as a firing of its key does not take that firing's place, although half of the
// firing is lost.
func TestLostHalvesOfFiringsKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	const other = "app1:b:c:other"
	for _, half := range []string{"member", "record"} {
		for _, all := range [][]string{{k}, {k, other}} {
			t.Run(fmt.Sprint(half, len(all)), func(t *testing.T) {
				t.Parallel()
				x := newIndex(t)
				due := x.redisNow() - 1
				set := func(payload string) (want []string) {
					for _, key := range all {
						x.do("FCALL", "timer_set", 1, key, payload, "PX", 60000)
						x.do("DEL", key)
						x.do("ZADD", keys.Single.Due(), "XX", due, key)
						want = append(want, key+" deadline "+payload)
					}
					return want
				}
				older := x.claims(set("older")...)
				for _, f := range older {
					if half == "member" {
						x.do("ZREM", keys.Single.Firing(), f.Ref)
					} else {
						x.do("HDEL", keys.Single.FiringData(), f.Ref)
					}
				}
				newer := x.claims(set("newer")...)
				for _, f := range newer {
					if slices.ContainsFunc(older, func(o schedule.Firing) bool { return o.Ref == f.Ref }) {
						t.Errorf("the newer timer fires as %s, as the older one does", f.Ref)
					}
				}
				if half == "member" {
					x.restores(schedule.Restored{Timers: int64(len(all))})
				} else {
					x.restores(schedule.Restored{Bare: int64(len(all))})
				}
			})
		}
	}
}

// Events of timers that due has lost come before they are put back: the payloads stay, and each fires once, or not at
// all where it was deleted.
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
	x.restores(schedule.Restored{})
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
	x.restores(schedule.Restored{Timers: 1})
	x.claims(k + " deadline v")
}

// A key fires, is set again with a short TTL, and runs out, and due has lost it: its tombstone is of the first timer.
// It fires all the same.
func TestLostTimersOfKeysThatHaveFired(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", brief)
	x.observe(touched(k))
	x.awaitExpiry(k)
	x.settle(x.claims(k + " deadline v1")[0])
	x.do("SET", k, "v2", "PX", brief)
	x.observe(touched(k))
	x.do("ZREM", keys.Single.Due(), k)
	x.awaitExpiry(k)
	x.restores(schedule.Restored{Timers: 1})
	x.claims(k + " deadline v2")
}

// A contested timer waits again for the event that decides about it.
func TestLostContestedTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.contest()
	x.do("DEL", keys.Single.Due())
	x.restores(schedule.Restored{Timers: 2})
	x.claims()
	x.observe(expired(k))
	x.claims(k + " expired v1")
}

// A record without a timer stays: a later version may use it.
func TestUnknownRecordsStay(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.damaged = true
	x.do("FCALL", "timer_set", 1, k, "v", "PX", 60000)
	x.do("HSET", keys.Single.Data(), ":token:", "1", ":a", "2")
	before := x.content()
	x.restores(schedule.Restored{Unknown: 2})
	if after := x.content(); after != before {
		t.Errorf("the index is\n%s\nwant\n%s", after, before)
	}
}

// Where some records are large, a call looks at as many as otherwise, but reads no more than it may.
func TestRestoringLargeRecordsTakesFewCalls(t *testing.T) {
	t.Parallel()
	rdb := testenv.Redis(t).Client()
	x := newIndexFor(t, rdb, rdb, 1000)
	x.seeded = true
	const n = 3000
	records := []any{"HSET", keys.Single.Data(), ":l:", ""}
	for i := range n {
		records = append(records, fmt.Sprint("a:b:c:", i), ":v")
	}
	x.do(records...)
	if calls := x.steps(func() { x.restores(schedule.Restored{Timers: n}) }); calls > n/20 {
		t.Errorf("%d calls for %d records", calls, n)
	}
}

// A record may be that of any unsettled firing of its key and size. Comparing it with large ones ends in time.
func TestRestoringComparesFewLargeRecords(t *testing.T) {
	t.Parallel()
	const size, firings = 100_000, 20
	rdb := testenv.Redis(t).Client()
	x := newIndexFor(t, rdb, rdb, size)
	for i := range firings {
		x.do("FCALL", "timer_set", 1, k, fmt.Sprintf("%0*d", size, i), "PX", 20)
		x.awaitExpiry(k)
		if n := len(x.claimFor(time.Hour).Firings); n != 1 {
			t.Fatalf("%d claimed, want 1", n)
		}
	}
	x.do("FCALL", "timer_set", 1, k, fmt.Sprintf("%0*d", size, firings), "PX", 20)
	x.awaitExpiry(k)
	x.do("ZREM", keys.Single.Due(), k)
	before := x.calls("hget")
	x.restores(schedule.Restored{Timers: 1})
	if reads := x.calls("hget") - before; reads > firings*3/4 { // the pages themselves take eight or so
		t.Errorf("%d records of %d bytes were read to compare one", reads, size)
	}
}

// steps returns the number of steps run meanwhile. The index needs a server of its own.
func (x *index) steps(meanwhile func()) int {
	before := x.calls("fcall") + x.calls("evalsha")
	meanwhile()
	return x.calls("fcall") + x.calls("evalsha") - before
}

// A repetition leaves a tombstone with each occurrence. One whose interval is short goes on.
func TestLostRepetitionsGoOn(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.repeats("p", "EVERY", brief)
	x.becomesDue()
	x.settle(x.occurs("every 2s 1 p"))
	next, _ := x.pendingAt()
	x.do("DEL", keys.Single.Due())
	x.awaitClock(next + 1)
	x.restores(schedule.Restored{Timers: 1})
	x.occurs("every 2s 2 p")
}

// A repetition whose key is deleted while due has lost it is over, though an occurrence of it is still to be settled.
func TestDeletedRepetitionsStayAway(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.repeats("p", "EVERY", 60000)
	x.becomesDue()
	f := x.occurs("every 1m0s 1 p")
	x.do("SET", k, "moved", "PX", 60000)
	x.observe(touched(k))
	x.do("DEL", keys.Single.Due(), k)
	x.observe(gone(k))
	x.settle(f)
	x.isOver()
}

// While due has lost large timers, a claim that finds nothing leaves the mark that there are some.
func TestClaimsKeepTheMarkOfLostLargeTimers(t *testing.T) {
	t.Parallel()
	rdb := servers.client(t)
	x := newIndexFor(t, rdb, rdb, 256<<10)
	x.do("FCALL", "timer_set", 1, k, strings.Repeat("x", 20<<10), "PX", 60000)
	x.do("DEL", keys.Single.Due())
	if c := x.ClaimInFull(t.Context(), schedule.ClaimRequest{Partition: keys.Single}, lease); c.Err != nil ||
		len(c.Firings) != 0 {
		t.Errorf("%+v", c)
	}
	if x.do("HEXISTS", keys.Single.Data(), ":l:") != int64(1) {
		t.Error("the mark is gone")
	}
	x.restores(schedule.Restored{Timers: 1})
}
