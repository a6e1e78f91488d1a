package schedule_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// twins are two schedules in two databases of one Redis, with the same clock.
type twins struct {
	short, full    *index
	usual, unusual int // claims by short
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	server := testenv.Redis(t)
	in := func(db int) *index {
		options := *server.Client().Options()
		options.DB = db
		rdb := redis.NewClient(&options)
		t.Cleanup(func() { _ = rdb.Close() })
		return newIndexFor(t, rdb, rdb, largePayload)
	}
	return &twins{short: in(0), full: in(1)}
}

// both does the same in both.
func (w *twins) both(do func(x *index)) {
	do(w.short)
	do(w.full)
}

// oddities are the possible oddities of a key's timer that is due at a time, in unix ms.
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
		"says so": func(x *index, key string,
			at int64) {
			x.do("FCALL", "timer_set", 1, key, `{"attempt":3}`, "PXAT", at)
		},
		"to come": func(x *index, key string, at int64) { set(x, key, at+5000) },
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
			if err := l.Remove(x.t.Context(), l.Holds[0].Namespace); err != nil {
				x.t.Fatal(err)
			}
		},
		"beside": func(x *index, _ string, at int64) {
			set(x, k, at+5000)
			x.retry("id", at, 2, "again")
		},
	}
}

// takeRef gives the ref of a timer to a firing that somebody holds.
func (x *index) takeRef(key string, due int64) (ref string) {
	ref = fmt.Sprintf("%d::%s", due, key)
	x.seeded = true
	x.do("ZADD", keys.Single.Firing(), x.redisNow()+60_000, ref)
	x.do("HSET", keys.Single.FiringData(), ref, ":taken")
	return ref
}

// state describes a schedule without the times that depend on the ms of a claim: the ends of leases and contests.
func (x *index) state() []string {
	x.t.Helper()
	var all []string
	for _, name := range []string{keys.Single.Data(), keys.Single.FiringData()} {
		for field, value := range x.rdb.HGetAll(x.t.Context(), name).Val() {
			switch field {
			case ":?:":
				value = "until then"
			case ":i:": // until something is due, the quick way does not ask
				continue
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

// chooser makes the choices in a step of a test.
type chooser interface {
	upTo(n int, label string) int // 0 to n
}

// drawn has rapid choose.
type drawn struct{ *rapid.T }

func (d drawn) upTo(n int, label string) int { return rapid.IntRange(0, n).Draw(d.T, label) }

// seeded chooses by a generator that always begins in the same way.
type seeded struct{ *rand.Rand }

func (s seeded) upTo(n int, _ string) int { return s.IntN(n + 1) }

// A claim's quick head does the same as the full look, or leaves the claim to it, whatever the oddity of a timer.
func TestBothWaysOfAClaimAtScale(t *testing.T) {
	t.Parallel()
	const servers = 4
	names := append(slices.Sorted(maps.Keys(oddities())), "")
	var usual, unusual atomic.Int64
	t.Run("oddities", func(t *testing.T) {
		for of := range servers {
			t.Run(fmt.Sprint(of), func(t *testing.T) {
				t.Parallel()
				w, choose := newTwins(t), seeded{rand.New(rand.NewPCG(1, uint64(of)))}
				for i := of; i < len(names); i += servers {
					w.claim(t, choose, names[i], 5, 500)
				}
				usual.Add(int64(w.usual))
				unusual.Add(int64(w.unusual))
			})
		}
	})
	if usual.Load() < 5 || unusual.Load() < 5 {
		t.Errorf("%d usual claims, %d others: too few to compare", usual.Load(), unusual.Load())
	}
}

// The same holds for random timers.
func TestRandomClaimsInBothWays(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	names := slices.Sorted(maps.Keys(oddities()))
	rapid.Check(t, func(rt *rapid.T) {
		odd := ""
		if rapid.IntRange(0, 3).Draw(rt, "unusual") > 0 {
			odd = rapid.SampledFrom(names).Draw(rt, "oddity")
		}
		w.claim(rt, drawn{rt}, odd, 12, 250)
	})
	if w.usual < 20 || w.unusual < 20 {
		t.Errorf("%d usual claims, %d others: too few to compare", w.usual, w.unusual)
	}
}

// claim sets some timers, perhaps an odd one first, claims them in both ways, and compares.
func (w *twins) claim(t rapid.TB, choose chooser, odd string, most int, ahead int64) {
	t.Helper()
	last := w.setDue(t, choose, odd, most, ahead)
	w.short.awaitClock(last)
	var fired [2][]string
	for {
		request := schedule.ClaimRequest{Partition: keys.Single, Expected: 1 + choose.upTo(14, "expected")}
		c, usual := w.short.ClaimUsually(w.short.t.Context(), request, lease)
		if usual {
			w.usual++
		} else {
			w.unusual++
		}
		fired[0] = append(fired[0], describe(t, c)...)
		if len(c.Firings) == 0 {
			break
		}
	}
	for {
		c := w.full.ClaimInFull(w.full.t.Context(), schedule.ClaimRequest{Partition: keys.Single}, lease)
		fired[1] = append(fired[1], describe(t, c)...)
		if len(c.Firings) == 0 {
			break
		}
	}
	for i := range fired {
		slices.Sort(fired[i])
	}
	if !slices.Equal(fired[0], fired[1]) {
		t.Errorf("with the quick head %q, in full %q", fired[0], fired[1])
	}
	if a, b := w.short.state(), w.full.state(); !slices.Equal(a, b) {
		t.Errorf("with the quick head\n%s\nin full\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// setDue sets the same timers in both, at most most, due so many ms ahead, and returns the last due time. If setting
// takes half of that time, it begins again with later ones, because sets of due timers are not compared.
func (w *twins) setDue(t rapid.TB, choose chooser, odd string, most int, ahead int64) (last int64) {
	t.Helper()
	type timer struct {
		what string
		ms   int64
	}
	var timers []timer
	usual := []string{"set", "set", "adopted", "set as nth", "says so"}
	for n := range 1 + choose.upTo(most-1, "timers") {
		what := usual[choose.upTo(len(usual)-1, "what")]
		if odd != "" && n == 0 {
			what = odd
		}
		timers = append(timers, timer{what, int64(choose.upTo(3, "ms"))})
	}
	all := oddities()
	for ; ahead < time.Minute.Milliseconds(); ahead *= 2 {
		w.both(func(x *index) {
			x.do("FLUSHDB")
			x.list()
		})
		first := w.short.redisNow() + ahead
		last = first
		for n, timer := range timers {
			if w.short.redisNow() >= first-ahead/2 {
				break
			}
			due := first + timer.ms
			last = max(last, due)
			w.both(func(x *index) { all[timer.what](x, fmt.Sprintf("a:b:c:%d", n), due) })
		}
		if w.short.redisNow() < first-ahead/2 {
			return last
		}
	}
	t.Fatalf("%d timers could not be set in %d ms", len(timers), ahead/2)
	return 0
}

// describe returns the claimed timers.
func describe(t rapid.TB, c schedule.ClaimResult) (all []string) {
	if c.Err != nil || len(c.Corrupt) > 0 {
		t.Fatalf("claim: %v %v", c.Err, c.Corrupt)
	}
	for _, f := range c.Firings {
		all = append(all, fmt.Sprintf("%s %d %s %v %t", f.Ref, f.Attempt, f.Payload, f.Status, f.MayBeStored))
	}
	return all
}
