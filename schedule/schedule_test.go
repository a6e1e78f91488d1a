package schedule_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

func TestFollowsTheKey(t *testing.T) {
	far := int64(4102444800000) // in 2100
	for _, c := range []struct {
		name     string
		commands [][]any // after SET k old PX 60000 was adopted
		hint     string  // the last event of them
		due      int64   // 0: cancelled; -1: as it was
		payload  string
	}{
		{"extend", [][]any{{"PEXPIREAT", k, far}}, "t", far, "old"},
		{"getex", [][]any{{"GETEX", k, "PXAT", far}}, "t", far, "old"},
		{"set again", [][]any{{"SET", k, "new", "PXAT", far}}, "t", far, "new"},
		{"keepttl", [][]any{{"SET", k, "new", "KEEPTTL"}}, "t", -1, "new"},
		{"append", [][]any{{"APPEND", k, "er"}}, "t", -1, "older"},
		{"persist", [][]any{{"PERSIST", k}}, "t", 0, ""},
		{"set without ttl", [][]any{{"SET", k, "new"}}, "t", 0, ""},
		{"del", [][]any{{"DEL", k}}, "g", 0, ""},
		{"expire in the past", [][]any{{"PEXPIREAT", k, 1}}, "g", 0, ""},
		{"rename away", [][]any{{"RENAME", k, "elsewhere"}}, "g", 0, ""},
		{"rename onto", [][]any{{"SET", "else", "new", "PXAT", far}, {"RENAME", "else", k}}, "t", far, "new"},
		{"copy onto", [][]any{{"SET", "else", "new", "PXAT", far}, {"COPY", "else", k, "REPLACE"}}, "t", far, "new"},
		{"timerless rename onto", [][]any{{"SET", "else", "new"}, {"RENAME", "else", k}}, "t", 0, ""},
		{"event of a state that is over", [][]any{{"DEL", k}, {"SET", k, "new", "PXAT", far}}, "g", far, "new"},
		{"touched then gone", [][]any{{"DEL", k}}, "t", -1, "old"},
		{"evicted", [][]any{{"DEL", k}}, "v", -1, "old"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIndex(t)
			x.do("SET", k, "old", "PX", 60000)
			was := x.do("PEXPIRETIME", k)
			if seen := x.hint("t " + k); seen.Adopted != 1 || seen.Heads[0].Due != was {
				t.Fatalf("adopting: %+v, want one with head %v", seen, was)
			}
			if seen := x.hint("t " + k); seen.Adopted+seen.Rescheduled+seen.Cancelled != 0 {
				t.Fatalf("adopting again: %+v", seen)
			}
			for _, command := range c.commands {
				x.do(command...)
			}
			for range 2 {
				x.hint(c.hint + " " + k)
			}
			want := c.due
			if c.due == -1 {
				want, _ = was.(int64)
			}
			got, err := x.rdb.ZScore(t.Context(), keys.Single.Due(), k).Result()
			switch {
			case want == 0 && err == nil:
				t.Fatalf("still due at %.0f, want cancelled", got)
			case want == 0:
				x.empty()
			case int64(got) != want:
				t.Fatalf("due at %.0f, want %d (%v)", got, want, err)
			default:
				record := fmt.Sprint(x.do("HGET", keys.Single.Data(), k))
				if _, payload, _ := strings.Cut(record, ":"); payload != c.payload {
					t.Errorf("payload %q, want %q", payload, c.payload)
				}
			}
		})
	}
}

func TestPayloadTypes(t *testing.T) {
	x := newIndex(t)
	x.do("HSET", "a:b:c:hash", "order", "42", "na\"me", "a\x01b")
	x.do("HSET", "a:b:c:bighash", "f", strings.Repeat("v", 1000))
	x.do("RPUSH", "a:b:c:list", "1")
	x.do("SET", "a:b:c:empty", "")
	x.do("SET", "a:b:c:full", strings.Repeat("v", 1000))
	x.do("SET", "a:b:c:over", strings.Repeat("v", 1001))
	x.do("SET", "a:b:c:raw", "\x00\xff:\r\n")
	names := []string{"bighash", "empty", "full", "hash", "list", "over", "raw"}
	at := x.redisNow() + 300
	for _, name := range names {
		x.do("PEXPIREAT", "a:b:c:"+name, at)
		x.hint("t a:b:c:" + name)
	}
	x.after(at)
	x.wants(
		"a:b:c:bighash deadline status 2",
		"a:b:c:empty deadline ",
		"a:b:c:full deadline "+strings.Repeat("v", 1000),
		`a:b:c:hash deadline {"order":"42","na\"me":"a\u0001b"}`,
		"a:b:c:list deadline status 1",
		"a:b:c:over deadline status 2",
		"a:b:c:raw deadline \x00\xff:\r\n",
	)
}

func TestMarkedKeys(t *testing.T) {
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "mine", "PX", 60000, "ATTEMPT", 3)
	value, _ := x.do("GET", k).(string)
	payload := func(want string) {
		t.Helper()
		x.hint("t " + k)
		got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k))
		if _, got, _ := strings.Cut(got, "attempt "); got != want+"]" {
			t.Fatalf("timer_get: attempt %s, want %s", got, want)
		}
	}
	x.do("PEXPIRE", k, 90000)
	payload("3 payload mine")
	x.do("APPEND", k, "more")
	payload("1 payload more")
	x.do("SET", k, `{"attempt":5}`, "PX", 60000)
	payload(`5 payload {"attempt":5}`)
	x.do("FCALL", "timer_set", 1, k, value, "PX", 60000)
	payload("1 payload " + value)

	// The mark alone, under another name, says that the payload is not there.
	x.do("COPY", k, k+"2")
	x.hint("t " + k + "2")
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k+"2")); !strings.HasSuffix(got, "payload <nil>]") {
		t.Errorf("a copied mark: %s", got)
	}
}

func TestExpiredEvents(t *testing.T) {
	x := newIndex(t)

	// Ahead of the claim: it fires, once.
	x.do("SET", k, "v1", "PX", 30)
	x.hint("t " + k)
	x.expire(k)
	if seen := x.hint("x " + k); seen.Owed != 1 {
		t.Fatalf("expired: %+v, want one owed", seen)
	}
	x.hint("x " + k)
	x.hint("t " + k)
	x.wants(k + " expired v1")
	x.wants()

	// Never adopted: it fires without data, once whoever else saw the event.
	other := k + "-other"
	x.hint("x " + other)
	x.hint("x " + other)
	firings := x.wants(other + " expired status 1")
	if age := firings[0].ClaimedAt.UnixMilli() - firings[0].Due; age < 0 || age > 10000 {
		t.Errorf("due %d ms before the claim, want when the event was seen", age)
	}

	// Shortened, and the event of that was lost.
	third := k + "-third"
	x.do("SET", third, "v3", "PX", 60000)
	x.hint("t " + third)
	x.do("PEXPIRE", third, 10)
	x.expire(third)
	x.hint("x " + third)
	x.wants(third + " expired v3")

	// A late event of the firing before says nothing about the timer set since.
	x.do("SET", k, "v2", "PX", 60000)
	x.hint("t " + k)
	x.hint("x " + k)
	x.wants()
	if _, err := x.rdb.ZScore(t.Context(), keys.Single.Due(), k).Result(); err != nil {
		t.Error("the timer set since is gone")
	}
}

func TestOwedIsNeverOverwritten(t *testing.T) {
	t.Run("by timer_set", func(t *testing.T) {
		x := newIndex(t)
		x.do("SET", k, "v1", "PX", 20)
		x.hint("t " + k)
		x.expire(k)
		x.do("FCALL", "timer_set", 1, k, "v2", "PX", 30)
		x.hint("x "+k, "t "+k)
		x.expire(k)
		x.wants(k+" deadline v1", k+" deadline v2")
	})
	t.Run("by a plain set after its expired event", func(t *testing.T) {
		x := newIndex(t)
		x.do("SET", k, "v1", "PX", 20)
		x.hint("t " + k)
		x.expire(k)
		x.do("SET", k, "v2", "PX", 30)
		x.hint("x "+k, "t "+k)
		x.expire(k)
		x.wants(k+" expired v1", k+" deadline v2")
	})
	t.Run("after its expired event was taken in", func(t *testing.T) {
		x := newIndex(t)
		x.do("SET", k, "v1", "PX", 20)
		x.hint("t " + k)
		x.expire(k)
		x.hint("x " + k)
		x.do("SET", k, "v2", "PX", 30)
		x.hint("t " + k)
		x.expire(k)
		x.wants(k+" expired v1", k+" deadline v2")
		x.wants()
	})
	t.Run("by timer_set after its expired event was taken in", func(t *testing.T) {
		x := newIndex(t)
		x.do("SET", k, "v1", "PX", 20)
		x.hint("t " + k)
		x.expire(k)
		x.hint("x "+k, "x "+k)
		x.do("FCALL", "timer_set", 1, k, "v2", "PX", 30)
		x.hint("t " + k)
		x.expire(k)
		x.wants(k+" expired v1", k+" deadline v2")
	})
	t.Run("when the claim is ahead of the expired event", func(t *testing.T) {
		x := newIndex(t)
		x.do("SET", k, "v1", "PX", 20)
		x.hint("t " + k)
		x.expire(k)
		x.do("SET", k, "v2", "PX", 30)
		x.wants()
		x.hint("x "+k, "t "+k)
		x.expire(k)
		x.wants(k+" expired v1", k+" deadline v2")
		x.wants()
	})
	t.Run("by a key without TTL", func(t *testing.T) {
		x := newIndex(t)
		x.do("SET", k, "v1", "PX", 20)
		x.hint("t " + k)
		x.expire(k)
		x.do("SET", k, "v2")
		x.wants()
		x.hint("x "+k, "t "+k)
		x.wants(k + " expired v1")
	})
	for _, wait := range []int64{0, 150, 4000} {
		t.Run(fmt.Sprintf("when nobody was there to see it, %d ms late", wait), func(t *testing.T) {
			x := newIndex(t)
			x.do("SET", k, "v1", "PX", 20)
			x.hint("t " + k)
			due, _ := x.do("PEXPIRETIME", k).(int64)
			x.after(due + wait)
			x.do("SET", k, "v2", "PX", 60000)
			x.since = schedule.NoEvents
			x.wants(k + " deadline v1")
			if _, err := x.rdb.ZScore(t.Context(), keys.Single.Due(), k).Result(); err != nil {
				t.Error("the timer set since was not adopted")
			}
		})
	}
}

// Extended, persisted, or set to the same again, before or after it was due: what
// no event tells is decided for the key as it is now.
func TestLostEventsHealAtTheClaim(t *testing.T) {
	for _, c := range []struct {
		name   string
		events bool  // whether events were heard, but not those of the changes
		delay  int64 // of the timers, in ms
		wait   int64 // for the claim after the due time, in ms
	}{
		{"events lost", true, 300, 0},
		{"no events", false, 300, 0},
		{"after a downtime", false, 300, 1000},
		{"after a long downtime", false, 3000, 4000},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIndex(t)
			if !c.events {
				x.since = schedule.NoEvents
			}
			for _, name := range []string{"extended", "persisted", "deleted", "replaced"} {
				x.do("SET", "a:b:c:"+name, name, "PX", c.delay)
				x.hint("t a:b:c:" + name)
			}
			due, _ := x.do("PEXPIRETIME", "a:b:c:persisted").(int64)
			x.do("PEXPIREAT", "a:b:c:extended", due+c.wait+3000)
			x.do("PERSIST", "a:b:c:persisted")
			x.do("DEL", "a:b:c:deleted")
			x.do("SET", "a:b:c:replaced", "new", "PXAT", due+c.wait+3000)
			x.after(due + c.wait)
			// That a deletion nobody heard of fires is a known limit; and so does a
			// value that was replaced shortly before a downtime's due time.
			want := []string{"a:b:c:deleted deadline deleted"}
			if !c.events && c.delay < 1000 {
				want = append(want, "a:b:c:replaced deadline replaced")
			}
			x.settles(want...)
			x.expire("a:b:c:extended")
			x.settles("a:b:c:extended deadline extended", "a:b:c:replaced deadline new")
			testenv.Eventually(t, 20*time.Second, func() bool {
				x.wants()
				return x.do("EXISTS", keys.Single.Due()) == int64(0)
			}, "doubts to go")
		})
	}
}

// A doubt outlives the events that would have settled it.
func TestDoubtWhoseEventWasLost(t *testing.T) {
	x := newIndex(t)
	x.do("SET", k, "v1", "PX", 20)
	x.hint("t " + k)
	x.expire(k)
	x.do("SET", k, "v2", "PX", 60000)
	x.wants()
	x.since = schedule.NoEvents // the subscription turned out to be dead
	var said []string
	testenv.Eventually(t, 20*time.Second, func() bool {
		_, said = x.claim()
		return len(said) > 0
	}, "the doubt to be decided")
	if len(said) != 1 || said[0] != k+" deadline v1" {
		t.Errorf("fired %q, want the owed one", said)
	}
}

func TestClaimsOfTheDead(t *testing.T) {
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k, "p", "PX", 20)
	x.expire(k)
	const short = 100 * time.Millisecond
	c, err := x.Claim(t.Context(), keys.Single, short, 0, 0)
	if err != nil || len(c.Firings) != 1 {
		t.Fatalf("claim: %+v, %v", c, err)
	}
	if want := c.At.UnixMilli() + short.Milliseconds(); c.Next != want {
		t.Errorf("next %d, want the end of the lease %d", c.Next, want)
	}
	x.wants()
	x.after(c.Next)
	again := x.wants(k + " reclaim p")
	if again[0].Ref != c.Firings[0].Ref {
		t.Errorf("reclaimed as %s, want %s", again[0].Ref, c.Firings[0].Ref)
	}

	// The sleeper wakes up: it cannot give back what is another's.
	if err := x.Release(t.Context(), c.Firings); err != nil {
		t.Fatal(err)
	}
	x.wants()
	if err := x.Release(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	x.wants(k + " deadline p")
	// But what it has published is published.
	if err := x.Settle(t.Context(), c.Firings); err != nil {
		t.Fatal(err)
	}
	x.empty()
}

func TestClaimIsBounded(t *testing.T) {
	x := newIndex(t)
	at := x.redisNow() + 500
	const n = 2*schedule.MaxClaim + 10
	for i := range n {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%d", i), "p", "PXAT", at)
	}
	x.after(at)
	seen := map[string]bool{}
	for _, want := range []int{schedule.MaxClaim, schedule.MaxClaim, 10} {
		firings, _ := x.claim()
		if len(firings) != want {
			t.Fatalf("claimed %d, want %d", len(firings), want)
		}
		for _, f := range firings {
			seen[f.Ref] = true
		}
	}
	if len(seen) != n {
		t.Errorf("%d distinct firings, want %d", len(seen), n)
	}
}

func TestAudit(t *testing.T) {
	x := newIndex(t)
	for _, name := range []string{"kept", "deleted", "persisted", "moved", "evicted"} {
		x.do("SET", "a:b:c:"+name, name, "PX", 60000)
		x.hint("t a:b:c:" + name)
	}
	x.do("DEL", "a:b:c:deleted", "a:b:c:evicted")
	x.hint("v a:b:c:evicted")
	x.do("PERSIST", "a:b:c:persisted")
	x.do("PEXPIRE", "a:b:c:moved", 90000)
	audit := func(mayEvict bool) schedule.Observed {
		var all schedule.Observed
		for cursor := uint64(0); ; {
			next, seen, err := x.AuditPage(t.Context(), keys.Single, cursor, 2, mayEvict)
			if err != nil {
				t.Fatal(err)
			}
			all.Add(seen)
			if cursor = next; cursor == 0 {
				return all
			}
		}
	}
	if seen := audit(true); seen.Cancelled != 1 || seen.Rescheduled != 1 {
		t.Errorf("where keys may be evicted: %+v, want the persisted one cancelled and the moved one rescheduled", seen)
	}
	if seen := audit(false); seen.Cancelled != 1 || seen.Rescheduled != 0 {
		t.Errorf("where they may not: %+v, want the deleted one cancelled", seen)
	}
	if n := x.do("ZCARD", keys.Single.Due()); n != int64(3) {
		t.Errorf("%v timers left, want 3", n)
	}
}

func TestRanks(t *testing.T) {
	x := newIndex(t)
	ctx := context.Background()
	beat := func(id string, rank, of int) {
		t.Helper()
		gotRank, gotOf, err := x.Beat(ctx, id, time.Minute)
		if err != nil || gotRank != rank || gotOf != of {
			t.Fatalf("%s: rank %d of %d (%v), want %d of %d", id, gotRank, gotOf, err, rank, of)
		}
	}
	beat("b", 0, 1)
	beat("a", 0, 2)
	beat("b", 1, 2)
	if err := x.Retire(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	beat("b", 0, 1)
}

func TestList(t *testing.T) {
	x := newIndex(t)
	for i := range 250 {
		x.do("FCALL", "timer_set", 1, fmt.Sprintf("a:b:c:%03d", i), i, "PX", 60000+i, "ATTEMPT", i+1)
	}
	x.do("FCALL", "timer_set", 1, "z:b:c:d", "", "PX", 1000)
	var got []string
	err := x.List(t.Context(), keys.Namespace{App: "a"}, func(p schedule.Pending) bool {
		if string(p.Payload) != fmt.Sprint(len(got)) || p.Attempt != len(got)+1 {
			t.Errorf("%s: payload %q, attempt %d", p.Key, p.Payload, p.Attempt)
		}
		got = append(got, p.Key.ID)
		return len(got) < 240
	})
	if err != nil || len(got) != 240 || got[239] != "239" {
		t.Errorf("listed %d, %v", len(got), err)
	}
}
