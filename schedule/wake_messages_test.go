package schedule_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// told returns the messages on the wake channel while do runs, from the first one about a due time or a claim.
func (x *index) told(do func()) string {
	x.t.Helper()
	sub := x.rdb.Subscribe(x.t.Context(), keys.WakeChannel)
	defer func() { _ = sub.Close() }()
	if _, err := sub.Receive(x.t.Context()); err != nil {
		x.t.Fatal(err)
	}
	do()
	x.do("PUBLISH", keys.WakeChannel, "the end")
	for {
		m, err := sub.ReceiveMessage(x.t.Context())
		if err != nil {
			x.t.Fatal(err)
		}
		if !strings.HasPrefix(m.Payload, keys.AppMessage) {
			return m.Payload
		}
	}
}

// The events of what timer_set and a claim do are explained by a message, which every timerd hears.
func TestWakeMessages(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	var due any
	if got := x.told(func() { due = x.do("FCALL", "timer_set", 1, k, "p", "PX", 50) }); got != fmt.Sprintf("t %d 0 %s",
		due, k) {
		t.Errorf("timer_set told %q", got)
	}
	x.awaitExpiry(k)
	if got := x.told(func() { x.claims(k + " deadline p") }); got != fmt.Sprintf("claimed 0 %d:%s", len(k), k) {
		t.Errorf("the claim told %q", got)
	}
}

// Nothing is told of a key with a contested timer, which an event of the key decides.
func TestNoWakeMessageOfContestedTimers(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.contest()
	if got := x.told(func() { x.do("FCALL", "timer_set", 1, k, "p", "PX", 50) }); strings.Contains(got, k) {
		t.Errorf("timer_set told %q", got)
	}
	x.awaitExpiry(k)
	x.do("FCALL", "timer_set", 1, "a:b:c:other", "p", "PX", 1)
	x.awaitExpiry("a:b:c:other")
	if got := x.told(func() { x.claimOnce() }); got != "claimed 0 11:a:b:c:other" {
		t.Errorf("the claim told %q", got)
	}
}

// Nor is anything told if timer_set itself made the older timer a contested one.
func TestNoWakeMessageOfTimersThatBecomeContested(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("SET", k, "v", "PX", brief)
	x.observe(touched(k))
	due := x.due(k)
	x.do("PEXPIREAT", k, due+60_000) // and nobody has heard of it
	x.awaitClock(due)
	if got := x.told(func() { x.do("FCALL", "timer_set", 1, k, "p", "PX", 5000) }); strings.Contains(got, k) {
		t.Errorf("timer_set told %q", got)
	}
	if x.do("ZSCORE", keys.Single.Due(), ":?:"+k) == nil {
		t.Error("the older timer is not contested")
	}
}

// All databases share the function library, so nothing in it knows a database.
func TestOneLibraryServesAllDatabases(t *testing.T) {
	t.Parallel()
	w := newTwins(t)
	w.both(func(x *index) {
		if state, _, err := x.Library(t.Context()); err != nil || state != schedule.LibraryCurrent {
			t.Errorf("in database %d it is %s, %v", x.rdb.Options().DB, state, err)
		}
	})
}
