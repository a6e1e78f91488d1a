package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// rules parses TIMERD_GUARD.
func rules(t testing.TB, text string) policy.Rules[policy.GuardRule] {
	t.Helper()
	all, err := policy.ParseGuards(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGuardsByNamespace(t *testing.T) {
	t.Parallel()
	const both = "app1:trans=unless %app/%module/%type/%id%% if live:%id; *=unless paid"
	passes := policy.Refusal{}
	for _, c := range []struct {
		rules  string
		set    []any // timer_set's options; nil for a plain key
		exists []string
		want   policy.Refusal
	}{
		{both, nil, []string{"live:1", "paid"}, passes},
		{both, nil, []string{"paid"}, policy.Refusal{Guard: "live:1", Missing: true}},
		{both, []any{}, []string{"app1/trans/notice/1%"},
			policy.Refusal{Guard: "app1/trans/notice/1%"}},
		{both, []any{"UNLESS", "own"}, nil, passes},
		{both, []any{"IF", "paid"}, []string{"paid"}, passes},
		{both, []any{"LATE", 60000, "ATTEMPT", 2}, []string{"live:1"}, passes},
		{"app1:trans:other=unless paid; app2=unless paid", nil, []string{"paid"}, passes},
		{"app:trans:notice=unless paid; *:trans=if a:%%3B;app1=unless paid", nil, []string{"paid"},
			policy.Refusal{Guard: "a:%3B", Missing: true}},
		{"*:*:notice=unless paid:%id%id", nil, []string{"paid:11"},
			policy.Refusal{Guard: "paid:11"}},
	} {
		x := newIndex(t)
		x.GuardBy(rules(t, c.rules))
		if c.set == nil {
			x.adopts(1000)
			x.awaitExpiry(k)
		} else {
			x.guarded(c.set...)
		}
		for _, name := range c.exists {
			x.do("SET", name, "")
		}
		f, got := x.refusal(schedule.TriggerDeadline)
		if got != c.want || f.Guards.Unless == "paid" || f.Guards.If == "live:1" {
			t.Errorf("%s, %v with %v: %+v of %+v, want %+v", c.rules, c.set, c.exists, got, f.Guards, c.want)
		}
		// The claiming timerd dies, and the next one has no rules. A refusal stays.
		x.GuardBy(nil)
		x.do(append([]any{"DEL", "paid"}, toAny(c.exists)...)...)
		x.do("ZADD", keys.Single.Firing(), "XX", 1, f.Ref)
		if f, got = x.refusal(schedule.TriggerReclaim); got != c.want {
			t.Errorf("%s, %v, reclaimed without rules: %+v, want %+v", c.rules, c.set, got, c.want)
		}
		x.settleAs(f, schedule.OutcomeUnfired)
		x.isEmpty()
	}
}

// A rule may make a key that is too long for a guard. The timer waits until the rules change.
func TestGuardByNamespaceIsTooLong(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.GuardBy(rules(t, "app1=unless %id%id"))
	long := strings.Repeat("x", 600)
	x.do("FCALL", "timer_set", 1, "app1:a:b:"+long, "p", "PXAT", 1)
	f := x.claimFor(lease).Firings[0]
	if f.Refusal != (policy.Refusal{Guard: long + long, Unread: true}) {
		t.Errorf("claimed with %+v", f.Refusal)
	}
	x.GuardBy(nil)
	x.do("ZADD", keys.Single.Firing(), "XX", 1, f.Ref)
	if f = x.claimFor(lease).Firings[0]; f.Refusal != (policy.Refusal{}) {
		t.Errorf("claimed without rules with %+v", f.Refusal)
	}
	x.settle(f)
	x.isEmpty()
}

// Rules match and expand alike in Go and in Redis, whatever bytes keys have.
func TestGuardsOfHostileKeys(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	parts := []string{"a", ".", "%1", "^$", "\x00", "[a]", "\xff", "-", "(%)", "a.b", "\n", "{a}", "é"}
	random := rand.New(rand.NewPCG(1, 2))
	part := func() string { return parts[random.IntN(len(parts))] }
	var namespaces []keys.Namespace
	var all policy.Rules[policy.GuardRule]
	for range 12 {
		n := keys.Namespace{App: part(), Module: part(), Type: part()}
		for _, field := range []*string{&n.App, &n.Module, &n.Type} {
			if random.IntN(2) == 0 {
				*field = ""
			}
		}
		namespaces = append(namespaces, n)
		all = append(all, policy.Rule[policy.GuardRule]{Namespace: n,
			Is: policy.GuardRule{Unless: fmt.Sprintf("%d,%%type%%%%%%id%%app:%%module", len(all))}})
	}
	x.GuardBy(rules(t, all.String()))
	want := map[string]string{}
	for i := range 100 {
		key := keys.Key{App: part(), Module: part(), Type: part(), ID: fmt.Sprintf("%d:%s", i, part())}
		x.do("FCALL", "timer_set", 1, key.String(), "p", "PXAT", 1)
		want[key.String()] = ""
		for j, n := range namespaces {
			if n.Match(key) {
				guard := fmt.Sprintf("%d,%s%%%s%s:%s", j, key.Type, key.ID, key.App, key.Module)
				want[key.String()] = guard
				x.do("SET", guard, "")
				break
			}
		}
	}
	for range 2 {
		for _, f := range x.claimFor(lease).Firings {
			if got := f.Refusal.Guard; got != want[f.Key.String()] {
				t.Errorf("%q by %q: refused by %q, want %q", f.Key, all, got, want[f.Key.String()])
			}
			delete(want, f.Key.String())
		}
	}
	if len(want) > 0 {
		t.Errorf("%d were not claimed", len(want))
	}
}

// The next occurrence does not inherit a refusal by a rule.
func TestOccurrencesGuardedByNamespace(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.GuardBy(rules(t, "app1=if live"))
	x.awaitClock(x.repeats("p", "EVERY", 100, "TIMES", 1))
	f := x.occurs("every 100ms 1 p")
	if f.Refusal != (policy.Refusal{Guard: "live", Missing: true}) {
		t.Errorf("claimed with %+v", f.Refusal)
	}
	x.settleAs(f, schedule.OutcomeUnfired)
	x.do("SET", "live", "")
	next, _ := x.pendingAt()
	x.awaitClock(next)
	f = x.occurs("every 100ms 1 p")
	if f.Refusal != (policy.Refusal{}) {
		t.Errorf("claimed with the key with %+v", f.Refusal)
	}
	x.settle(f)
	x.isOver()
}

// A guard of another slot by a rule cannot be read; one of the timer's slot can.
func TestClusterGuardsByNamespace(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	x.GuardBy(rules(t, "*=if live:%id"))
	for id, want := range map[string]policy.Refusal{
		"42": {Guard: "live:42", Unread: true}, "{42}": {Guard: "live:{42}", Missing: true},
	} {
		key := "shop:order:timeout:" + id
		if err := x.rdb.FCall(ctx, "timer_set", []string{key}, "p", "PXAT", 1).Err(); err != nil {
			t.Fatal(err)
		}
		p := keys.PartitionOf(key)
		firings, err := claimFrom(ctx, nodeOf(t, x.Schedule, p), p, time.Minute)
		if err != nil || len(firings) != 1 || firings[0].Refusal != want {
			t.Errorf("%s: claimed %+v, %v; want %+v", key, firings, err, want)
		}
	}
}
