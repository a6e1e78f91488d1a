package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// scene is a system with something of everything, for its pages to be looked at: a shop's timers, a payment provider's
// that are held, callbacks that fail, dead letters, timers that repeat.
func scene(t *testing.T) *system {
	t.Helper()
	s := newSystem(t, "TIMERD_RETRY=pay:order:callback=wechatpay; *=exp(10s,2,1h,12)",
		"TIMERD_NAMESPACES=shop:order,shop:cart,pay:order,pay:refund,auth,ops,bill")
	s.fill()
	if *update {
		s.traffic()
	}
	s.repeat()
	s.fail()
	s.hold("pay:refund", "provider down, ticket 4711")
	s.remember()
	s.setMany("pay:refund:poll", 4, time.Millisecond)
	for range 40 {
		s.set("shop:order:timeout:"+strconv.FormatInt(time.Now().UnixNano()%0xffffff, 16), `{"order":9172}`,
			20*time.Millisecond)
	}
	for id, why := range map[string]string{
		"88101-1": "502 Bad Gateway", "88102-7": "dial tcp 203.0.113.9:443: connect: connection refused",
		"88111-2": "timeout after 15 s",
	} {
		s.bury("pay:order:callback:"+id,
			fmt.Sprintf(`{"order":%s,"notify_url":"https://merchant.example/cb","amount":"129.00"}`, id[:5]), why)
	}
	s.until(func() error {
		stream, err := s.js.Stream(t.Context(), keys.DefaultStream)
		if err == nil && stream.CachedInfo().State.Msgs < 40 {
			err = errors.New("too few")
		}
		return err
	}, "firings")
	return s
}

// traffic has timers fire for some minutes, and returns once the charts show them. timerd is restarted, so that it
// counts all of them.
func (s *system) traffic() {
	s.t.Helper()
	const seconds, perSecond, shown = 420, 30, 180
	all := make([]client.Setting, seconds*perSecond)
	for i := range all {
		key := fmt.Sprintf("shop:order:timeout:%06x", i*2654435761%0xffffff)
		if i%5 == 0 {
			key = fmt.Sprintf("auth:otp:expire:49%08d", i*7919)
		}
		all[i] = client.Setting{Key: key, Payload: fmt.Appendf(nil, `{"order":%d}`, i),
			When: client.After(time.Second + time.Duration(i)*time.Second/perSecond)}
	}
	if _, err := s.timers.SetMany(s.t.Context(), all); err != nil {
		s.t.Fatal(err)
	}
	s.stop()
	s.start()
	testenv.Eventually(s.t, 2*shown*time.Second, func() bool {
		stream, err := s.js.Stream(s.t.Context(), keys.DefaultStream)
		return err == nil && stream.CachedInfo().State.Msgs >= shown*perSecond
	}, "firings for the charts")
}

// fill sets timers of several namespaces for the next hours, many of them for one minute.
func (s *system) fill() {
	s.t.Helper()
	var all []client.Setting
	add := func(namespace, format string, n int, payload string, when func(i int) time.Duration) {
		for i := range n {
			all = append(all, client.Setting{
				Key: namespace + ":" + fmt.Sprintf(format, i), Payload: fmt.Appendf(nil, payload, i),
				When: client.After(when(i)),
			})
		}
	}
	add("shop:order:timeout", "9f%03x2", 900, `{"order":%d,"customer":"c-7731","total":"49.90"}`,
		func(i int) time.Duration {
			return 3*time.Minute + time.Duration(i*i%3571)*time.Second
		})
	add("pay:order:callback", "882%03d-1", 300,
		`{"order":882%03d,"notify_url":"https://merchant.example/cb","amount":"129.00"}`, func(i int) time.Duration {
			return 9*time.Minute + time.Duration(i*97%60_000)*time.Millisecond
		})
	add("shop:cart:reminder", "c-%d", 150, `{"cart":%d}`, func(i int) time.Duration {
		return time.Hour +
			time.Duration(i)*11*time.Minute
	})
	add("auth:otp:expire", "49170-%02d", 80, "plain text %d",
		func(i int) time.Duration { return 2*time.Minute + time.Duration(i)*3*time.Second })
	if _, err := s.timers.SetMany(s.t.Context(), all); err != nil {
		s.t.Fatal(err)
	}
}

// repeat sets timers that repeat.
func (s *system) repeat() {
	s.t.Helper()
	for key, by := range map[string]client.Repetition{
		"ops:ledger:sync:eu":       client.Every(5 * time.Minute),
		"ops:report:daily:sales":   client.Cron("0 9 * * 1-5", "Europe/Berlin"),
		"bill:statement:month:all": client.Cron("30 6 L * *", "America/New_York"),
	} {
		if _, err := s.timers.Repeat(s.t.Context(), key, []byte(`{"run":"scheduled"}`), by); err != nil {
			s.t.Fatal(err)
		}
	}
}

// failing is the timer whose consumer has asked for retries.
const failing = "pay:order:callback:88120-3"

// fail has a consumer fail twice with a timer, so that its third attempt is to come.
func (s *system) fail() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	consumer := client.NewConsumer(s.js)
	consumer.Logger = slog.New(slog.DiscardHandler)
	go func() {
		done <- consumer.Consume(ctx, "pay:order:callback", func(ctx context.Context, e client.Event) error {
			if e.Attempt == 1 {
				return errors.Join(s.logged(ctx, e, 502, 41, "502 Bad Gateway"),
					client.RetryAfter(100*time.Millisecond, errors.New("502 Bad Gateway")))
			}
			return errors.Join(s.logged(ctx, e, 0, 15_000, "no answer within 15s"),
				client.RetryAfter(13*time.Minute, errors.New("no answer within 15s")))
		})
	}()
	s.set(failing, `{"order":88120,"notify_url":"https://merchant.example/cb","amount":"129.00","note":"<b>never markup</b>"}`, 50*time.Millisecond)
	s.until(func() error {
		if timer, found := s.get(failing); !found || timer.Attempt != 3 {
			return fmt.Errorf("%+v", timer)
		}
		return nil
	}, "the third attempt of "+failing)
	cancel()
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// logged writes to the log of deliveries, as timerd deliver does.
func (s *system) logged(ctx context.Context, e client.Event, status int, took int64, what string) error {
	if err := streams.EnsureDelivery(ctx, s.js, streams.Config{}); err != nil {
		return err
	}
	data, err := json.Marshal(event.Delivery{
		ID: e.ID, Origin: e.FirstID(), Subject: e.Key.String(), Attempt: e.Attempt, Host: "merchant.example:443",
		Status: status,
		Result: event.ResultRetry, Duration: took, Time: time.Now().UTC(), Error: what,
	})
	if err != nil {
		return err
	}
	_, err = s.js.Publish(ctx, e.Key.Subject(keys.DefaultPrefix, keys.Delivery), data)
	return err
}

// remember writes as many entries of the history as the system's page shows: actions, and timers that guards ended.
func (s *system) remember() {
	s.t.Helper()
	now := time.Now().Add(-time.Hour)
	for i := range 60 {
		id := strconv.Itoa(88200 + i)
		for _, e := range []event.Entry{
			{Kind: event.EntryCancel, Subjects: []string{"shop:cart:reminder:" + id}, Count: 1, By: "ops@db-1",
				Via: event.ViaCommand},
			{Kind: event.EntryGuarded, Subjects: []string{"shop:order:timeout:" + id},
				GuardUnless: "shop:order:paid:" + id},
		} {
			e.Time = now.Add(time.Duration(i) * time.Second)
			if err := streams.WriteHistory(s.t.Context(), s.js, streams.Config{}, e); err != nil {
				s.t.Fatal(err)
			}
		}
	}
}

// hold holds a namespace.
func (s *system) hold(namespace, reason string) {
	s.t.Helper()
	if _, err := s.operator.Hold(s.t.Context(), namespace, admin.Reason(reason)); err != nil {
		s.t.Fatal(err)
	}
}
