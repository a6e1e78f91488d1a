package notify_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
)

func TestIntakeWaitsForRedis(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	c := d.open("1h", nil)
	c.healthy(patience, "")
	d.plan.server.Stop()
	const n = 20
	for i := range n {
		d.request(retrySubject, fired(fmt.Sprint(i), 1, []byte("x")).AppendJSON(nil))
	}
	c.healthy(5*time.Second, "retry")
	d.plan.server.Start()
	d.empty()
	c.healthy(10*time.Second, "")
	if pending, firing := d.timers(); pending != n || firing != 0 {
		t.Errorf("%d pending and %d firing, want %d and 0", pending, firing, n)
	}
	if began, ended := d.logged("retry intake is held up"), d.logged("retry intake goes on"); began != 1 || ended != 1 {
		t.Errorf("%d and %d lines in the log, want one each", began, ended)
	}
}

func TestIntakeGivesBackWhatItCannotDo(t *testing.T) {
	d := newDesk(t)
	var calls atomic.Int64
	broken := d.openAt(d.nats.URL(), failing{calls: &calls}, "1h", nil)
	d.request(retrySubject, fired("1", 1, []byte("x")).AppendJSON(nil))
	broken.healthy(5*time.Second, "no Redis")
	d.open("1h", nil) // another timerd, that has Redis
	d.empty()
	if pending, _ := d.timers(); pending != 1 {
		t.Errorf("%d pending, want 1", pending)
	}
	broken.healthy(patience, "") // nothing waits for its Redis any more
	if n := calls.Load(); n > 200 {
		t.Errorf("%d tries without a pause", n)
	}
}

// failing is a retrier without Redis.
type failing struct {
	notify.Retrier
	calls *atomic.Int64
}

func (f failing) Retry(context.Context, schedule.Retry) (int64, bool, error) {
	f.calls.Add(1)
	return 0, false, errors.New("no Redis")
}

func TestIntakeStopsThoughNothingWorks(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	proxy := testenv.NewProxy(t, d.nats.Addr())
	c := d.openAt("nats://"+proxy.Addr(), failing{calls: new(atomic.Int64)}, "1h", func(in *notify.Intake) { in.DrainTimeout = time.Second })
	for i := range 10 {
		d.request(retrySubject, fired(fmt.Sprint(i), 1, nil).AppendJSON(nil))
	}
	c.healthy(5*time.Second, "no Redis")
	proxy.Blackhole()
	began := time.Now()
	c.stop()
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("took %s to stop", took)
	}
	if err := c.Healthy(); err == nil {
		t.Error("healthy after its end")
	}
}

func TestIntakeFinishesWhatItHas(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	c := d.openAt(d.nats.URL(), hooked{d.plan, func() {
		begun <- struct{}{}
		<-goOn
	}}, "1h", nil)
	for i := range 10 {
		d.request(retrySubject, fired(fmt.Sprint(i), 1, nil).AppendJSON(nil))
	}
	for range 10 {
		<-begun
	}
	c.cancel()
	close(goOn)
	<-c.ended
	stream, err := d.js.Stream(t.Context(), "TIMERS_RETRY")
	if err != nil || stream.CachedInfo().State.Msgs != 0 {
		t.Errorf("%d requests are left, %v", stream.CachedInfo().State.Msgs, err)
	}
}

func TestIntakeGoesOnAfterNATSWasAway(t *testing.T) {
	testenv.NoLeaks(t)
	d := newDesk(t)
	c := d.open("1h", nil)
	c.healthy(patience, "")
	for i := range 3 {
		d.nats.Stop()
		c.healthy(5*time.Second, "consumer")
		d.nats.Start()
		testenv.Eventually(t, patience, func() error {
			_, err := d.js.Publish(t.Context(), retrySubject, fired(fmt.Sprint(i), 1, nil).AppendJSON(nil))
			return err
		}, "publishing")
		d.empty()
		c.healthy(10*time.Second, "")
	}
}

func TestIntakeMakesWhatVanishes(t *testing.T) {
	d := newDesk(t)
	c := d.open("1h", nil)
	c.healthy(patience, "")
	for name, vanish := range map[string]func() error{
		"consumer":     func() error { return d.js.DeleteConsumer(t.Context(), "TIMERS_RETRY", notify.IntakeConsumer) },
		"stream":       func() error { return d.js.DeleteStream(t.Context(), "TIMERS_RETRY") },
		"dead letters": func() error { return d.js.DeleteStream(t.Context(), "TIMERS_DEAD") },
	} {
		if err := vanish(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, patience, func() error {
			_, err := d.js.Publish(t.Context(), retrySubject, []byte("x"))
			return err
		}, "publishing after the loss of "+name)
		if name == "dead letters" {
			d.letters(1)
		}
		d.empty()
		c.healthy(patience, "")
	}
}

func TestIntakeWaitsWhileDeadLettersAreFull(t *testing.T) {
	d := newDesk(t)
	dead, err := d.js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	full := dead.CachedInfo().Config
	full.MaxMsgs, full.Discard = 1, jetstream.DiscardNew
	if _, err := d.js.UpdateStream(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	c := d.open("1h", nil)
	d.request(retrySubject, []byte("first"))
	d.letters(1)
	d.request(retrySubject, []byte("second"))
	c.healthy(patience, "maximum messages exceeded")
	d.request(retrySubject, fired("1", 1, nil).AppendJSON(nil)) // waits for nothing
	testenv.Eventually(t, patience, func() bool {
		pending, _ := d.timers()
		return pending == 1
	}, "a retry while the dead letters are full")
	full.MaxMsgs = -1
	if _, err := d.js.UpdateStream(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	d.empty()
	d.letters(2)
	c.healthy(patience, "")
}

func TestIntakeNamesAForeignConsumer(t *testing.T) {
	d := newDesk(t)
	_, err := d.js.CreateConsumer(t.Context(), "TIMERS_RETRY", jetstream.ConsumerConfig{Durable: "mine", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	c := d.open("1h", nil)
	c.healthy(patience, "nats consumer rm TIMERS_RETRY")
	if err := d.js.DeleteConsumer(t.Context(), "TIMERS_RETRY", "mine"); err != nil {
		t.Fatal(err)
	}
	c.healthy(patience, "")
}
