package notify

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/schedule"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	const lease, window = 10 * time.Second, 2 * time.Minute
	claimed := time.UnixMilli(1_800_000_000_000)
	most := policy.Limit{Given: true, Most: 5 * time.Minute}
	drops := policy.Limit{Given: true, Most: 5 * time.Minute, Drop: true}
	const soon, longAgo = time.Millisecond, time.Hour
	// A firing may be published again until its lease ends; JetStream knows it within the window, less the slack.
	const known = window - knownSlack - lease
	for name, c := range map[string]struct {
		by     time.Duration // lateness of the claim
		firing schedule.Firing
		terms  terms
		want   fate
		reason string
	}{
		"on time":              {by: soon, want: publish},
		"late without a limit": {by: longAgo, want: publish},
		"at its limit":         {by: most.Most, terms: terms{limit: most}, want: publish},
		"beyond its limit": {by: most.Most + time.Millisecond, terms: terms{limit: most}, want: bury,
			reason: "late: 5m0.001s after its due time, at most 5m0s"},
		"beyond one that drops": {by: longAgo, terms: terms{limit: drops}, want: drop,
			reason: "late: 1h0m0s after its due time, at most 5m0s"},
		"beyond it, perhaps published": {by: longAgo, firing: schedule.Firing{MayBeStored: true},
			terms: terms{limit: drops}, want: bury, reason: "; may have been published"},
		"held": {by: soon, firing: schedule.Firing{Held: true}, want: bury,
			reason: event.ReasonHeld},
		"held, and beyond one that drops": {by: longAgo, firing: schedule.Firing{Held: true},
			terms: terms{limit: drops}, want: bury, reason: event.ReasonHeld},
		"a guard says no": {by: soon, firing: schedule.Firing{Refusal: policy.Refusal{Guard: "paid:1"}}, want: guarded,
			reason: "paid:1 was there"},
		"a guard says no, reclaimed too late for JetStream": {by: longAgo,
			firing: schedule.Firing{Refusal: policy.Refusal{Guard: "a\n", Missing: true}}, terms: terms{knows: window},
			want: guarded, reason: "a%0A was not there"},
		"too late comes first": {by: longAgo, firing: schedule.Firing{Refusal: policy.Refusal{Guard: "paid:1"}},
			terms: terms{limit: drops}, want: drop, reason: "late: "},
		"held comes first": {by: soon, firing: schedule.Firing{Held: true, Refusal: policy.Refusal{Guard: "paid:1"}},
			want: bury, reason: event.ReasonHeld},
		"a guard cannot be read": {by: soon, firing: schedule.Firing{Refusal: policy.Refusal{Guard: "a", Unread: true}},
			want: asideGuard, reason: "timerd may not read its guard a"},
		"cannot repeat": {by: soon, firing: schedule.Firing{Fault: "no such zone"}, want: bury,
			reason: event.ReasonRepeat + "no such zone"},

		"perhaps published, and known": {by: known, firing: schedule.Firing{MayBeStored: true},
			terms: terms{knows: window}, want: publish},
		"perhaps published, and forgotten": {by: known + time.Millisecond, firing: schedule.Firing{MayBeStored: true},
			terms: terms{knows: window}, want: seek},
		"perhaps published, window unknown": {by: soon, firing: schedule.Firing{MayBeStored: true}, want: seek},
		"not published, however late":       {by: longAgo, terms: terms{knows: window}, want: publish},
		"perhaps published under another id": {by: soon, firing: schedule.Firing{MayBeStored: true},
			terms: terms{knows: window, otherID: true}, want: seek},
	} {
		f := c.firing
		f.ClaimedAt, f.Lease, f.Due = claimed, lease, schedule.MillisOf(claimed.Add(-c.by))
		what, reason := classify(&f, c.terms)
		if what != c.want || (reason == "") != (c.reason == "") || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: %v for %q, want %v for %q", name, what, reason, c.want, c.reason)
		}
	}
}

// An event on a failing subject is given back, even one to be looked for; a dead letter ignores the lanes of events.
func TestFailingSubjectParks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		firing schedule.Firing
		parks  schedule.OutcomeKind // or 0
	}{
		"an event":                  {schedule.Firing{}, schedule.OutcomeRefused},
		"an event to be looked for": {schedule.Firing{MayBeStored: true}, schedule.OutcomeRefused},
		"a held firing":             {schedule.Firing{Held: true}, 0},
		"a guarded firing":          {schedule.Firing{Refusal: policy.Refusal{Guard: "a"}}, 0},
		"an unreadable guard": {schedule.Firing{Refusal: policy.Refusal{Guard: "a", Unread: true}},
			schedule.OutcomeUnread},
		"a late firing that is dropped": {schedule.Firing{Late: policy.Limit{Given: true, Most: time.Second,
			Drop: true}}, 0},
	} {
		p, f := newTestFlight(t)
		lane, _ := f.subjects.Enter("s", p.size(), 0)
		f.subjects.Leave(lane, 0, lanes.Fails)
		f.subjects.Enter("s", p.size(), 0) // the event that is tried
		d := &delivery{subject: "s", server: "a", firing: c.firing}
		now := time.Now()
		d.firing.Partition, d.firing.Lease, d.firing.ClaimedAt, d.firing.Received = "a1", time.Minute, now, now
		d.firing.Due = schedule.MillisOf(now.Add(-time.Hour))
		d.fate, d.reason = classify(&d.firing, terms{limit: d.firing.Late})
		if !p.window.take(d.server, 0) || p.dispatch(d) {
			t.Errorf("%s: it flies", name)
		}
		there := on("a1", "")
		given, _, _ := p.settler.queueOf(&there).next(true)
		parks := len(given) == 1 && given[0].Kind == c.parks && given[0].Pause >= failingPause
		if parks != (c.parks != 0) || len(given) > 1 {
			t.Errorf("%s: given back %+v", name, given)
		}
		if n := f.subjects.Load().Tries; n != 1 {
			t.Errorf("%s: %d are in the lanes of events, want the one that is tried", name, n)
		}
	}
}

func TestLimitOfAFiring(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseLimits("shop:otp=30s drop")
	if err != nil {
		t.Fatal(err)
	}
	f := schedule.Firing{}
	f.Key.App, f.Key.Module = "shop", "otp"
	if l := limitOf(&f, rules); l.Most != 30*time.Second || !l.Drop {
		t.Errorf("that of its namespace: %+v", l)
	}
	f.Late = policy.Limit{Given: true}
	if l := limitOf(&f, rules); l != f.Late {
		t.Errorf("its own: %+v", l)
	}
}

func TestParkedForAPartOfItsAge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		age  time.Duration
		why  lanes.Answer
		want time.Duration
	}{
		{0, lanes.Crowded, crowdedPause}, {0, lanes.Failing, failingPause},
		{40 * time.Second, lanes.Crowded, 10 * time.Second}, {40 * time.Second, lanes.Failing, 10 * time.Second},
		{time.Hour, lanes.Failing, longestParked},
	} {
		now := time.Now()
		f := schedule.Firing{ClaimedAt: now, Received: now, Due: schedule.MillisOf(now.Add(-c.age))}
		if got := parked(&f, c.why); got < c.want || got > c.want+time.Second {
			t.Errorf("due for %v, %v: %v, want %v", c.age, c.why, got, c.want)
		}
	}
}
