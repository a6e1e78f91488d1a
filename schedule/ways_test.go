package schedule_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// twins are two schedules in two databases of one Redis, with the same clock.
type twins struct {
	short, full *index
}

func newTwins(t *testing.T) twins {
	t.Helper()
	server := testenv.Redis(t)
	in := func(db int) *index {
		options := *server.Client().Options()
		options.DB = db
		rdb := redis.NewClient(&options)
		t.Cleanup(func() { _ = rdb.Close() })
		return newIndexFor(t, rdb, rdb, largePayload)
	}
	return twins{in(0), in(1)}
}

// both does the same in both.
func (w twins) both(do func(x *index)) {
	do(w.short)
	do(w.full)
}

// oddities are what may be with a timer of a key that is due at a time, in unix ms.
func oddities() map[string]func(x *index, key string, due int64) {
	set := func(x *index, key string, due int64, args ...any) {
		x.do(append([]any{"FCALL", "timer_set", 1, key, "payload of " + key, "PXAT", due}, args...)...)
	}
	adopt := func(x *index, key string, due int64) {
		x.do("SET", key, "value of "+key, "PXAT", due)
		x.observe(touched(key))
	}
	due, data, firing, fired := keys.Single.Due(), keys.Single.Data(), keys.Single.Firing(), keys.Single.Fired()
	return map[string]func(x *index, key string, at int64){
		"set":        func(x *index, key string, at int64) { set(x, key, at) },
		"adopted":    adopt,
		"set as nth": func(x *index, key string, at int64) { set(x, key, at, "ATTEMPT", 7) },
		"says so":    func(x *index, key string, at int64) { x.do("FCALL", "timer_set", 1, key, `{"attempt":3}`, "PXAT", at) },
		"to come":    func(x *index, key string, at int64) { set(x, key, at+5000) },
		"extended": func(x *index, key string, at int64) {
			adopt(x, key, at)
			x.do("PEXPIREAT", key, at+5000)
		},
		"persisted": func(x *index, key string, at int64) {
			adopt(x, key, at)
			x.do("PERSIST", key)
		},
		"deleted": func(x *index, key string, at int64) {
			adopt(x, key, at)
			x.do("DEL", key)
		},
		"evicted": func(x *index, key string, at int64) {
			adopt(x, key, at)
			x.do("DEL", key)
			x.observe(evicted(key))
		},
		"large": func(x *index, key string, at int64) {
			x.do("FCALL", "timer_set", 1, key, strings.Repeat("x", 20_000), "PXAT", at)
		},
		"large to come": func(x *index, key string, at int64) {
			x.do("FCALL", "timer_set", 1, key, strings.Repeat("x", 20_000), "PXAT", at+5000)
		},
		"fired lately": func(x *index, key string, at int64) {
			set(x, key, at)
			x.do("ZADD", fired, at-1000, key)
		},
		"ref taken": func(x *index, key string, at int64) {
			set(x, key, at)
			x.takeRef(key, at)
			x.do("ZADD", fired, at, key)
		},
		"long over": func(x *index, key string, at int64) {
			x.do("ZADD", due, at-90_000, key)
			x.do("HSET", data, key, ":x")
		},
		"long over and ref taken": func(x *index, key string, at int64) {
			x.do("ZADD", due, at-90_000, key)
			x.takeRef(key, at-90_000)
		},
		"owed": func(x *index, key string, at int64) {
			x.do("ZADD", firing, 0, x.takeRef(key, at-50))
		},
		"lease over": func(x *index, key string, at int64) {
			x.do("ZADD", firing, 1, x.takeRef(key, at-50))
		},
		"held": func(x *index, key string, at int64) {
			x.hold("held")
			set(x, "held:"+key[2:], at)
			set(x, key, at)
		},
		"held and released": func(x *index, key string, at int64) {
			x.hold("a:b")
			x.do("ZADD", firing, "0.25", x.takeRef(key, at-50))
			l := x.list()
			if err := x.RemoveHold(x.t.Context(), l, l.Holds[0].Namespace); err != nil {
				x.t.Fatal(err)
			}
		},
		"beside": func(x *index, _ string, at int64) {
			set(x, k, at+5000)
			x.retry("id", at, 2, "again")
		},
	}
}

// takeRef has a firing that somebody holds have the ref of a timer's.
func (x *index) takeRef(key string, due int64) (ref string) {
	ref = fmt.Sprintf("%d::%s", due, key)
	x.do("ZADD", keys.Single.Firing(), x.redisNow()+60_000, ref)
	x.do("HSET", keys.Single.FiringData(), ref, ":taken")
	return ref
}

// state describes a schedule, leaving out what depends on the ms of a claim: the ends of leases and of contests.
func (x *index) state() []string {
	x.t.Helper()
	var all []string
	for _, name := range []string{keys.Single.Data(), keys.Single.FiringData()} {
		for field, value := range x.rdb.HGetAll(x.t.Context(), name).Val() {
			switch field {
			case ":?:":
				value = "until then"
			case ":h:":
				_, value, _ = strings.Cut(value, ";") // without the generation
			}
			all = append(all, fmt.Sprintf("%s %s=%s", name, field, value))
		}
	}
	for _, name := range []string{keys.Single.Due(), keys.Single.Firing(), keys.Single.Fired()} {
		for _, z := range x.rdb.ZRangeWithScores(x.t.Context(), name, 0, -1).Val() {
			member := fmt.Sprint(z.Member)
			if name != keys.Single.Due() || strings.HasPrefix(member, ":?:") {
				z.Score = 0
			}
			all = append(all, fmt.Sprintf("%s %s=%.0f", name, member, z.Score))
		}
	}
	slices.Sort(all)
	return all
}

// The short way of a claim does what the full one would, or moves nothing.
func TestBothWaysOfAClaim(t *testing.T) {
	t.Parallel()
	if err := flag.Set("rapid.nofailfile", "true"); err != nil {
		t.Fatal(err)
	}
	w := newTwins(t)
	all := oddities()
	names := slices.Sorted(maps.Keys(all))
	short, declined := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w.both(func(x *index) {
			x.do("FLUSHDB")
			x.list()
		})
		odd := ""
		if rapid.IntRange(0, 3).Draw(rt, "unusual") > 0 {
			odd = rapid.SampledFrom(names).Draw(rt, "oddity")
		}
		const ahead, reserve = 200, 120 // in ms: a busy machine takes its time
		first := w.short.redisNow() + ahead
		last := first
		for n := range rapid.IntRange(1, 12).Draw(rt, "timers") {
			what := rapid.SampledFrom([]string{"set", "set", "adopted", "set as nth", "says so"}).Draw(rt, "what")
			if odd != "" && n == 0 {
				what = odd
			}
			due := first + int64(rapid.IntRange(0, 3).Draw(rt, "ms"))
			last = max(last, due)
			key := fmt.Sprintf("a:b:c:%d", n)
			if w.short.redisNow() >= first-reserve {
				rt.Skip("setting took until the timers were nearly due")
			}
			w.both(func(x *index) { all[what](x, key, due) })
		}
		if w.short.redisNow() >= first {
			rt.Skip("setting took until the timers were due")
		}
		w.short.awaitClock(last)
		var fired [2][]string
		for claims := 0; ; claims++ {
			request := schedule.ClaimRequest{Partition: keys.Single, Expected: rapid.IntRange(1, 15).Draw(rt, "expected")}
			before := w.short.state()
			c, done := w.short.ClaimShort(t.Context(), request, lease)
			if done {
				short++
			} else {
				declined++
				if now := w.short.untouched(before); now != nil {
					rt.Fatalf("it declined, and changed %q", now)
				}
				c = w.short.ClaimInFull(t.Context(), request, lease)
			}
			fired[0] = append(fired[0], describe(rt, c)...)
			if len(c.Firings) == 0 {
				break
			}
		}
		for {
			c := w.full.ClaimInFull(t.Context(), schedule.ClaimRequest{Partition: keys.Single}, lease)
			fired[1] = append(fired[1], describe(rt, c)...)
			if len(c.Firings) == 0 {
				break
			}
		}
		for i := range fired {
			slices.Sort(fired[i])
		}
		if !slices.Equal(fired[0], fired[1]) {
			rt.Errorf("by the short way %q, in full %q", fired[0], fired[1])
		}
		if a, b := w.short.state(), w.full.state(); !slices.Equal(a, b) {
			rt.Errorf("by the short way\n%s\nin full\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
		}
	})
	if short < 20 || declined < 20 {
		t.Errorf("%d claims by the short way, %d declined: too few to compare", short, declined)
	}
}

// untouched returns how the schedule differs from a state before, apart from tombstones.
func (x *index) untouched(before []string) (changed []string) {
	x.t.Helper()
	for _, line := range x.state() {
		if !slices.Contains(before, line) && !strings.HasPrefix(line, keys.Single.Fired()) {
			changed = append(changed, line)
		}
	}
	return changed
}

// describe returns what was claimed.
func describe(rt *rapid.T, c schedule.ClaimResult) (all []string) {
	if c.Err != nil || len(c.Corrupt) > 0 {
		rt.Fatalf("claim: %v %v", c.Err, c.Corrupt)
	}
	for _, f := range c.Firings {
		all = append(all, fmt.Sprintf("%s %d %s %v %t", f.Ref, f.Attempt, f.Payload, f.Status, f.MayBeStored))
	}
	return all
}
