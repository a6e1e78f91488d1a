package retry_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// publishMany publishes the same request n times over 10 connections, without an id by which JetStream could drop the
// repetitions.
func (f *fixture) publishMany(data []byte, n int) *sync.WaitGroup {
	const connections = 10
	var wg sync.WaitGroup
	for range connections {
		js := f.nats.JetStream()
		wg.Go(func() {
			for range n / connections {
				if _, err := js.Publish(f.t.Context(), retrySubject, data); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	return &wg
}

func TestConsumerSetsOneTimerHoweverOftenAsked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := firedEvent("1", 1, []byte("x"))
	c := f.start("1h", nil)
	f.publishMany(e.AppendJSON(nil), 100).Wait()
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending != 1 || firing != 0 {
		t.Errorf("%d pending and %d firing, want one timer", pending, firing)
	}
	if retried, ignored, _, _ := f.hooks.counts(); retried != 1 || ignored < 99 {
		t.Errorf("%d set and %d ignored, want 1 and 99", retried, ignored)
	}
	c.waitHealth(patience, "")
}

func TestConsumerKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := firedEvent("1", 1, []byte("x"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	published := f.publishMany(e.AppendJSON(nil), 100)
	for range 8 {
		c := f.start("1h", func(c *retry.Consumer) { c.AckWait, c.Window = 200*time.Millisecond, 3 })
		life := time.NewTimer(time.Duration(random.IntN(40)) * time.Millisecond)
		<-life.C
		c.kill()
	}
	published.Wait()
	f.start("1h", mortal)
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending != 1 || firing != 0 {
		t.Errorf("%d pending and %d firing, want one timer", pending, firing)
	}
}

// afterRetry is a Retrier that calls a function after each retry.
type afterRetry struct {
	retry.Retrier
	after func()
}

func (r afterRetry) Retry(ctx context.Context, request schedule.Retry) (schedule.Millis, bool, error) {
	due, ok, err := r.Retrier.Retry(ctx, request)
	r.after()
	return due, ok, err
}

func TestConsumerDiesBetweenSettingAndAcknowledging(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := testenv.NewProxy(t, f.nats.Addr())
	set := make(chan struct{}, 10)
	dying := f.startAt("nats://"+proxy.Addr(), afterRetry{f.schedule, func() {
		proxy.Cut() // nothing that comes after the retry reaches NATS
		set <- struct{}{}
	}}, "1h", mortal)
	e := firedEvent("1", 1, []byte("x"))
	f.request(retrySubject, e.AppendJSON(nil))
	<-set
	dying.stop()
	stream, err := f.js.Stream(t.Context(), "TIMERS_RETRY")
	if err != nil || stream.CachedInfo().State.Msgs != 1 {
		t.Fatalf("the request was acknowledged: %v", err)
	}
	due := f.pending()[e.Key.String()].Due

	f.start("2h", mortal)
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending != 1 || firing != 0 ||
		!f.pending()[e.Key.String()].Due.Equal(due) {
		t.Errorf("%d pending and %d firing, want the one that was set: %v", pending, firing, f.pending())
	}
	// Ignored more than once if the acknowledgement took longer than AckWait.
	if retried, ignored, _, _ := f.hooks.counts(); retried != 1 || ignored < 1 {
		t.Errorf("%d set and %d ignored, want 1 and 1", retried, ignored)
	}
}

func TestConsumerRetriedAndFiredBeforeItIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	e := firedEvent("1", 1, []byte("x"))
	f.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", "1ms")
	firings := f.schedule.Claim(1, lease)
	if err := f.schedule.Settle(t.Context(), schedule.Outcomes(schedule.OutcomeFired, firings...)); err != nil {
		t.Fatal(err)
	}
	if firings[0].Attempt != 2 || firings[0].Key != e.Key {
		t.Errorf("fired %+v", firings[0])
	}
	f.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", "1ms")
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending+firing != 0 {
		t.Errorf("%d pending and %d firing, want none", pending, firing)
	}
}

func TestConsumerNeverClobbersANewerTimer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1s", nil)
	e := firedEvent("1", 1, []byte("older"))
	if err := f.schedule.Client.FCall(t.Context(), "timer_set", []string{e.Key.String()}, "newer", "PX",
		900).Err(); err != nil {
		t.Fatal(err)
	}
	f.request(retrySubject, e.AppendJSON(nil))
	f.waitEmpty()
	got := map[string]int{}
	for _, f := range f.schedule.Claim(2, lease) {
		got[string(f.Payload)] = f.Attempt
	}
	if len(got) != 2 || got["newer"] != 0 || got["older"] != 2 {
		t.Errorf("fired %v, want newer and older, the older one as attempt 2", got)
	}
}

func TestConsumerRetriesAreCancelled(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.start("1h", nil)
	for name, cancel := range map[string][]any{
		"timer_cancel": {"FCALL", "timer_cancel", 1},
		"DEL":          {"DEL"},
	} {
		e := firedEvent(name, 1, []byte("x"))
		f.request(retrySubject, e.AppendJSON(nil))
		f.waitEmpty()
		if reply, err := f.schedule.Client.Do(t.Context(), append(cancel, e.Key.String())...).Result(); err != nil ||
			reply != "cancelled" && reply != int64(1) {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
		hint := schedule.Hint{Kind: schedule.Gone, Key: e.Key.String()}
		if _, err := f.schedule.Node.Observe(t.Context(), []schedule.Hint{hint}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if pending, firing := f.schedule.Count(); pending+firing != 0 {
			t.Errorf("%s: %d pending and %d firing, want none", name, pending, firing)
		}
	}
}

func TestConsumersShareTheWork(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for range 3 {
		f.start("1h", func(c *retry.Consumer) { c.Window = 4 }).waitHealth(patience, "")
	}
	const n = 240
	for i := range n {
		e := firedEvent(fmt.Sprint(i), 1, []byte("x"))
		if _, err := f.js.PublishAsync(retrySubject, e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	<-f.js.PublishAsyncComplete()
	f.waitEmpty()
	if pending, firing := f.schedule.Count(); pending != n || firing != 0 {
		t.Errorf("%d pending and %d firing, want %d and 0", pending, firing, n)
	}
	if retried, ignored, _, _ := f.hooks.counts(); retried != n || ignored != 0 {
		t.Errorf("%d set and %d ignored, want %d and 0", retried, ignored, n)
	}
}

// trimRecorder is a Retrier that tells with which ages old ids are forgotten.
type trimRecorder struct {
	retry.Retrier
	ages chan time.Duration
}

func (r trimRecorder) TrimRetried(ctx context.Context, age time.Duration) error {
	r.ages <- age
	return r.Retrier.TrimRetried(ctx, age)
}

func TestConsumerForgetsOldRetries(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	old := time.Now().Add(-50 * time.Hour).UnixMilli()
	for i := range 10 {
		if err := f.schedule.Client.Do(t.Context(), "ZADD", keys.Single.Retried(), old,
			fmt.Sprintf("old%d", i)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ages := make(chan time.Duration, 10)
	f.startAt(f.nats.URL(), trimRecorder{f.schedule, ages}, "1h", nil)
	const n = 500
	for i := range n {
		e := firedEvent(fmt.Sprint(i), 1, []byte("x"))
		if _, err := f.js.PublishMsgAsync(&nats.Msg{Subject: retrySubject, Data: e.AppendJSON(nil)},
			jetstream.WithMsgID(e.ID)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case age := <-ages:
		if age < 24*time.Hour || age > 25*time.Hour {
			t.Errorf("forgets ids older than %s", age)
		}
	case <-time.After(patience):
		t.Fatal("old retries are not forgotten")
	}
	testenv.Eventually(t, patience, func() error {
		left, err := f.schedule.Client.ZCard(t.Context(), keys.Single.Retried()).Result()
		if err == nil && left != n {
			err = fmt.Errorf("%d ids are left, want %d", left, n)
		}
		return err
	}, "forgetting old retries")
}
