package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const lease = 10 * time.Second

// brief is the life in ms of keys that run out while a test waits, but not before its next steps on a busy machine.
const brief = 2000

const k = "app1:trans:notice:1"

// index is a schedule on a Redis of its own. No listener runs: tests pass in their hints.
type index struct {
	*schedule.Schedule
	*schedule.Node
	t    testing.TB
	rdb  *redis.Client
	dues map[string]int64 // when the timers that were set are due, in unix ms
	old  bool             // whether hints are of long ago

	damaged bool // the test has overwritten the index, or taken rights
	seeded  bool // the test has written timers into the index by itself, or removed some
}

func newIndex(t testing.TB, opts ...devserver.RedisOption) *index {
	t.Helper()
	var rdb *redis.Client
	if len(opts) == 0 {
		rdb = servers.client(t)
	} else {
		rdb = testenv.Redis(t, opts...).Client()
	}
	return newIndexFor(t, rdb, rdb, 1000)
}

// load loads the libraries of a schedule, which a busy machine may refuse for a while.
func load(t testing.TB, s *schedule.Schedule) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		_, err := s.Load(t.Context())
		return err
	}, "loading the libraries")
}

// newIndexFor returns a schedule that works with one client, while the tests' commands come from another one.
func newIndexFor(t testing.TB, timerd, tests *redis.Client, maxPayload int) *index {
	t.Helper()
	s := schedule.New(timerd, maxPayload)
	load(t, s)
	n := onlyNode(t, s)
	n.HearSince(0)
	x := &index{Schedule: s, Node: n, t: t, rdb: tests, dues: map[string]int64{}}
	t.Cleanup(x.isWhole)
	t.Cleanup(x.isAccounted)
	return x
}

// isWhole checks that each timer and each firing has its record, and each record its timer or firing: no step may leave
// half of one.
func (x *index) isWhole() {
	found, err := x.ScanDue(context.Background(), schedule.Forever, time.Minute)
	if err == nil && len(found.Torn) > 0 && !x.damaged {
		x.t.Errorf("half of %d timers is missing", found.Torn[0].Missing)
	}
}

// isAccounted checks that the account has no difference: no step may forget its count.
func (x *index) isAccounted() {
	ctx := context.Background()
	begun := x.rdb.ZAddNX(ctx, keys.Single.Account(), redis.Z{Member: "o"}).Err() // as if at the start, with nothing
	a, err := x.Account(ctx)
	if begun == nil && err == nil && a.Difference != 0 && !x.seeded && !x.damaged {
		x.t.Errorf("the account differs: %+v", a)
	}
}

// onlyNode returns the node of a schedule on a single Redis.
func onlyNode(t testing.TB, s *schedule.Schedule) *schedule.Node {
	t.Helper()
	nodes, err := s.Nodes(t.Context())
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%d nodes, %v; want 1", len(nodes), err)
	}
	return nodes[0]
}

// list calls yield for the timers of a namespace, in the order of their due times, until it returns false.
func list(t testing.TB, s *schedule.Schedule, n keys.Namespace, yield func(query.Timer) bool) error {
	t.Helper()
	return query.Pages(t.Context(), s, query.Query{Namespace: n}, func(p query.Page) bool {
		for _, timer := range p.Timers {
			if !yield(timer) {
				return false
			}
		}
		return true
	})
}

// do runs a Redis command and returns its reply, with nil for a null. If the command may set a timer, do notes the due
// time in the same transaction: on a busy machine the key may be gone by the next command.
func (x *index) do(args ...any) any {
	x.t.Helper()
	key := setBy(args)
	if key == "" {
		return x.reply(x.rdb.Do(x.t.Context(), args...))
	}
	var cmd *redis.Cmd
	var at *redis.DurationCmd
	_, _ = x.rdb.TxPipelined(x.t.Context(), func(pipe redis.Pipeliner) error { // each reply has its own error
		cmd, at = pipe.Do(x.t.Context(), args...), pipe.PExpireTime(x.t.Context(), key)
		return nil
	})
	if ms := at.Val().Milliseconds(); ms > 0 {
		x.dues[key] = ms
	}
	return x.reply(cmd)
}

// setBy returns the key whose timer a command may set, or an empty string.
func setBy(args []any) string {
	n := map[any]int{"SET": 1, "PEXPIRE": 1, "PEXPIREAT": 1, "FCALL": 3}[args[0]]
	if n == 0 {
		return ""
	}
	key, _ := args[n].(string)
	return key
}

func (x *index) reply(cmd *redis.Cmd) any {
	x.t.Helper()
	reply, err := cmd.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		x.t.Fatalf("%v: %v", cmd.Args(), err)
	}
	return reply
}

// due returns the due time of the last timer set under a key, in unix ms.
func (x *index) due(key string) int64 {
	x.t.Helper()
	at, ok := x.dues[key]
	if !ok {
		x.t.Fatalf("%s was never set with a TTL", key)
	}
	return at
}

// refuses runs a Redis command that must be refused with a text.
func (x *index) refuses(text string, args ...any) {
	x.t.Helper()
	reply, err := x.rdb.Do(x.t.Context(), args...).Result()
	if err == nil || !strings.Contains(err.Error(), text) {
		x.t.Fatalf("%q: got %v, %v; want an error with %q", args, reply, err, text)
	}
}

// The hints of a key.
func touched(key string) schedule.Hint { return schedule.Hint{Kind: schedule.Touched, Key: key} }
func audited(key string) schedule.Hint { return schedule.Hint{Kind: schedule.Audited, Key: key} }
func gone(key string) schedule.Hint    { return schedule.Hint{Kind: schedule.Gone, Key: key} }
func evicted(key string) schedule.Hint { return schedule.Hint{Kind: schedule.Evicted, Key: key} }
func expired(key string) schedule.Hint { return schedule.Hint{Kind: schedule.Expired, Key: key} }

// known restricts a hint to a timer that the schedule has already.
func known(h schedule.Hint) schedule.Hint {
	h.Known = true
	return h
}

// observe takes hints in.
func (x *index) observe(hints ...schedule.Hint) schedule.Observed {
	x.t.Helper()
	seen, err := x.Observe(x.t.Context(), hints, x.heard())
	if err != nil {
		x.t.Fatal(err)
	}
	return seen
}

// heard returns the time of the hints.
func (x *index) heard() time.Time {
	if x.old {
		return time.Time{}
	}
	return time.Now()
}

// adopts sets k with a TTL, in ms, repeatedly until its timer is taken in before the key runs out.
func (x *index) adopts(ttl int) {
	x.t.Helper()
	testenv.Eventually(x.t, time.Minute, func() bool {
		x.do("SET", k, "p", "PX", ttl)
		x.observe(touched(k))
		return x.do("ZSCORE", keys.Single.Due(), k) != nil
	}, "the timer to be taken in")
}

// claimFor claims once, under a lease.
func (x *index) claimFor(lease time.Duration) schedule.ClaimResult {
	x.t.Helper()
	c := x.Claim(x.t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, lease)[0]
	if c.Err != nil {
		x.t.Fatal(c.Err)
	}
	return c
}

// claimOnce claims once and describes each firing as "key trigger payload".
func (x *index) claimOnce() ([]schedule.Firing, []string) {
	x.t.Helper()
	c := x.claimFor(lease)
	var said []string
	for _, f := range c.Firings {
		payload := string(f.Payload)
		if f.Status != schedule.PayloadPresent {
			payload = fmt.Sprintf("status %d", f.Status)
		}
		said = append(said, fmt.Sprintf("%s %s %s", f.Key, f.Trigger, payload))
		if schedule.MillisOf(c.At) < f.Due {
			x.t.Errorf("%s was claimed at %d, before it was due at %d", f.Key, c.At.UnixMilli(), f.Due)
		}
	}
	return c.Firings, said
}

// claims takes all there is, and compares the firings in any order.
func (x *index) claims(want ...string) []schedule.Firing {
	x.t.Helper()
	firings, got := x.claimOnce()
	slices.Sort(got)
	slices.Sort(want)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		x.t.Fatalf("claimed\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return firings
}

// fires is claims, then settles the firings.
func (x *index) fires(want ...string) {
	x.t.Helper()
	if err := x.Settle(x.t.Context(), schedule.Outcomes(schedule.OutcomeFired, x.claims(want...)...)); err != nil {
		x.t.Fatal(err)
	}
}

// redisNow returns the server's clock in unix ms.
func (x *index) redisNow() int64 {
	x.t.Helper()
	now, err := x.rdb.Time(x.t.Context()).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	return now.UnixMilli()
}

// awaitClock waits until the server's clock is past an instant in unix ms.
func (x *index) awaitClock(at int64) {
	x.t.Helper()
	<-time.After(time.Duration(at-x.redisNow()) * time.Millisecond) // polling is work for Redis and the machine
	testenv.Eventually(x.t, time.Minute, func() bool { return x.redisNow() > at }, "the clock to pass")
}

// awaitExpiry waits until a key has run out, without touching it.
func (x *index) awaitExpiry(key string) {
	x.t.Helper()
	x.awaitClock(x.due(key))
}

// isEmpty checks that the index holds nothing but tombstones.
func (x *index) isEmpty() {
	x.t.Helper()
	if left := x.left(); len(left) > 0 {
		x.t.Errorf("not empty: %q", left)
	}
}

// left returns the contents of the index without tombstones and the identity of the server's data.
func (x *index) left() (left []string) {
	x.t.Helper()
	for _, field := range x.rdb.HKeys(x.t.Context(), keys.Single.Data()).Val() {
		if field != ":i:" && field != ":s:" {
			left = append(left, keys.Single.Data()+" "+field)
		}
	}
	for _, name := range []string{keys.Single.Due(), keys.Single.Firing(), keys.Single.FiringData(),
		keys.Single.Owed()} {
		if x.do("EXISTS", name) != int64(0) {
			left = append(left, name)
		}
	}
	return left
}
