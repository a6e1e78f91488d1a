package ledger_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// books are a schedule with an account, the streams, and a keeper of the ledger.
type books struct {
	*testenv.Schedule
	ledger.Keeper
	t *testing.T
}

func newBooks(t *testing.T) *books {
	t.Helper()
	b := &books{Schedule: testenv.NewSchedule(t), t: t}
	js := testenv.NATS(t).JetStream()
	b.Keeper = ledger.Keeper{
		Sources: ledger.Sources{Schedule: b.Schedule.Schedule, JetStream: js},
		Logger:  slog.New(slog.DiscardHandler),
	}
	b.makeStreams()
	b.begin()
	return b
}

// makeStreams makes the streams, and counts the timers as a timerd does: that makes the stream of the state.
func (b *books) makeStreams() {
	b.t.Helper()
	if err := streams.Ensure(b.t.Context(), b.JetStream, b.Streams); err != nil {
		b.t.Fatal(err)
	}
	_, err := b.JetStream.CreateOrUpdateStream(b.t.Context(), jetstream.StreamConfig{Name: "TIMERS_STATE",
		Subjects: []string{"timers.state.>"}, MaxMsgsPerSubject: 1})
	if err != nil {
		b.t.Fatal(err)
	}
}

// begin begins an account.
func (b *books) begin() {
	b.t.Helper()
	if _, err := b.Node.KeepAccount(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// store stores events in the stream of firings.
func (b *books) store(n int) {
	b.t.Helper()
	for range n {
		if _, err := b.JetStream.Publish(b.t.Context(), "timers.fired.app1.trans.notice", nil); err != nil {
			b.t.Fatal(err)
		}
	}
}

// fire claims timers that are due at once, stores so many events, and settles the timers.
func (b *books) fire(timers, events int) {
	b.t.Helper()
	b.SetDue(timers)
	firings := b.Claim(timers, time.Minute)
	b.store(events)
	if err := b.Settle(b.t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		b.t.Fatal(err)
	}
}

// wants has a timerd compare, and wants a range of unexplained events after so many stored ones. What timerd account
// says without storing anything is the same.
func (b *books) wants(name string, stored, least, most int64) {
	b.t.Helper()
	if err := b.LookNow(b.t.Context()); err != nil {
		b.t.Fatal(name, err)
	}
	c, err := ledger.Read(b.t.Context(), b.JetStream, b.Streams)
	if err != nil {
		b.t.Fatal(name, err)
	}
	_, now, err := b.Compare(b.t.Context())
	is, want := fmt.Sprintln(c.Stored, c.Least, c.Most), fmt.Sprintln(stored, least, most)
	if err != nil || is != want || is != fmt.Sprintln(now.Stored, now.Least, now.Most) ||
		(least <= 0 && most >= 0) != c.Unexplained.IsZero() {
		b.t.Errorf("%s: %+v, by the command %+v, %v; want %s", name, c, now, err, want)
	}
}

// Events and timers fired are compared from the beginning of an account on. Those in flight make a range.
func TestEventsBesideTheAccount(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.store(7) // before the comparison
	b.wants("at the beginning", 0, 0, 0)
	b.fire(3, 3)
	b.wants("fired", 3, 0, 0)

	b.SetDue(2)
	firings := b.Claim(2, time.Minute)
	b.wants("claimed", 3, 0, 0) // each look narrows the range
	b.store(2)
	b.wants("stored", 5, 0, 0)
	outcomes := schedule.Outcomes(schedule.OutcomeFired, firings...)
	if err := b.Settle(t.Context(), outcomes); err != nil {
		t.Fatal(err)
	}
	b.wants("settled", 5, 0, 0)

	b.fire(2, 0)
	b.wants("without their events", 5, -2, -2)
	b.store(2)
	b.wants("with events of somebody else in their place", 7, 0, 0)
	b.store(1)
	b.wants("with one more", 8, 1, 1)
}

// Firings in flight widen the range, and so do dead letters whose events may be stored. Others do not, nor do timers
// that wait.
func TestTheRangeOfAComparison(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.SetDue(5)
	firings := b.Claim(5, time.Minute)
	b.waiting("shop:a:b:1")
	b.wants("with firings in flight", 0, -5, 5)
	b.store(2)
	b.wants("two are stored", 2, -3, 5)
	outcomes := schedule.Outcomes(schedule.OutcomeFired, firings[:2]...)
	for i, f := range firings[2:] {
		dead := f.Outcome(schedule.OutcomeDead)
		dead.MayBeStored = i == 0
		outcomes = append(outcomes, dead)
	}
	if err := b.Settle(t.Context(), outcomes); err != nil {
		t.Fatal(err)
	}
	b.wants("settled", 2, -1, 5)
	a, err := b.Account(t.Context())
	if err != nil || a.Out.Dead != 3 || a.Unsure != 1 || a.InFlight != 0 || a.Difference != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// An account that is begun anew knows how many timers had fired before.
func TestAnAccountBegunAnew(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.wants("at the beginning", 0, 0, 0)
	b.fire(3, 3)
	b.waiting("shop:a:b:lost")
	b.Client.ZRem(t.Context(), keys.Single.Due(), "shop:a:b:lost")
	b.Client.ZRem(t.Context(), keys.Single.Account(), "o")
	b.begin()
	a, err := b.Account(t.Context())
	if err != nil || a.Fired() != 3 || a.Out.Fired != 0 || a.Difference != 0 {
		t.Errorf("begun anew: %+v, %v", a, err)
	}
}

// waiting sets a timer that is due in an hour.
func (b *books) waiting(key string) {
	b.t.Helper()
	if err := b.Client.FCall(b.t.Context(), "timer_set", []string{key}, "", "PX", 3600_000).Err(); err != nil {
		b.t.Fatal(err)
	}
}

// A difference is a finding after a minute. Once it is acknowledged, a new comparison begins.
func TestADifferenceLasts(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	differs := func(want bool) {
		t.Helper()
		c, err := ledger.Read(t.Context(), b.JetStream, b.Streams)
		if err != nil || c.Differs() != want {
			t.Errorf("%+v, %v; differs: want %v", c, err, want)
		}
	}
	differs(false)
	b.wants("at the beginning", 0, 0, 0)
	b.store(1)
	b.wants("differs", 1, 1, 1)
	differs(false)
	if was, err := ledger.Acknowledge(t.Context(), b.JetStream, b.Streams); err != nil || was.Differs() {
		t.Errorf("%+v, %v", was, err)
	}
	if err := b.Age(t.Context(), time.Minute); err != nil {
		t.Fatal(err)
	}
	b.wants("differs still", 1, 1, 1)
	differs(true)
	if was, err := ledger.Acknowledge(t.Context(), b.JetStream, b.Streams); err != nil || !was.Differs() {
		t.Errorf("%+v, %v", was, err)
	}
	differs(false)
	b.wants("acknowledged", 0, 0, 0)
	differs(false)
}

// FLUSHDB and a new stream begin a new comparison; a stream with other messages allows none.
func TestNewComparisons(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	b.wants("at the beginning", 0, 0, 0)
	b.fire(3, 3)
	if err := b.Client.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if _, c, err := b.Compare(t.Context()); err != nil || c.Missing != "the account has not begun" {
		t.Errorf("without an account: %+v, %v", c, err)
	}
	b.begin()
	if _, c, err := b.Compare(t.Context()); err != nil || !strings.Contains(c.Missing, "within a minute") {
		t.Errorf("with a new account: %+v, %v", c, err)
	}
	b.wants("after FLUSHDB", 0, 0, 0)
	b.fire(2, 2)
	b.wants("fired after FLUSHDB", 2, 0, 0)

	if err := b.JetStream.DeleteStream(t.Context(), "TIMERS"); err != nil {
		t.Fatal(err)
	}
	if err := b.LookNow(t.Context()); err == nil {
		t.Error("compared without a stream")
	}
	b.makeStreams()
	b.store(1)
	b.wants("with a new stream", 0, 0, 0)
	b.fire(1, 1)
	b.wants("fired with a new stream", 1, 0, 0)

	stream, err := b.JetStream.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	c := stream.CachedInfo().Config
	c.Subjects = append(c.Subjects, "orders.>")
	if _, err := b.JetStream.UpdateStream(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if _, is, err := b.Compare(t.Context()); err != nil || !strings.Contains(is.Missing, "other messages") {
		t.Errorf("with other subjects: %+v, %v", is, err)
	}
}

// Two timerds compare once a minute together, and copy the account once an hour.
func TestTimerdsShareTheLedger(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	var at time.Time
	for range 2 {
		if err := b.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
		c, err := ledger.Read(t.Context(), b.JetStream, b.Streams)
		if err != nil || c.At.IsZero() || !at.IsZero() && !c.At.Equal(at) {
			t.Errorf("%+v, %v; want one of %v", c, err, at)
		}
		at = c.At
		b.SetDue(1)
	}
	copies, err := ledger.Copies(t.Context(), b.JetStream, b.Streams)
	if err != nil || len(copies) != 1 || copies[0].Account.There.Sum() != 0 {
		t.Fatalf("%+v, %v", copies, err)
	}
	a, err := b.Account(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	between, ok := ledger.Between(copies[0], ledger.Copy{At: time.Now(), Account: a})
	if !ok || between.In.Set != 2 || between.Out.Replaced+between.There.Sum() != 2 || between.Difference != 0 {
		t.Errorf("%+v, %v", between, ok)
	}
	if _, ok := ledger.Between(ledger.Copy{At: time.Now(), Account: a}, copies[0]); ok {
		t.Error("an account that went back")
	}
}
