package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// guardedCrowd is a number of due timers with random guards.
type guardedCrowd struct {
	tag    string              // of all keys
	guards []string            // that timers have
	exist  map[string]bool     // the guards that exist
	unread map[string]bool     // the guards that timerd may not read
	timers map[string][]string // by their keys: options of timer_set and their values
}

// newGuardedCrowd draws a crowd. There are few guards, so that several timers share one.
func newGuardedCrowd(seed uint64, tag string) guardedCrowd {
	random := rand.New(rand.NewPCG(seed, 0))
	g := guardedCrowd{tag: tag, exist: map[string]bool{}, unread: map[string]bool{}, timers: map[string][]string{}}
	for _, name := range []string{
		"shop:order:paid:1", "shop:order:paid:2", "shop:100%:paid:", "a;b:%3A:c", "%3A", "live", "x:",
	} {
		name += tag
		g.guards = append(g.guards, name)
		g.exist[name] = random.IntN(2) == 0
	}
	draw := func() string { return g.guards[random.IntN(len(g.guards))] }
	for i := range 100 {
		var options []string
		switch random.IntN(8) {
		case 0, 1, 2:
			options = []string{"UNLESS", draw()}
		case 3, 4:
			options = []string{"IF", draw()}
		case 5:
			options = []string{"IF", draw(), "UNLESS", draw()}
		case 6:
			options = []string{"UNLESS", draw(), "ATTEMPT", "2"}
		}
		g.timers[fmt.Sprintf("app1:trans:notice:%d%s", i, tag)] = options
	}
	return g
}

// refusal returns the refusal by a timer's own guards, or, if it has none, by the rule "unless paid:%id" if ruled.
func (g guardedCrowd) refusal(key string, ruled bool) policy.Refusal {
	var unread policy.Refusal
	options := g.timers[key]
	if len(options) == 0 && ruled {
		options = []string{"UNLESS", "paid:" + key[len("app1:trans:notice:"):]}
	}
	for _, option := range []string{"UNLESS", "IF"} {
		i := slices.Index(options, option)
		if i < 0 {
			continue
		}
		guard := options[i+1]
		switch {
		case g.unread[guard]:
			if unread == (policy.Refusal{}) {
				unread = policy.Refusal{Guard: guard, Unread: true}
			}
		case g.exist[guard] == (option == "UNLESS"):
			return policy.Refusal{Guard: guard, Missing: option == "IF"}
		}
	}
	return unread
}

// check checks the claimed firings of a crowd, and that none is missing.
func (g guardedCrowd) check(t *testing.T, firings []schedule.Firing, ruled bool) {
	t.Helper()
	if len(firings) != len(g.timers) {
		t.Errorf("claimed %d of %d", len(firings), len(g.timers))
	}
	for _, f := range firings {
		key := f.Key.String()
		if want := g.refusal(key, ruled); f.Refusal != want {
			t.Errorf("%s with %q: claimed with %+v, want %+v", key, g.timers[key], f.Refusal, want)
		}
	}
}

// A claim that asks for many guards at once keeps them apart, whichever exist, and if timerd may not read some.
func TestGuardsOfABatch(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		x, g := newNarrowIndex(t), newGuardedCrowd(seed, "")
		ruled := seed%2 == 1
		if ruled {
			x.GuardBy(rules(t, "app1:trans=unless paid:%id"))
		}
		for i := range 100 {
			guard := fmt.Sprintf("paid:%d", i)
			g.exist[guard] = i%3 == 0
		}
		x.do("ACL", "SETUSER", "timerd", "~*")
		if seed%3 == 2 {
			x.do("ACL", "SETUSER", "timerd", "resetkeys", "~app1:*", "~timerd:*", "~shop:*", "~paid:*", "~live")
			for _, guard := range []string{"a;b:%3A:c", "%3A", "x:"} {
				g.unread[guard] = true
			}
		}
		at := x.redisNow() + 500
		for key, options := range g.timers {
			x.do(append([]any{"FCALL", "timer_set", 1, key, "p", "PXAT", at}, toAny(options)...)...)
		}
		for guard, exists := range g.exist {
			if exists {
				x.do("SET", guard, "")
			}
		}
		x.awaitClock(at)
		g.check(t, x.claimFor(lease).Firings, ruled)
	}
}

// In a cluster too, beside guards of another slot by a rule.
func TestClusterGuardsOfABatch(t *testing.T) {
	t.Parallel()
	x, g := newClusterIndex(t), newGuardedCrowd(1, "{42}")
	ctx := t.Context()
	x.GuardBy(rules(t, "app1=unless paid:%id; other=unless elsewhere"))
	p := keys.PartitionOf("{42}")
	for i := range 3 {
		g.timers[fmt.Sprintf("other:a:b:%d{42}", i)] = []string{"UNLESS", "elsewhere"}
	}
	g.unread["elsewhere"] = true
	for key, options := range g.timers {
		args := append([]any{"p", "PXAT", 1}, toAny(options)...)
		if key[:6] == "other:" {
			args = args[:3]
		}
		if err := x.rdb.FCall(ctx, "timer_set", []string{key}, args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for guard, exists := range g.exist {
		if exists {
			if err := x.rdb.Set(ctx, guard, "", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	firings, err := claimFrom(ctx, nodeOf(t, x.Schedule, p), p, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	g.check(t, firings, true)
}
