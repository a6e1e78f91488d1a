package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// backup is a copy of all data in Redis.
type backup struct {
	values map[string]string
	ends   map[string]time.Duration // since 1970; without the keys that have no TTL
}

// backUp reads all that is in Redis.
func (x *index) backUp() backup {
	x.t.Helper()
	b := backup{map[string]string{}, map[string]time.Duration{}}
	for _, name := range x.rdb.Keys(x.t.Context(), "*").Val() {
		if value, err := x.rdb.Dump(x.t.Context(), name).Result(); err == nil { // else it has just run out
			b.values[name] = value
			b.ends[name] = max(x.rdb.PExpireTime(x.t.Context(), name).Val(), 0)
		}
	}
	return b
}

// putBack puts a backup back. A key that has run out since is gone, as where Redis loads it.
func (x *index) putBack(b backup) {
	x.t.Helper()
	_, err := x.rdb.TxPipelined(x.t.Context(), func(pipe redis.Pipeliner) error {
		pipe.FlushDB(x.t.Context())
		for name, value := range b.values {
			pipe.Do(x.t.Context(), "RESTORE", name, b.ends[name].Milliseconds(), value, "ABSTTL")
		}
		return nil
	})
	if err != nil {
		x.t.Fatal(err)
	}
}

// ids returns the ids that the timers of k would fire under.
func (x *index) ids() (all []schedule.StoredID) {
	x.t.Helper()
	var due int64
	if n, _ := fmt.Sscanf(x.record(":?:"+k), "%d", &due); n == 1 { // it is not listed
		all = append(all, schedule.StoredID{Key: keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1"},
			Due: schedule.Millis(due), Attempt: 1})
	}
	err := list(x.t, x.Schedule, keys.Namespace{}, func(timer query.Timer) bool {
		if timer.Key.String() == k {
			all = append(all, schedule.StoredID{Key: timer.Key, Due: schedule.MillisOf(timer.Due),
				Attempt: max(timer.Attempt, 1)})
		}
		return true
	})
	if err != nil {
		x.t.Fatal(err)
	}
	return all
}

// endStored ends timers, and checks their number and that of the doubtful ones; then again, which ends none.
func (x *index) endStored(as schedule.Stored, ids []schedule.StoredID, ended, doubtful int) {
	x.t.Helper()
	as.Lease = lease
	for i := range 2 {
		outcomes, err := x.EndStored(x.t.Context(), as, ids)
		if err != nil {
			x.t.Fatal(err)
		}
		var counts [4]int
		for _, outcome := range outcomes {
			counts[outcome]++
		}
		if i == 1 {
			ended = 0
		}
		if counts[schedule.StoredEnded] != ended || counts[schedule.StoredDoubtful] != doubtful {
			x.t.Errorf("call %d: %d have ended, %d are doubtful; want %d and %d", i+1, counts[schedule.StoredEnded],
				counts[schedule.StoredDoubtful], ended, doubtful)
		}
	}
}

// A restored timer whose event is stored does not fire again, whatever its state in the backup.
func TestEndStored(t *testing.T) {
	t.Parallel()
	due := func(x *index) {
		x.do("FCALL", "timer_set", 1, k, "v1", "PX", 20)
		x.awaitExpiry(k)
	}
	for name, arrange := range map[string]func(x *index){
		"pending":      func(x *index) { x.do("FCALL", "timer_set", 1, k, "v1", "PX", 60000) },
		"plain key":    func(x *index) { x.do("SET", k, "v1", "PX", 60000); x.observe(touched(k)) },
		"own attempt":  func(x *index) { x.do("FCALL", "timer_set", 1, k, `{"attempt":7}`, "PX", 60000) },
		"due":          due,
		"owed":         func(x *index) { due(x); x.observe(expired(k)) },
		"claimed":      func(x *index) { due(x); x.claimFor(lease) },
		"given back":   func(x *index) { due(x); x.giveBack(false) },
		"maybe stored": func(x *index) { due(x); x.giveBack(true) },
		"held": func(x *index) {
			due(x)
			x.hold("app1")
			x.claims()
		},
		"refused by NATS": func(x *index) {
			due(x)
			firings, _ := x.claimOnce()
			if err := x.Release(x.t.Context(), schedule.Outcomes(schedule.OutcomeRefused, firings...)); err != nil {
				x.t.Fatal(err)
			}
		},
		"retry": func(x *index) { x.retry("r1", x.redisNow()+60000, 2, "v2") },
		"retry beside": func(x *index) {
			x.do("FCALL", "timer_set", 1, k, "v1", "PX", 90000)
			x.retry("r1", x.redisNow()+60000, 2, "v2")
		},
		"set aside": func(x *index) {
			due(x)
			// as parked.park leaves it
			at := x.dues[k]
			member := fmt.Sprintf(":s%d.:%s", at, k)
			x.do("ZREM", keys.Single.Due(), k)
			x.do("HDEL", keys.Single.Data(), k)
			x.do("HSET", keys.Single.Data(), member, ":v1")
			x.do("ZADD", keys.Single.Due(), at, member)
			x.do("ZADD", "timerd:{t}:aside", at, member)
			x.do("ZADD", "timerd:{t}:beside", 0, fmt.Sprintf("%d:%s:s%d.", len(k), k, at))
		},
		"contested": (*index).contest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			arrange(x)
			x.putBack(x.backUp())
			ids, before := x.ids(), x.dump()
			for i, id := range ids {
				others := []schedule.StoredID{{Key: id.Key, Due: id.Due + 1, Attempt: id.Attempt}}
				if id.Attempt > 1 {
					others = append(others, schedule.StoredID{Key: id.Key, Due: id.Due, Attempt: id.Attempt + 1})
				} else if name == "own attempt" {
					ids[i].Attempt = 7
				}
				x.endStored(schedule.Stored{Known: schedule.Latest}, others, 0, 0)
			}
			as := schedule.Stored{Kind: schedule.OutcomeFired, Lease: lease, Dry: true}
			outcomes, err := x.EndStored(t.Context(), as, ids)
			if len(ids) == 0 || err != nil || slices.Contains(outcomes, schedule.StoredNone) || x.dump() != before {
				t.Fatalf("dry, of %d: %v, %v", len(ids), outcomes, err)
			}
			x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, ids, len(ids), 0)
			for _, name := range []string{"due", "firing", "firingdata", "owed", "beside", "aside", "refused"} {
				if n := x.do("EXISTS", "timerd:{t}:"+name); n != int64(0) {
					t.Errorf("%s is not empty", name)
				}
			}
			if x.do("EXISTS", k) != int64(0) || x.account().Out.Fired != int64(len(ids)) {
				t.Errorf("its key is left, or the account is %+v", x.account().Out)
			}
			x.claims()
		})
	}
}

// A timer that repeats goes on after the last occurrence that has fired, by its number too.
func TestEndStoredOccurrences(t *testing.T) {
	t.Parallel()
	const claimed, dead = "claimed", "dead letter"
	for _, when := range []string{"pending", "due", claimed, dead} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			x := newIndex(t)
			first := x.repeats("p", "EVERY", 60000)
			if when != "pending" {
				x.becomesDue()
			}
			if when == claimed {
				x.claimFor(lease)
			}
			id := x.ids()[0]
			x.putBack(x.backUp())
			if when == dead {
				x.endStored(schedule.Stored{Kind: schedule.OutcomeDead}, []schedule.StoredID{id}, 1, 0)
				x.nextIs(first+60000, "repeat every 1m0s occurrence 1")
				return
			}
			ids := []schedule.StoredID{id}
			for i := range int64(3) {
				ids = append(ids, schedule.StoredID{Key: id.Key, Due: schedule.Millis(first + (i+1)*60000), Attempt: 1})
			}
			x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, ids, 4, 0)
			x.nextIs(first+4*60000, "repeat every 1m0s occurrence 5")
			if out := x.account().Out; out.Fired != 4 || out.Skipped != 0 {
				t.Errorf("the account is %+v", out)
			}
			// An event after a gap: one of another repetition, one that is not known yet, and one of the occurrence.
			later := schedule.StoredID{Key: id.Key, Due: schedule.Millis(first + 6*60000), Attempt: 1, Occurrence: 5}
			for repeat, want := range map[string]schedule.StoredOutcome{
				"every 2m0s": schedule.StoredDoubtful, "": schedule.StoredUnclear,
			} {
				other := later
				if other.Repeat = repeat; repeat == "" {
					other.Occurrence = 0
				}
				outcomes, err := x.EndStored(t.Context(), schedule.Stored{Lease: lease}, []schedule.StoredID{other})
				if err != nil || outcomes[0] != want {
					t.Errorf("%+v: %v, %v", other, outcomes, err)
				}
			}
			later.Repeat = "every 1m0s"
			x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, []schedule.StoredID{later}, 1, 0)
			x.nextIs(first+7*60000, "repeat every 1m0s occurrence 6")
			// One of an earlier time may be of another repetition; one of a later time was moved.
			moved := later
			moved.Due, moved.Occurrence = later.Due+1000, 9
			x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, []schedule.StoredID{moved}, 0, 0)
			moved.Due, moved.Occurrence = schedule.Millis(first+7*60000+1000), 6
			x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, []schedule.StoredID{moved}, 1, 0)
			x.nextIs(first+8*60000, "repeat every 1m0s occurrence 7")
		})
	}
	t.Run("the last one", func(t *testing.T) {
		t.Parallel()
		x := newIndex(t)
		first := x.repeats("p", "EVERY", 60000, "TIMES", 2)
		id := x.ids()[0]
		x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, []schedule.StoredID{id,
			{Key: id.Key, Due: schedule.Millis(first + 60000), Attempt: 1}}, 2, 0)
		x.isOver()
	})
}

// Of a key whose event has an unknown id, another timer is doubtful if the backup cannot know of the event, and stays.
func TestEndStoredLeavesDoubtfulTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "v1", "PX", 60000)
	id := x.ids()[0]
	moved := []schedule.StoredID{{Key: id.Key, Due: id.Due - 30000, Attempt: 1}}
	x.endStored(schedule.Stored{Known: id.Due - 30000}, moved, 0, 0)
	x.endStored(schedule.Stored{Known: id.Due - 30001}, moved, 0, 1)
	x.stateIs(k, "pending v1")

}

// A key that lives on with another TTL was set since: that timer is taken in.
func TestEndStoredOfAKeySetAgain(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", 60000)
	x.observe(touched(k))
	ids := x.ids()
	x.do("SET", k, "v2", "PX", 90000)
	x.endStored(schedule.Stored{Kind: schedule.OutcomeFired, Known: ids[0].Due}, ids, 1, 0)
	x.stateIs(k, "pending v2")
	if out := x.account(); out.Out.Fired != 1 || out.In.Adopted != 2 {
		t.Errorf("the account is %+v", out)
	}
}

// Of two timers with the same due time the one that states the attempt has the id.
func TestEndStoredByTheStatedAttempt(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	at := x.redisNow() + 60000
	x.do("FCALL", "timer_set", 1, k, "own", "PXAT", at+1000)
	x.retry("r1", at, 2, "retry")
	x.do("FCALL", "timer_set", 1, k, "own", "PXAT", at)
	id := x.ids()[0]
	id.Attempt = 2
	x.endStored(schedule.Stored{Kind: schedule.OutcomeFired, Known: schedule.Latest}, []schedule.StoredID{id}, 1, 0)
	x.stateIs(k, "pending own")
	id.Attempt = 3 // no payload states it
	x.endStored(schedule.Stored{Kind: schedule.OutcomeFired, Known: schedule.Latest}, []schedule.StoredID{id}, 0, 0)
}

// A repetition that is to be planned is no occurrence of a message.
func TestEndStoredLeavesPlans(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_repeat", 1, k, "p", "CRON", "0 9 * * *")
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	id := schedule.StoredID{Key: key, Due: schedule.Millis(x.redisNow() + 1000), Attempt: 1,
		Repeat: "cron 0 9 * * * UTC", Occurrence: 1}
	x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, []schedule.StoredID{id}, 0, 0)
	x.claims() // which plans it
	x.stateIs(k, "pending p")
}

// Occurrences of many keys that are firing are all looked for, though a call has room for few such looks.
func TestEndStoredLooksForAllFirings(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n = 20
	var ids []schedule.StoredID
	for i := range n {
		key := fmt.Sprintf("app1:trans:notice:%d", i)
		x.do("FCALL", "timer_repeat", 1, key, strings.Repeat("p", 900), "EVERY", 3600_000, "FROM", 3600_000*int64(i+1))
		x.do("DEL", key)
		x.do("ZADD", keys.Single.Due(), "XX", x.redisNow()-1, key)
		parsed, _ := keys.Parse(key)
		ids = append(ids, schedule.StoredID{Key: parsed, Due: schedule.Millis(x.redisNow() + 100*3600_000), Attempt: 1,
			Repeat: "every 1h0m0s", Occurrence: 3})
	}
	if claimed := x.claimFor(lease).Firings; len(claimed) != n {
		t.Fatalf("%d claimed", len(claimed))
	}
	as := schedule.Stored{Kind: schedule.OutcomeFired, Lease: lease, Dry: true}
	outcomes, err := x.EndStored(t.Context(), as, ids)
	if err != nil || slices.Contains(outcomes, schedule.StoredNone) {
		t.Errorf("%v, %v", outcomes, err)
	}
	x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, ids, n, 0)
}

// A call stops for other clients of Redis where payloads are large.
func TestEndStoredOfLargePayloads(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	large := strings.Repeat("x", 900)
	var settings []schedule.StoredID
	for i := range 2000 {
		key := fmt.Sprintf("app1:trans:notice:%d", i)
		x.do("FCALL", "timer_set", 1, key, large, "PX", 60000)
		parsed, _ := keys.Parse(key)
		settings = append(settings, schedule.StoredID{Key: parsed, Due: schedule.Millis(x.due(key)), Attempt: 1})
	}
	x.endStored(schedule.Stored{Kind: schedule.OutcomeFired}, settings, len(settings), 0)
	x.isEmpty()
}
