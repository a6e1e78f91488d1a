package schedule_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A key with each byte that a record escapes.
const paid = "shop;paid:%3A 42\xff"

// guarded sets the timer of k with guards, and waits until it is due.
func (x *index) guarded(guards ...any) {
	x.t.Helper()
	x.do(append([]any{"FCALL", "timer_set", 1, k, "p", "PX", 20}, guards...)...)
	x.awaitExpiry(k)
}

// refusal claims the only firing, by a trigger, and returns its guards' answer.
func (x *index) refusal(trigger schedule.Trigger) (schedule.Firing, policy.Refusal) {
	x.t.Helper()
	f := x.claims(fmt.Sprintf("%s %s p", k, trigger))[0]
	if f.Refusal != (policy.Refusal{}) && f.MayBeStored {
		x.t.Errorf("%+v: it may be stored", f.Refusal)
	}
	return f, f.Refusal
}

func TestGuardsDecideAtTheClaim(t *testing.T) {
	t.Parallel()
	const other = "shop:live"
	was, wasNot := policy.Refusal{Guard: paid}, policy.Refusal{Guard: other, Missing: true}
	for _, c := range []struct {
		args   []any
		exists []string // by the time of the claim
		want   policy.Refusal
	}{
		{[]any{"UNLESS", paid}, nil, policy.Refusal{}},
		{[]any{"UNLESS", paid}, []string{paid}, was},
		{[]any{"if", other}, nil, wasNot},
		{[]any{"if", other}, []string{other}, policy.Refusal{}},
		{[]any{"IF", other, "UNLESS", paid}, []string{other}, policy.Refusal{}},
		{[]any{"IF", other, "UNLESS", paid}, []string{other, paid}, was},
		{[]any{"UNLESS", paid, "IF", other}, nil, wasNot},
		{[]any{"UNLESS", paid, "IF", other, "LATE", 5, "ATTEMPT", 3}, []string{paid, other}, was},
	} {
		for _, full := range []bool{false, true} {
			x := newIndex(t)
			x.guarded(c.args...)
			for _, name := range c.exists {
				x.do("HSET", name, "of", "any type")
			}
			if full {
				all := x.ClaimInFull(t.Context(), schedule.ClaimRequest{Partition: keys.Single}, lease)
				if all.Err != nil || len(all.Firings) != 1 || all.Firings[0].Refusal != c.want {
					t.Fatalf("%v with %v: claimed in full %+v", c.args, c.exists, all)
				}
				x.do("ZADD", keys.Single.Firing(), "XX", 0.5, all.Firings[0].Ref) // given back
			}
			f, got := x.refusal(schedule.TriggerDeadline)
			if got != c.want {
				t.Errorf("%v with %v: %+v, want %+v", c.args, c.exists, got, c.want)
			}
			// The claiming timerd dies. A refusal stays, and no guard stops a possibly published firing.
			x.do(append([]any{"DEL", paid}, toAny(c.exists)...)...)
			x.do("ZADD", keys.Single.Firing(), "XX", 1, f.Ref)
			f, got = x.refusal(schedule.TriggerReclaim)
			if got != c.want || f.MayBeStored == (got != policy.Refusal{}) {
				t.Errorf("%v, reclaimed: %+v, may be stored: %v; want %+v", c.args, got, f.MayBeStored, c.want)
			}
			x.settleAs(f, schedule.OutcomeUnfired)
			if got := x.do("FCALL_RO", "timer_get", 1, k); got != nil {
				t.Errorf("timer_get after the end: %v", got)
			}
		}
	}
}

func toAny(texts []string) (all []any) {
	for _, text := range texts {
		all = append(all, text)
	}
	return all
}

// The event wins over a guard that comes after the claim.
func TestGuardAfterTheClaim(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.guarded("UNLESS", paid)
	f, got := x.refusal(schedule.TriggerDeadline)
	x.do("SET", paid, "")
	x.do("ZADD", keys.Single.Firing(), "XX", 1, f.Ref)
	f, again := x.refusal(schedule.TriggerReclaim)
	if none := (policy.Refusal{}); got != none || again != none || !f.MayBeStored {
		t.Errorf("%+v, then %+v, may be stored: %v", got, again, f.MayBeStored)
	}
	// Given back unpublished, it is judged again; given back perhaps published, it is not.
	given := f.Outcome(schedule.OutcomeGivenBack)
	for _, mayBe := range []bool{true, false} {
		given.MayBeStored = mayBe
		if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
			t.Fatal(err)
		}
		x.awaitClock(x.redisNow() + 1)
		f, got = x.refusal(schedule.TriggerDeadline)
		if got.Guard == "" != mayBe {
			t.Errorf("perhaps stored: %v; claimed again with %+v", mayBe, got)
		}
		given = f.Outcome(schedule.OutcomeGivenBack)
	}
	// A refused one that is given back stays refused.
	x.do("DEL", paid)
	if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
		t.Fatal(err)
	}
	x.hold("app1")
	if _, got = x.refusal(schedule.TriggerDeadline); got.Guard != paid {
		t.Errorf("claimed again with %+v", got)
	}
}

func TestGuardsStayWithTheirTimer(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const guards = " unless " + paid + " if a"
	get := func(step, want string) {
		t.Helper()
		if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k)); !strings.HasSuffix(got, want+"]") {
			t.Errorf("%s: timer_get: %q, want its end %q", step, got, want)
		}
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "UNLESS", paid, "IF", "a")
	get("set", "payload p state pending"+guards)
	x.do("PEXPIRE", k, 90000)
	x.observe(touched(k))
	get("another TTL", "payload p state pending"+guards)
	x.do("SET", k, "q", "KEEPTTL")
	get("another value, unheard", "payload q state pending"+guards)
	x.observe(touched(k))
	x.observe(audited(k))
	get("another value", "payload q state pending"+guards)
	x.do("APPEND", k, "r")
	x.observe(touched(k))
	get("appended", "payload qr state pending"+guards)
	x.hold("app1")
	x.do("DEL", k)
	x.observe(evicted(k), gone(k))
	x.do("ZADD", keys.Single.Due(), x.redisNow(), k)
	x.claims()
	get("held", "payload qr state held"+guards)
	x.do("SET", paid, "") // judged when it is claimed after the resume
	l, h := x.resume("app1", schedule.Resume{Kind: schedule.ResumeNow})
	x.release(l, h, &schedule.Draw{})
	f := x.claims(k + " deadline qr")[0]
	if f.Refusal.Guard != paid || f.Guards != (policy.Guards{Unless: paid, If: "a"}) {
		t.Errorf("claimed after the resume with %+v of %+v", f.Refusal, f.Guards)
	}
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 60000, "UNLESS", paid)
	x.do("SET", k, "new", "PX", 90000) // another timer
	x.observe(touched(k))
	get("set anew", "payload new state pending")
}

// An occurrence that a guard stops is left out and not counted; the next one has the guard, and no refusal.
func TestGuardedOccurrences(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", paid, "")
	x.awaitClock(x.repeats("p", "EVERY", 100, "TIMES", 1, "UNLESS", paid))
	for range 2 {
		f := x.occurs("every 100ms 1 p")
		if f.Refusal.Guard != paid {
			t.Errorf("claimed with %+v", f.Refusal)
		}
		x.settleAs(f, schedule.OutcomeUnfired)
		next, _ := x.pendingAt()
		x.awaitClock(next)
	}
	x.do("DEL", paid)
	f := x.occurs("every 100ms 1 p")
	if f.Refusal.Guard != "" {
		t.Errorf("claimed without the key with %+v", f.Refusal)
	}
	x.settle(f)
	x.isOver()
}

func TestRetryHasTheGuards(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	key, err := keys.Parse(k)
	if err != nil {
		t.Fatal(err)
	}
	x.do("SET", paid, "")
	if _, _, err := x.Retry(t.Context(), schedule.Retry{EventID: "1", Key: key, Due: 1, Attempt: 2,
		Payload: []byte("p"), Guards: policy.Guards{Unless: paid}}); err != nil {
		t.Fatal(err)
	}
	if _, got := x.refusal(schedule.TriggerDeadline); got.Guard != paid {
		t.Errorf("the retry was claimed with %+v", got)
	}
}

// A guard that timerd may not read lets nothing fire until it may, after crashes too.
func TestUnreadableGuards(t *testing.T) {
	t.Parallel()
	x := newNarrowIndex(t)
	x.guarded("UNLESS", paid)
	unread := policy.Refusal{Guard: paid, Unread: true}
	f, got := x.refusal(schedule.TriggerDeadline)
	if got != unread {
		t.Fatalf("claimed with %+v, want %+v", got, unread)
	}
	x.do("ZADD", keys.Single.Firing(), "XX", 1, f.Ref)
	if f, got = x.refusal(schedule.TriggerReclaim); got != unread {
		t.Errorf("reclaimed with %+v, want %+v", got, unread)
	}
	given := f.Outcome(schedule.OutcomeUnread)
	given.Pause = time.Millisecond
	if err := x.Release(t.Context(), []schedule.Outcome{given}); err != nil {
		t.Fatal(err)
	}
	x.stateIs(k, "owed p")
	x.parkedIs("[guard 1 app1]", "["+k+" guard p]")
	x.do("ACL", "SETUSER", "timerd", "~*")
	x.awaitClock(x.redisNow() + 2)
	f, got = x.refusal(schedule.TriggerDeadline)
	if got != (policy.Refusal{}) {
		t.Errorf("once timerd may read it: claimed with %+v", got)
	}
	x.settle(f)
	x.isEmpty()
}

// timer_cancel between the due time and the claim ends a guarded timer; after the claim it is too late.
func TestCancelGuarded(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", paid, "")
	x.guarded("UNLESS", paid)
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "cancelled" {
		t.Errorf("cancelled while owed: %v", got)
	}
	x.claims()
	x.guarded("UNLESS", paid)
	f, _ := x.refusal(schedule.TriggerDeadline)
	if got := x.do("FCALL", "timer_cancel", 1, k); got != "fired" {
		t.Errorf("cancelled while it ends: %v", got)
	}
	x.settleAs(f, schedule.OutcomeUnfired)
	x.isEmpty()
}

// Two timerds claim a crowd at once: each timer is claimed by one of them, and refused if its guard says no.
func TestCrowdOfGuardedTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	const n = 300
	at := x.redisNow() + 300
	for i := range n {
		key := fmt.Sprintf("app1:trans:notice:%d", i)
		x.do("FCALL", "timer_set", 1, key, i, "PXAT", at, "UNLESS", fmt.Sprintf("paid:%d", i))
		if i%2 == 0 {
			x.do("SET", fmt.Sprintf("paid:%d", i), "")
		}
	}
	x.awaitClock(at)
	others, seen := onlyNode(t, schedule.New(x.rdb, 1000)), map[string]bool{}
	for len(seen) < n {
		for _, node := range []*schedule.Node{x.Node, others} {
			c := node.Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, lease)[0]
			if c.Err != nil {
				t.Fatal(c.Err)
			}
			for _, f := range c.Firings {
				if seen[f.Ref] {
					t.Fatalf("%s was claimed twice", f.Ref)
				}
				seen[f.Ref] = true
				if even := f.Payload[len(f.Payload)-1]%2 == 0; even != (f.Refusal.Guard == "paid:"+string(f.Payload)) {
					t.Errorf("timer %s was claimed with %+v", f.Payload, f.Refusal)
				}
			}
		}
	}
}

func TestBadGuards(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	long := strings.Repeat("x", 1025)
	for _, call := range [][]any{
		{"FCALL", "timer_set", 1, k, "p", "PX", 60000}, {"FCALL", "timer_repeat", 1, k, "p", "EVERY", 60000},
	} {
		for _, option := range []string{"UNLESS", "IF"} {
			x.refuses(option+" can be given once", append(call, option, "a", strings.ToLower(option), "b")...)
			x.refuses(option+" wants a key of 1 to 1024 bytes", append(call, option, "")...)
			x.refuses(option+" wants a key of 1 to 1024 bytes", append(call, option)...)
			x.refuses(option+" wants a key of 1 to 1024 bytes", append(call, option, long)...)
		}
		x.do(append(call, "UNLESS", long[1:], "IF", strings.Repeat(":", 1024))...)
		if got := len(x.record(k)); got < 4*1024 {
			t.Errorf("the record has %d bytes", got)
		}
		x.do("FCALL", "timer_cancel", 1, k)
	}
}

func TestExportKeepsGuards(t *testing.T) {
	t.Parallel()
	text := "2;U=a%3Ab;I=%25%3B:p"
	r, ok := schedule.ParseRecord(text)
	e := r.Export(5, false, 0)
	want := policy.Guards{Unless: "a:b", If: "%;"}
	if !ok || r.Guards != want || e.Unless != "a:b" || e.If != "%25;" {
		t.Errorf("%q is %+v, exported with %q and %q", text, r.Guards, e.Unless, e.If)
	}
	x := newIndex(t)
	key, _ := keys.Parse(k)
	e.Due = 1
	r, _ = schedule.ParseRecord("2;U=a%3Ab;I=%25%3B;G=U:p")
	guards := r.Guards
	refused := r.Export(2, false, 0)
	r, _ = schedule.ParseRecord("2;G=I=a%3Ab%25 c:p")
	byRule := r.Export(3, false, 0)
	if byRule.Refused != "if a:b%25 c" || r.Refusal() != (policy.Refusal{Guard: "a:b% c", Missing: true}) {
		t.Errorf("%+v, exported with %q", r.Refusal(), byRule.Refused)
	}
	if errs := x.Import(t.Context(), []schedule.Imported{{key, []byte("p"), e}, {key, []byte("p"), refused},
		{key, []byte("p"), byRule}}, 1000); errs[0] != nil || errs[1] != nil || errs[2] != nil {
		t.Fatal(errs)
	}
	x.do("SET", "%;", "")
	for _, f := range x.claims(k+" deadline p", k+" deadline p", k+" deadline p") {
		if f.Due == 3 {
			if f.Refusal != r.Refusal() || f.Guards != (policy.Guards{}) {
				t.Errorf("%s was claimed with %+v of %+v", f.Ref, f.Refusal, f.Guards)
			}
			continue
		}
		if want := f.Due == 2; f.Refusal.Guard != "" != want || f.Guards != guards {
			t.Errorf("%s was claimed with %+v of %+v", f.Ref, f.Refusal, f.Guards)
		}
	}
	for _, bad := range []schedule.Exported{
		{Due: 1, Unless: "%"}, {Due: 1, If: strings.Repeat("x", 1025)}, {Due: 1, Refused: "if", Unless: "a"},
		{Due: 1, Refused: "no"}, {Due: 1, Refused: "no a"}, {Due: 1, Refused: "if %"}, {Due: 1, Refused: "unless "},
	} {
		if err := (schedule.Imported{Key: key, Exported: bad}).Check(); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// In a cluster a guard must be in the timer's slot.
func TestClusterGuards(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	for key, fix := range map[string]string{
		"shop:order:timeout:{42}":  "give it the hash tag {42}",
		"shop:order:timeout:42":    "give it the hash tag {shop:order:timeout:42}, or both keys one",
		"shop:order:timeout:42}{a": "give both keys one hash tag",
	} {
		err := x.rdb.FCall(ctx, "timer_set", []string{key}, "", "PX", 60000, "UNLESS", "paid:7").Err()
		if err == nil || !strings.Contains(err.Error(), fix) {
			t.Errorf("%s: %v, want %q", key, err, fix)
		}
		// A retry is refused alike, and so is a timer exported from a single Redis.
		k, _ := keys.Parse(key)
		_, _, again := x.Retry(ctx, schedule.Retry{EventID: "1", Key: k, Due: 1, Attempt: 2,
			Guards: policy.Guards{If: "paid:7"}})
		imported := x.Import(ctx, []schedule.Imported{{k, nil, schedule.Exported{Due: 1, Unless: "paid:7"}}}, 1000)[0]
		for _, err := range []error{again, imported} {
			if !errors.Is(err, schedule.ErrGuardSlot) || !strings.Contains(err.Error(), "paid:7: "+fix) {
				t.Errorf("%s: %v, want %q", key, err, fix)
			}
		}
		if _, firing := x.counts(keys.PartitionOf(key)); firing > 0 {
			t.Errorf("%s: it was set", key)
		}
	}
	const key = "shop:order:timeout:{42}"
	if err := x.rdb.FCall(ctx, "timer_set", []string{key}, "p", "PX", 20, "UNLESS", "paid:{42}").Err(); err != nil {
		t.Fatal(err)
	}
	if err := x.rdb.Set(ctx, "paid:{42}", "", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p := keys.PartitionOf(key)
	var f schedule.Firing
	testenv.Eventually(t, time.Minute, func() error {
		firings, err := claimFrom(ctx, nodeOf(t, x.Schedule, p), p, time.Minute)
		if err == nil && len(firings) == 0 {
			return fmt.Errorf("not due")
		}
		if err == nil {
			f = firings[0]
		}
		return err
	}, "the claim")
	if f.Refusal.Guard != "paid:{42}" {
		t.Errorf("claimed with %+v", f.Refusal)
	}
}

// In a cluster a timer whose guard timerd may not read waits too, and is judged once timerd may. The right to ask for
// slots is not needed for that.
func TestClusterGuardsWithoutARight(t *testing.T) {
	t.Parallel()
	x := newClusterIndex(t)
	ctx := t.Context()
	const key, guard = "shop:order:timeout:{42}", "paid:{42}"
	p := keys.PartitionOf(key)
	if err := x.rdb.FCall(ctx, "timer_set", []string{key}, "p", "PXAT", 1, "UNLESS", guard).Err(); err != nil {
		t.Fatal(err)
	}
	admin := x.cluster.Master(p.Slot()).Client()
	acl := func(rights ...string) {
		t.Helper()
		if err := admin.Do(ctx, append([]any{"ACL", "SETUSER", "default"}, toAny(rights)...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	claim := func(want policy.Refusal) (f schedule.Firing) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			firings, err := claimFrom(ctx, nodeOf(t, x.Schedule, p), p, time.Minute)
			if err == nil && len(firings) != 1 {
				err = fmt.Errorf("claimed %+v", firings)
			}
			if err == nil {
				f = firings[0]
			}
			return err
		}, "the claim")
		if f.Refusal != want {
			t.Errorf("claimed with %+v, want %+v", f.Refusal, want)
		}
		return f
	}
	acl("-cluster|keyslot", "resetkeys", "~timerd:*", "~shop:*")
	f := claim(policy.Refusal{Guard: guard, Unread: true})
	given := f.Outcome(schedule.OutcomeUnread)
	given.Pause = time.Millisecond
	if err := x.Release(ctx, []schedule.Outcome{given}); err != nil {
		t.Fatal(err)
	}
	parked, err := query.ParkedOn(ctx, nodeOf(t, x.Schedule, p))
	if err != nil || len(parked) != 1 || parked[0].Reason != query.ParkedGuard || parked[0].Guard != guard ||
		parked[0].Key.String() != key {
		t.Errorf("set aside: %+v, %v", parked, err)
	}
	acl("~*")
	claim(policy.Refusal{})
}
