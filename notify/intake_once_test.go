package notify_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

// publishMany publishes the same request n times over 10 connections, without an id
// by which JetStream could drop the repetitions.
func (d *desk) publishMany(data []byte, n int) *sync.WaitGroup {
	const connections = 10
	var wg sync.WaitGroup
	for range connections {
		js := d.nats.JetStream()
		wg.Go(func() {
			for range n / connections {
				if _, err := js.Publish(d.t.Context(), retrySubject, data); err != nil {
					d.t.Error(err)
				}
			}
		})
	}
	return &wg
}

func TestIntakeSetsOneTimerHoweverOftenAsked(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	e := fired("1", 1, []byte("x"))
	c := d.open("1h", nil)
	d.publishMany(e.AppendJSON(nil), 100).Wait()
	d.empty()
	if pending, firing := d.timers(); pending != 1 || firing != 0 {
		t.Errorf("%d pending and %d firing, want one timer", pending, firing)
	}
	if retried, ignored, _, _ := d.tally.counts(); retried != 1 || ignored < 99 {
		t.Errorf("%d set and %d ignored, want 1 and 99", retried, ignored)
	}
	c.healthy(patience, "")
}

func TestIntakeKilledInTheMiddle(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	e := fired("1", 1, []byte("x"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	published := d.publishMany(e.AppendJSON(nil), 100)
	for range 8 {
		c := d.open("1h", func(in *notify.Intake) { in.AckWait, in.Window = 200*time.Millisecond, 3 })
		life := time.NewTimer(time.Duration(random.IntN(40)) * time.Millisecond)
		<-life.C
		c.kill()
	}
	published.Wait()
	d.open("1h", nil)
	d.empty()
	if pending, firing := d.timers(); pending != 1 || firing != 0 {
		t.Errorf("%d pending and %d firing, want one timer", pending, firing)
	}
}

// hooked is a retrier that calls a function after each retry.
type hooked struct {
	notify.Retrier
	after func()
}

func (h hooked) Retry(ctx context.Context, r schedule.Retry) (int64, bool, error) {
	due, ok, err := h.Retrier.Retry(ctx, r)
	h.after()
	return due, ok, err
}

func TestIntakeDiesBetweenSettingAndAcknowledging(t *testing.T) {
	d := newDesk(t)
	proxy := testenv.NewProxy(t, d.nats.Addr())
	set := make(chan struct{}, 10)
	dying := d.openAt("nats://"+proxy.Addr(), hooked{d.plan, func() {
		proxy.Cut() // nothing that comes after the retry reaches NATS
		set <- struct{}{}
	}}, "1h", nil)
	e := fired("1", 1, []byte("x"))
	d.request(retrySubject, e.AppendJSON(nil))
	<-set
	dying.stop()
	stream, err := d.js.Stream(t.Context(), "TIMERS_RETRY")
	if err != nil || stream.CachedInfo().State.Msgs != 1 {
		t.Fatalf("the request was acknowledged: %v", err)
	}
	due := d.pending()[e.Key.String()].Due

	d.open("2h", nil)
	d.empty()
	if pending, firing := d.timers(); pending != 1 || firing != 0 || !d.pending()[e.Key.String()].Due.Equal(due) {
		t.Errorf("%d pending and %d firing, want the one that was set: %v", pending, firing, d.pending())
	}
	if retried, ignored, _, _ := d.tally.counts(); retried != 1 || ignored != 1 {
		t.Errorf("%d set and %d ignored, want 1 and 1", retried, ignored)
	}
}

func TestIntakeRetriedAndFiredBeforeItIsDeliveredAgain(t *testing.T) {
	d := newDesk(t)
	d.open("1h", nil)
	e := fired("1", 1, []byte("x"))
	d.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", "1ms")
	firings := d.plan.claim(t, 1, lease)
	if err := d.plan.Settle(t.Context(), firings); err != nil {
		t.Fatal(err)
	}
	if firings[0].Attempt != 2 || firings[0].Key != e.Key {
		t.Errorf("fired %+v", firings[0])
	}
	d.request(retrySubject, e.AppendJSON(nil), "Timer-Delay", "1ms")
	d.empty()
	if pending, firing := d.timers(); pending+firing != 0 {
		t.Errorf("%d pending and %d firing, want none", pending, firing)
	}
}

func TestIntakeNeverClobbersANewerTimer(t *testing.T) {
	d := newDesk(t)
	d.open("1s", nil)
	e := fired("1", 1, []byte("older"))
	if err := d.plan.rdb.FCall(t.Context(), "timer_set", []string{e.Key.String()}, "newer", "PX", 900).Err(); err != nil {
		t.Fatal(err)
	}
	d.request(retrySubject, e.AppendJSON(nil))
	d.empty()
	got := map[string]int{}
	for _, f := range d.plan.claim(t, 2, lease) {
		got[string(f.Payload)] = f.Attempt
	}
	if len(got) != 2 || got["newer"] != 0 || got["older"] != 2 {
		t.Errorf("fired %v, want newer and older, the older one as attempt 2", got)
	}
}

func TestIntakeRetriesAreCancelled(t *testing.T) {
	d := newDesk(t)
	d.open("1h", nil)
	for name, cancel := range map[string][]any{
		"timer_cancel": {"FCALL", "timer_cancel", 1},
		"DEL":          {"DEL"},
	} {
		e := fired(name, 1, []byte("x"))
		d.request(retrySubject, e.AppendJSON(nil))
		d.empty()
		if reply, err := d.plan.rdb.Do(t.Context(), append(cancel, e.Key.String())...).Result(); err != nil || reply != "cancelled" && reply != int64(1) {
			t.Errorf("%s: %v, %v", name, reply, err)
		}
		hint := schedule.Hint{Kind: schedule.Gone, Key: e.Key.String()}
		if _, err := d.plan.Observe(t.Context(), []schedule.Hint{hint}, 0, 0); err != nil {
			t.Fatal(err)
		}
		if pending, firing := d.timers(); pending+firing != 0 {
			t.Errorf("%s: %d pending and %d firing, want none", name, pending, firing)
		}
	}
}

func TestIntakesShareTheWork(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	for range 3 {
		d.open("1h", func(in *notify.Intake) { in.Window = 4 }).healthy(patience, "")
	}
	const n = 600
	for i := range n {
		e := fired(fmt.Sprint(i), 1, []byte("x"))
		if _, err := d.js.PublishAsync(retrySubject, e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	<-d.js.PublishAsyncComplete()
	d.empty()
	if pending, firing := d.timers(); pending != n || firing != 0 {
		t.Errorf("%d pending and %d firing, want %d and 0", pending, firing, n)
	}
	if retried, ignored, _, _ := d.tally.counts(); retried != n || ignored != 0 {
		t.Errorf("%d set and %d ignored, want %d and 0", retried, ignored, n)
	}
}

// trimmed is a retrier that tells with which ages old ids are forgotten.
type trimmed struct {
	notify.Retrier
	ages chan time.Duration
}

func (f trimmed) TrimRetried(ctx context.Context, age time.Duration) error {
	f.ages <- age
	return f.Retrier.TrimRetried(ctx, age)
}

func TestIntakeForgetsOldRetries(t *testing.T) {
	d := newDesk(t)
	old := time.Now().Add(-50 * time.Hour).UnixMilli()
	for i := range 10 {
		if err := d.plan.rdb.Do(t.Context(), "ZADD", keys.Single.Retried(), old, fmt.Sprintf("old%d", i)).Err(); err != nil {
			t.Fatal(err)
		}
	}
	ages := make(chan time.Duration, 10)
	d.openAt(d.nats.URL(), trimmed{d.plan, ages}, "1h", nil)
	const n = 500
	for i := range n {
		e := fired(fmt.Sprint(i), 1, []byte("x"))
		if _, err := d.js.PublishMsgAsync(&nats.Msg{Subject: retrySubject, Data: e.AppendJSON(nil)}, jetstream.WithMsgID(e.ID)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case age := <-ages:
		if age < 24*time.Hour || age > 25*time.Hour {
			t.Errorf("forgets what is older than %s", age)
		}
	case <-time.After(patience):
		t.Fatal("old retries are not forgotten")
	}
	testenv.Eventually(t, patience, func() error {
		left, err := d.plan.rdb.ZCard(t.Context(), keys.Single.Retried()).Result()
		if err == nil && left != n {
			err = fmt.Errorf("%d ids are left, want %d", left, n)
		}
		return err
	}, "forgetting old retries")
}
