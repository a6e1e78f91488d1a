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
	// Until the end of the lease it may be published again: within the window, but for its slack, JetStream knows it.
	const known = window - knownSlack - lease
	for name, c := range map[string]struct {
		by     time.Duration // how late it was claimed
		firing schedule.Firing
		terms  terms
		answer lanes.Answer
		want   fate
		reason string
		asks   bool // for a place in the lane of its subject
	}{
		"on time":                         {by: soon, want: publish, asks: true},
		"late without a limit":            {by: longAgo, want: publish, asks: true},
		"at its limit":                    {by: most.Most, terms: terms{limit: most}, want: publish, asks: true},
		"beyond its limit":                {by: most.Most + time.Millisecond, terms: terms{limit: most}, want: bury, reason: "late: 5m0.001s after its due time, at most 5m0s"},
		"beyond one that drops":           {by: longAgo, terms: terms{limit: drops}, want: drop, reason: "late: 1h0m0s after its due time, at most 5m0s"},
		"beyond it, perhaps published":    {by: longAgo, firing: schedule.Firing{MayBeStored: true}, terms: terms{limit: drops}, want: bury, reason: "; may have been published"},
		"held":                            {by: soon, firing: schedule.Firing{Held: true}, want: bury, reason: event.ReasonHeld},
		"held, and beyond one that drops": {by: longAgo, firing: schedule.Firing{Held: true}, terms: terms{limit: drops}, want: bury, reason: event.ReasonHeld},
		"cannot repeat":                   {by: soon, firing: schedule.Firing{Fault: "no such zone"}, want: bury, reason: event.ReasonRepeat + "no such zone"},
		"a letter whose subject is full":  {by: soon, firing: schedule.Firing{Held: true}, answer: lanes.Failing, want: bury, reason: event.ReasonHeld},

		"perhaps published, and known":          {by: known, firing: schedule.Firing{MayBeStored: true}, terms: terms{knows: window}, want: publish, asks: true},
		"perhaps published, and forgotten":      {by: known + time.Millisecond, firing: schedule.Firing{MayBeStored: true}, terms: terms{knows: window}, want: seek, asks: true},
		"perhaps published, window unknown":     {by: soon, firing: schedule.Firing{MayBeStored: true}, want: seek, asks: true},
		"not published, however late":           {by: longAgo, terms: terms{knows: window}, want: publish, asks: true},
		"perhaps published under another id":    {by: soon, firing: schedule.Firing{MayBeStored: true}, terms: terms{knows: window, otherID: true}, want: seek, asks: true},
		"its subject fails":                     {by: soon, answer: lanes.Failing, want: park, asks: true},
		"too many on subjects without trust":    {by: soon, answer: lanes.Crowded, want: park, asks: true},
		"to be looked for, on one that fails":   {by: longAgo, firing: schedule.Firing{MayBeStored: true}, terms: terms{knows: window}, answer: lanes.Failing, want: park, asks: true},
		"at its limit, and its subject fails":   {by: most.Most, terms: terms{limit: most}, answer: lanes.Failing, want: park, asks: true},
		"dropped, whatever its subject is like": {by: longAgo, terms: terms{limit: drops}, answer: lanes.Failing, want: drop, reason: "late: "},
	} {
		f := c.firing
		f.ClaimedAt, f.Lease, f.Due = claimed, lease, schedule.MillisOf(claimed.Add(-c.by))
		asked, seeking := 0, false
		what, reason := classify(&f, c.terms, func(what fate) lanes.Answer {
			asked++
			seeking = what == seek
			return c.answer
		})
		if what != c.want || (reason == "") != (c.reason == "") || !strings.Contains(reason, c.reason) {
			t.Errorf("%s: %v for %q, want %v for %q", name, what, reason, c.want, c.reason)
		}
		if asked > 1 || (asked == 1) != c.asks || c.want == seek && !seeking || c.want == publish && seeking {
			t.Errorf("%s: it asks %d times for a place, to look for the event: %v", name, asked, seeking)
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
		{40 * time.Second, lanes.Crowded, 10 * time.Second}, {40 * time.Second, lanes.Failing, 10 * time.Second}, {time.Hour, lanes.Failing, longestParked},
	} {
		now := time.Now()
		f := schedule.Firing{ClaimedAt: now, Received: now, Due: schedule.MillisOf(now.Add(-c.age))}
		if got := parked(&f, c.why); got < c.want || got > c.want+time.Second {
			t.Errorf("due for %v, %v: %v, want %v", c.age, c.why, got, c.want)
		}
	}
}
