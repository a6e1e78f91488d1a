package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// libraries returns the names of the libraries in Redis.
func (x *index) libraries() (names []string) {
	x.t.Helper()
	found, err := x.rdb.FunctionList(x.t.Context(), redis.FunctionListQuery{}).Result()
	if err != nil {
		x.t.Fatal(err)
	}
	for _, l := range found {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

// ensures looks after the libraries, as each sweep does.
func (x *index) ensures() {
	x.t.Helper()
	if _, _, err := x.EnsureLibrary(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
}

// calls returns the number of calls of a command in Redis's statistics.
func (x *index) calls(command string) (n int) {
	x.t.Helper()
	_, rest, _ := strings.Cut(x.rdb.Info(x.t.Context(), "commandstats").Val(), "cmdstat_"+command+":calls=")
	rest, _, _ = strings.Cut(rest, ",")
	n, _ = strconv.Atoi(rest)
	return n
}

// A new version fires on a Redis that is out of memory, although that refuses its libraries: firing is what frees
// memory.
func TestStepsRunAsScriptsUntilTheLibraryCanBeLoaded(t *testing.T) {
	t.Parallel()
	x := newIndex(t, devserver.Directive("appendonly", "no"))
	for i := range 3 {
		x.do("FCALL", "timer_set", 1, fmt.Sprint(k, i), "p", "PX", 20)
	}
	x.awaitExpiry(k + "2")
	x.do("FUNCTION", "FLUSH")
	x.do("CONFIG", "SET", "maxmemory", 1)
	young := newIndexFor(t, x.rdb, x.rdb, 999) // another payload limit makes another library
	if has, err := young.HasSteps(t.Context()); err != nil || has {
		t.Fatalf("the library of steps was loaded without memory: %v", err)
	}
	claimed := young.claims(k+"0 deadline p", k+"1 deadline p", k+"2 deadline p")
	if err := young.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, claimed...)); err != nil {
		t.Fatal(err)
	}
	young.isEmpty()
	if _, _, err := young.EnsureLibrary(t.Context()); !redis.HasErrorPrefix(err, "OOM ") {
		t.Errorf("the library was ensured without memory: %v", err)
	}

	x.do("CONFIG", "SET", "maxmemory", 0)
	young.ForgetRefusal()
	young.ensures()
	if has, err := young.HasSteps(t.Context()); err != nil || !has {
		t.Fatalf("the library of steps is missing: %v", err)
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	scripts, functions := x.calls("evalsha"), x.calls("fcall")
	young.claims(k + " deadline p")
	if more, called := x.calls("evalsha")-scripts, x.calls("fcall")-functions; more != 0 || called == 0 {
		t.Errorf("%d scripts and %d functions ran", more, called)
	}
}

// A process that is no timerd runs steps as scripts, and once it has found the library, as its functions.
func TestFindSteps(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.ensures()
	other := schedule.New(x.rdb, x.MaxPayload())
	for _, want := range []string{"evalsha", "fcall"} {
		before := x.calls(want)
		if _, err := other.EndStored(t.Context(), schedule.Stored{}, make([]schedule.StoredID, 1)); err != nil {
			t.Fatal(err)
		}
		if x.calls(want) == before {
			t.Errorf("the step did not run by %s", want)
		}
		other.FindSteps(t.Context())
	}
}

// A user without the right to load libraries still claims.
func TestStepsRunAsScriptsWithoutRights(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("ACL", "SETUSER", "able", "on", "nopass", "~*", "&*", "+@all", "-function|load")
	options := *x.rdb.Options()
	options.Username, options.Password = "able", "any"
	able := redis.NewClient(&options)
	t.Cleanup(func() { _ = able.Close() })
	y := &index{Schedule: schedule.New(able, 999), t: t, rdb: x.rdb, dues: x.dues}
	y.Node = onlyNode(t, y.Schedule)
	y.ensures()
	if has, err := y.HasSteps(t.Context()); err != nil || has {
		t.Fatalf("the library of steps was loaded without the right: %v", err)
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	y.awaitExpiry(k)
	y.claims(k + " deadline p")
}

// A version's steps stay while one of its timerds lives; other databases' and strangers' libraries stay, too.
func TestLibrariesThatNobodyUsesAreDeleted(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	options := *x.rdb.Options()
	options.DB = 1
	other := redis.NewClient(&options)
	t.Cleanup(func() { _ = other.Close() })
	elsewhere := newIndexFor(t, other, other, 1000)
	young := newIndexFor(t, x.rdb, x.rdb, 999)
	for i, name := range []string{"timerd_0x", "timerd_0_mine"} {
		x.do("FUNCTION", "LOAD",
			fmt.Sprintf("#!lua name=%s\nredis.register_function('theirs_%d', function() end)\n", name, i))
	}
	want := func(names ...string) {
		t.Helper()
		names = append(names, "timerd", "timerd_0x", "timerd_0_mine", elsewhere.StepsName())
		slices.Sort(names)
		if found := x.libraries(); !slices.Equal(found, names) {
			t.Fatalf("libraries %q, want %q", found, names)
		}
	}
	want(x.StepsName(), young.StepsName())
	x.beat(schedule.Self{Instance: "old"})
	young.beat(schedule.Self{Instance: "young"})
	young.ensures()
	young.UnusedSince(time.Hour)
	young.ensures()
	want(x.StepsName(), young.StepsName())

	if err := x.Deregister(t.Context(), schedule.Self{Instance: "old"}); err != nil {
		t.Fatal(err)
	}
	young.ensures()
	want(x.StepsName(), young.StepsName()) // another may be about to say that it uses it
	young.UnusedSince(time.Hour)
	young.ensures()
	want(young.StepsName())

	// A deleted library that is used all the same is loaded again.
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	x.claims(k + " deadline p")
	want(x.StepsName(), young.StepsName())
}

// Where a library of somebody else has taken the name of a step's function, the steps run as scripts.
func TestStepsRunAsScriptsWhereTheirNameIsTaken(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FUNCTION", "DELETE", x.StepsName())
	x.do("FUNCTION", "LOAD",
		fmt.Sprintf("#!lua name=theirs\nredis.register_function('%s_claim', function() end)\n", x.StepsName()))
	x.ForgetRefusal()
	x.ensures()
	if has, err := x.HasSteps(t.Context()); err != nil || has {
		t.Fatalf("the library of steps was loaded: %v", err)
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.awaitExpiry(k)
	x.claims(k + " deadline p")
}

// moving is a Redis that moves from server to server, as one behind Sentinel does.
type moving struct {
	t  testing.TB
	at atomic.Pointer[testenv.RedisServer]
}

func (m *moving) client() *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: "moving:0", ReadTimeout: 5 * time.Second,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", m.at.Load().Addr())
		},
	})
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// promote kills the present server and lets its replica take over; with keeps the functions of the replica.
func (m *moving) promote(with bool) {
	m.t.Helper()
	before, replica := m.at.Load(), testenv.Redis(m.t)
	ctx, rdb := m.t.Context(), replica.Client()
	host, port, err := net.SplitHostPort(before.Addr())
	if err != nil {
		m.t.Fatal(err)
	}
	rdb.Do(ctx, "REPLICAOF", host, port)
	testenv.Eventually(m.t, time.Minute, func() error {
		if info := rdb.Info(ctx, "replication").Val(); !strings.Contains(info, "master_link_status:up") {
			return errors.New(info)
		}
		return nil
	}, "the replica to follow")
	before.Client().Wait(ctx, 1, time.Minute)
	before.Kill()
	rdb.Do(ctx, "REPLICAOF", "NO", "ONE")
	if !with {
		rdb.FunctionFlush(ctx)
	}
	m.at.Store(replica)
}

// Timerds of two versions fire the same timers side by side, whatever becomes of the functions, the servers and
// themselves.
func TestTwoVersionsOfTheStepsUnderLoad(t *testing.T) {
	t.Parallel()
	m := &moving{t: t}
	m.at.Store(testenv.Redis(t))
	ctx, rdb := t.Context(), m.client()
	var fired sync.Map
	var stop atomic.Bool
	var wg sync.WaitGroup
	var nodes []*schedule.Node
	for i := range 2 {
		s := schedule.New(m.client(), 1000+i)
		if _, err := s.Load(ctx); err != nil {
			t.Fatal(err)
		}
		n := onlyNode(t, s)
		nodes = append(nodes, n)
		wg.Go(func() {
			for round := 0; !stop.Load(); round++ {
				for _, c := range n.Claim(ctx, []schedule.ClaimRequest{{Partition: keys.Single, Expected: 1 + round%20,
					Leases: true}}, time.Second) {
					if len(c.Firings) == 0 || round%7 == i { // as if it had been killed there
						continue
					}
					for _, f := range c.Firings {
						fired.Store(f.Key.String(), true)
					}
					// else they are claimed again
					_ = s.Settle(ctx, schedule.Outcomes(schedule.OutcomeFired, c.Firings...))
				}
			}
		})
	}
	set := 0
	load := func() {
		t.Helper()
		for range 150 {
			if err := rdb.FCall(ctx, "timer_set", []string{fmt.Sprint("a:b:c:", set)}, "p", "PX",
				1+set%50).Err(); err != nil {
				t.Fatal(err)
			}
			set++
		}
	}
	all := func() {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			for i := range set {
				if _, ok := fired.Load(fmt.Sprint("a:b:c:", i)); !ok {
					return fmt.Errorf("timer %d of %d", i, set)
				}
			}
			return nil
		}, "all timers to fire")
	}
	for name, trouble := range map[string]func(){
		"no trouble":         func() {},
		"functions flushed":  func() { rdb.FunctionFlush(ctx) },
		"a promoted replica": func() { m.promote(true) },
		"a new master":       func() { m.promote(false) },
	} {
		load()
		trouble()
		for _, n := range nodes {
			if _, _, err := n.EnsureLibrary(ctx); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		load()
		all()
		for _, n := range nodes {
			if has, err := n.HasSteps(ctx); err != nil || !has {
				t.Errorf("%s: %v, or a library of steps is missing", name, err)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
}
