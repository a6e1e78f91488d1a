package retry

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// A timer that is postponed again and again is due later each time, also where JetStream's clock is behind Redis's: its
// firings have the same attempt, so equal due times would give two of them one id, and one would be lost. What a forged
// due time asks for has its bound.
func TestPostponedIsDueLaterThanBefore(t *testing.T) {
	t.Parallel()
	k := keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1"}
	stored := time.UnixMilli(1_800_000_000_000)
	for _, test := range []struct {
		ahead time.Duration // by how much the event's due time is ahead of JetStream's clock
		want  schedule.Millis
	}{
		{-time.Second, 1_800_000_000_100},
		{100 * time.Millisecond, 1_800_000_000_101},
		{200 * time.Millisecond, 1_800_000_000_201},
		{2 * policy.Longest, schedule.MillisOf(stored.Add(policy.Longest))},
	} {
		e := event.Event{
			ID: keys.EventID(k.String(), stored.Add(test.ahead).UnixMilli(), 2), Type: event.TypeFired, Key: k,
			Time: stored, Due: stored.Add(test.ahead),
			Attempt: 2, MaxAttempts: 3, Trigger: "deadline", Data: []byte("x"),
		}
		d := decide("timers", nil, schedule.DefaultMaxPayload, event.Stored{
			Subject: "timers.retry.app1.trans.notice", Data: e.AppendJSON(nil), Stream: "TIMERS_RETRY", Seq: 7,
			Time:   stored,
			Header: nats.Header{event.PostponeHeader: {event.Postponed}, event.DelayHeader: {"100ms"}},
		})
		if d.letter != nil || !d.postponed || d.retry.Due != test.want || d.retry.Attempt != 2 {
			t.Errorf("%v ahead: %+v, want it due at %d", test.ahead, d, test.want)
		}
	}
}

// A consumer may ask for patience, and cannot use up its attempts by asking for none: the policy's delay counts where
// it is longer.
func TestLeastDelayNeverShortensThePolicy(t *testing.T) {
	t.Parallel()
	policies, err := policy.ParseRetries("*=1m,1h")
	if err != nil {
		t.Fatal(err)
	}
	k := keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1"}
	stored := time.UnixMilli(1_800_000_000_000)
	for _, test := range []struct {
		header  nats.Header
		attempt int
		want    time.Duration // 0: a dead letter
	}{
		{nats.Header{event.LeastDelayHeader: {"0s"}}, 1, time.Minute},
		{nats.Header{event.LeastDelayHeader: {"59s"}}, 1, time.Minute},
		{nats.Header{"timer-delay-least": {"61s"}}, 1, 61 * time.Second},
		{nats.Header{event.LeastDelayHeader: {"61s"}}, 2, time.Hour},
		{nats.Header{event.LeastDelayHeader: {"61s"}}, 3, 0}, // it adds no attempt
		{nats.Header{event.LeastDelayHeader: {"61s"}, event.DelayHeader: {"2s"}}, 1, 0},
		{nats.Header{event.LeastDelayHeader: {"61s"}, event.PostponeHeader: {"1"}}, 1, 0},
		{nats.Header{event.LeastDelayHeader: {"soon"}}, 1, 0},
		{nats.Header{event.LeastDelayHeader: {"-1s"}}, 1, 0},
		{nats.Header{event.LeastDelayHeader: {"1s", "2s"}}, 1, 0},
	} {
		e := event.Event{
			ID: keys.EventID(k.String(), stored.UnixMilli(), test.attempt), Type: event.TypeFired, Key: k, Time: stored,
			Due:     stored,
			Attempt: test.attempt, MaxAttempts: 3, Trigger: "deadline", Data: []byte("x"),
		}
		d := decide("timers", policies, schedule.DefaultMaxPayload, event.Stored{
			Subject: "timers.retry.app1.trans.notice", Data: e.AppendJSON(nil), Stream: "TIMERS_RETRY", Seq: 7,
			Time: stored, Header: test.header,
		})
		if test.want == 0 {
			if d.letter == nil {
				t.Errorf("%v of attempt %d: %+v, want a dead letter", test.header, test.attempt, d.retry)
			}
		} else if d.letter != nil || d.retry.Due != schedule.MillisOf(stored.Add(test.want)) ||
			d.retry.Attempt != test.attempt+1 {
			t.Errorf("%v of attempt %d: %+v, want it after %v", test.header, test.attempt, d, test.want)
		}
	}
}
