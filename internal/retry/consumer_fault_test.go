package retry_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

func TestConsumerWaitsForRedis(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start("1h", nil)
	c.waitHealth(patience, "")
	f.schedule.Server.Stop()
	const n = 20
	for i := range n {
		f.request(retrySubject, firedEvent(fmt.Sprint(i), 1, []byte("x")).AppendJSON(nil))
	}
	c.waitHealth(5*time.Second, "retry")
	f.schedule.Server.Start()
	f.waitEmpty()
	c.waitHealth(10*time.Second, "")
	if pending, firing := f.schedule.Count(); pending != n || firing != 0 {
		t.Errorf("%d pending and %d firing, want %d and 0", pending, firing, n)
	}
	if began, ended := f.logged("retry consumer is delayed"), f.logged("retry consumer works again"); began != 1 ||
		ended != 1 {
		t.Errorf("%d and %d lines in the log, want one each", began, ended)
	}
}

func TestConsumerGivesBackFailedRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var calls atomic.Int64
	broken := f.startAt(f.nats.URL(), failingRetrier{f.schedule, &calls}, "1h", nil)
	f.request(retrySubject, firedEvent("1", 1, []byte("x")).AppendJSON(nil))
	broken.waitHealth(5*time.Second, "no Redis")
	f.start("1h", nil) // another timerd, that has Redis
	f.waitEmpty()
	if pending, _ := f.schedule.Count(); pending != 1 {
		t.Errorf("%d pending, want 1", pending)
	}
	broken.waitHealth(patience, "no Redis")
	if n := calls.Load(); n > 200 {
		t.Errorf("%d tries without a pause", n)
	}
}

// failingRetrier is a Retrier without Redis.
type failingRetrier struct {
	retry.Retrier
	calls *atomic.Int64
}

func (r failingRetrier) Retry(context.Context, schedule.Retry) (schedule.Millis, bool, error) {
	r.calls.Add(1)
	return 0, false, errors.New("no Redis")
}

func (r failingRetrier) TrimRetried(context.Context, time.Duration) error {
	return errors.New("no Redis")
}

// forgetful is a Retrier that cannot forget old ids for a while.
type forgetful struct {
	retry.Retrier
	away *atomic.Bool
}

func (r forgetful) TrimRetried(ctx context.Context, age time.Duration) error {
	if r.away.Load() {
		return errors.New("no Redis")
	}
	return r.Retrier.TrimRetried(ctx, age)
}

// Old ids are forgotten once a minute. When that fails it is tried again soon: otherwise the log would say, a minute
// later, that Redis had been away for a minute. And requests do not wait for it.
func TestConsumerKnowsWhenRedisIsBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var away atomic.Bool
	away.Store(true)
	c := f.startAt(f.nats.URL(), forgetful{f.schedule, &away}, "1h", nil)
	for i := range 500 { // after which old ids are forgotten too
		e := firedEvent(fmt.Sprint(i), 1, []byte("x"))
		if _, err := f.js.PublishAsync(retrySubject, e.AppendJSON(nil), jetstream.WithMsgID(e.ID)); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, patience, func() bool {
		return f.logged("cannot remove the ids of old retries") == 1
	}, "a failure")
	f.waitEmpty()
	c.waitHealth(patience, "")
	away.Store(false)
	testenv.Eventually(t, patience, func() bool {
		return f.logged("removing the ids of old retries works again") == 1
	}, "the end of the failure")
	if f.logged("requests wait") != 0 {
		t.Error("requests are said to wait")
	}
}

func TestConsumerStopsWithoutServers(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	proxy := testenv.NewProxy(t, f.nats.Addr())
	c := f.startAt("nats://"+proxy.Addr(), failingRetrier{f.schedule, new(atomic.Int64)}, "1h",
		func(c *retry.Consumer) { c.DrainTimeout = time.Second })
	for i := range 10 {
		f.request(retrySubject, firedEvent(fmt.Sprint(i), 1, nil).AppendJSON(nil))
	}
	c.waitHealth(5*time.Second, "no Redis")
	proxy.Blackhole()
	watch := testenv.StartStopwatch()
	c.stop()
	watch.AtMost(t, 4*time.Second, "stopping")
	if err := c.Healthy(); err == nil {
		t.Error("healthy after its end")
	}
}

func TestConsumerFinishesItsRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	begun, goOn := make(chan struct{}, 100), make(chan struct{})
	c := f.startAt(f.nats.URL(), afterRetry{f.schedule, func() {
		begun <- struct{}{}
		<-goOn
	}}, "1h", func(c *retry.Consumer) { c.DrainTimeout = patience })
	for i := range 10 {
		f.request(retrySubject, firedEvent(fmt.Sprint(i), 1, nil).AppendJSON(nil))
	}
	for range 10 {
		<-begun
	}
	c.cancel()
	close(goOn)
	<-c.ended
	stream, err := f.js.Stream(t.Context(), "TIMERS_RETRY")
	if err != nil || stream.CachedInfo().State.Msgs != 0 {
		t.Errorf("%d requests are left, %v", stream.CachedInfo().State.Msgs, err)
	}
}

func TestConsumerGoesOnAfterNATSWasAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start("1h", func(c *retry.Consumer) { c.Hasten(5) })
	c.waitHealth(patience, "")
	for i := range 3 {
		f.nats.Stop()
		c.waitHealth(patience, "consumer")
		f.nats.Start()
		testenv.Eventually(t, patience, func() error {
			_, err := f.js.Publish(t.Context(), retrySubject, firedEvent(fmt.Sprint(i), 1, nil).AppendJSON(nil))
			return err
		}, "publishing")
		f.waitEmpty()
		c.waitHealth(patience, "")
	}
}

// That NATS is back shows soon, though no request comes; and while it is away that is said, and nothing of buffers.
func TestConsumerTellsThatNATSIsBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start("1h", nil)
	c.waitHealth(patience, "")
	f.nats.Stop()
	c.waitHealth(5*time.Second, "consumer")
	c.waitHealth(patience, "NATS is disconnected")
	f.nats.Start()
	testenv.Eventually(t, patience, c.nc.IsConnected, "the connection")
	c.waitHealth(8*time.Second, "") // a fetch that nothing comes for takes 10 s
}

func TestConsumerMakesDeletedStreamsAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.start("1h", nil)
	c.waitHealth(patience, "")
	for name, vanish := range map[string]func() error{
		"consumer":     func() error { return f.js.DeleteConsumer(t.Context(), "TIMERS_RETRY", retry.Durable) },
		"stream":       func() error { return f.js.DeleteStream(t.Context(), "TIMERS_RETRY") },
		"dead letters": func() error { return f.js.DeleteStream(t.Context(), "TIMERS_DEAD") },
	} {
		if err := vanish(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, patience, func() error {
			_, err := f.js.Publish(t.Context(), retrySubject, []byte("x"))
			return err
		}, "publishing after the loss of "+name)
		if name == "dead letters" {
			f.letters(1)
		}
		f.waitEmpty()
		c.waitHealth(patience, "")
	}
}

func TestConsumerWaitsWhileDeadLettersAreFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	dead, err := f.js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	full := dead.CachedInfo().Config
	full.MaxMsgs, full.Discard = 1, jetstream.DiscardNew
	if _, err := f.js.UpdateStream(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	c := f.start("1h", nil)
	f.request(retrySubject, []byte("first"))
	f.letters(1)
	f.request(retrySubject, []byte("second"))
	c.waitHealth(patience, "maximum messages exceeded")
	f.request(retrySubject, firedEvent("1", 1, nil).AppendJSON(nil)) // waits for nothing
	testenv.Eventually(t, patience, func() bool {
		pending, _ := f.schedule.Count()
		return pending == 1
	}, "a retry while the dead letters are full")
	full.MaxMsgs = -1
	if _, err := f.js.UpdateStream(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	f.waitEmpty()
	f.letters(2)
	c.waitHealth(patience, "")
}

func TestConsumerNamesAForeignConsumer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.js.CreateConsumer(t.Context(), "TIMERS_RETRY",
		jetstream.ConsumerConfig{Durable: "mine", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	c := f.start("1h", nil)
	c.waitHealth(patience, "nats consumer rm TIMERS_RETRY")
	if err := f.js.DeleteConsumer(t.Context(), "TIMERS_RETRY", "mine"); err != nil {
		t.Fatal(err)
	}
	c.waitHealth(patience, "")
}

// Dead letters on a subject that timerd may not publish on hold up neither those on others nor retries, and are stored
// once it may.
func TestConsumerWithADeniedSubject(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.nats.Stop()
	rights := &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"timers.dead.bad.>"}}}
	f.nats = testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "a"},
			{Username: "timerd", Password: "t", Permissions: rights}}
		o.NoAuthUser = "admin"
	})
	f.js = f.nats.JetStream()
	if err := streams.Ensure(t.Context(), f.js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	const bad, good = 24, 20 // the former on more subjects than may be tried at once
	for i := range bad {     // on as many subjects
		f.request(fmt.Sprintf("timers.retry.bad.b.%d", i), []byte("x"))
	}
	for i := range good {
		f.request(retrySubject, firedEvent(fmt.Sprint(i), 1, nil).AppendJSON(nil))
	}
	f.request(retrySubject, []byte("x"))
	c := f.startAt("nats://timerd:t@"+f.nats.Addr(), f.schedule, "1h", func(c *retry.Consumer) {
		mortal(c)
		c.Hasten(10)
	})
	testenv.Eventually(t, patience, func() bool {
		pending, _ := f.schedule.Count()
		return pending == good
	}, "the retries of others")
	f.letters(1)
	c.waitHealth(patience, "")
	rights.Publish.Deny = nil
	f.nats.Restart()
	testenv.Eventually(t, patience, func() error {
		stream, err := f.js.Stream(t.Context(), "TIMERS_RETRY")
		if err == nil && stream.CachedInfo().State.Msgs > 0 {
			err = fmt.Errorf("%d requests are left", stream.CachedInfo().State.Msgs)
		}
		return err
	}, "the refused ones")
	f.letters(bad + 1)
}

// The consumer that a timerd of another version has left gets the settings of this one; settings that JetStream refuses
// to change, or that timerd does not need, stay.
func TestConsumerBringsItsSettingsInLine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, err := f.js.CreateConsumer(t.Context(), "TIMERS_RETRY", jetstream.ConsumerConfig{
		Durable: retry.Durable, FilterSubject: "timers.retry.>", AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: time.Minute, MaxAckPending: 1024,
		MaxWaiting: 7, BackOff: []time.Duration{time.Minute}, MaxDeliver: 3, Metadata: map[string]string{"owner": "me"},
	})
	if err != nil {
		t.Fatal(err)
	}
	c := f.start("1h", nil)
	c.waitHealth(patience, "")
	consumer, err := f.js.Consumer(t.Context(), "TIMERS_RETRY", retry.Durable)
	if err != nil {
		t.Fatal(err)
	}
	if config := consumer.CachedInfo().Config; config.AckWait != c.AckWait || config.MaxAckPending != -1 ||
		config.MaxDeliver != -1 ||
		len(config.BackOff) > 0 || config.MaxWaiting != 7 || config.Metadata["owner"] != "me" {
		t.Errorf("taken over as %+v", config)
	}
}
