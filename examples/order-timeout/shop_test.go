package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/examples/internal/servers"
	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// patience bounds the waits of these tests on a slow machine.
const patience = 30 * time.Second

// consume handles events with the shop until t ends.
func consume(t *testing.T, s *servers.Servers, shop *shop) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	consumer := client.NewConsumer(s.JetStream)
	consumer.Logger = slog.New(slog.DiscardHandler)
	ended := make(chan error, 1)
	go func() { ended <- consumer.Consume(ctx, namespace, shop.expire) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// becomes waits until an order has a state.
func becomes(t *testing.T, shop *shop, id string, want state) {
	t.Helper()
	testenv.Eventually(t, patience, func() error {
		got, err := shop.state(t.Context(), id)
		if err == nil && got != want {
			err = fmt.Errorf("order %s is %q, want %q", id, got, want)
		}
		return err
	}, "the end of the order")
}

func free(context.Context) error { return nil }

func TestPaidOrderHasNoTimer(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, retryPolicy)
	shop := newShop(s.Redis, time.Hour, time.Second, time.Minute)
	if err := shop.place(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	if timer, found, err := shop.timers.Get(t.Context(), timerKey("1")); err != nil || !found ||
		string(timer.Payload) != `{"order":"1"}` {
		t.Fatalf("timer %+v, %t, %v", timer, found, err)
	}
	if err := shop.pay(t.Context(), "1", free); err != nil {
		t.Fatal(err)
	}
	if _, found, err := shop.timers.Get(t.Context(), timerKey("1")); err != nil || found {
		t.Errorf("timer of a paid order: %t, %v", found, err)
	}
	if err := shop.pay(t.Context(), "1", free); !errors.Is(err, errNotOpen) {
		t.Errorf("paid twice: %v", err)
	}
	if err := shop.pay(t.Context(), "none", free); !errors.Is(err, errNotOpen) {
		t.Errorf("paid an order that does not exist: %v", err)
	}
	for _, id := range []string{"1", "none"} { // an event that was too early or too late for the cancellation
		if err := shop.expire(t.Context(), client.Event{Key: keys.Key{App: "shop", Module: "order", Type: "timeout",
			ID: id}}); err != nil {
			t.Errorf("event of order %s: %v", id, err)
		}
	}
	becomes(t, shop, "1", paid)
	becomes(t, shop, "none", "")
}

// An order whose payment another program notes, without cancelling the timer, is not cancelled.
func TestTransferredOrder(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, retryPolicy)
	shop := newShop(s.Redis, 2*time.Second, time.Second, time.Minute)
	consume(t, s, shop)
	var late uint64
	var id string
	testenv.Eventually(t, time.Minute, func() bool { // on a busy machine a transfer may come after the timeout
		id = fmt.Sprint("late-", late)
		if err := errors.Join(shop.place(t.Context(), id), transfer(t.Context(), s.Redis, id)); err != nil {
			t.Fatal(err)
		}
		timer, found, err := shop.timers.Get(t.Context(), timerKey(id))
		if err != nil {
			t.Fatal(err)
		}
		if found && timer.State == client.Pending {
			return true
		}
		becomes(t, shop, id, cancelled)
		late++
		return false
	}, "a transfer in time")
	if err := shop.place(t.Context(), "without"); err != nil {
		t.Fatal(err)
	}
	becomes(t, shop, "without", cancelled)
	testenv.Eventually(t, patience, func() error {
		_, found, err := shop.timers.Get(t.Context(), timerKey(id))
		if err == nil && found {
			err = errors.New("the timer is there")
		}
		return err
	}, "the end of the timer")
	becomes(t, shop, id, paid)
	if err := shop.pay(t.Context(), id, free); !errors.Is(err, errNotOpen) {
		t.Errorf("paid again: %v", err)
	}
	stream, err := s.JetStream.Stream(t.Context(), "TIMERS")
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.LastSeq; n != late+1 {
		t.Errorf("%d events, want those of %d orders without a transfer in time", n, late+1)
	}
}

// The lock of a holder that has died ends, and the order is cancelled then.
func TestLockThatNobodyHolds(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, retryPolicy)
	shop := newShop(s.Redis, 50*time.Millisecond, 100*time.Millisecond, time.Minute)
	if err := s.Redis.Set(t.Context(), lockKey("1"), "of somebody who has died", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	if err := shop.place(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	consume(t, s, shop)
	putOff := func() int {
		info, err := s.JetStream.Stream(t.Context(), "TIMERS_RETRY")
		if err != nil {
			t.Fatal(err)
		}
		return int(info.CachedInfo().State.LastSeq)
	}
	testenv.Eventually(t, patience, func() bool { return putOff() >= 3 }, "the order to be put off")
	if err := s.Redis.PExpire(t.Context(), lockKey("1"), 100*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	becomes(t, shop, "1", cancelled)
	if n, most := putOff(), 1+int(time.Since(began)/shop.deferral); n > most {
		t.Errorf("put off %d times, want every %v, at most %d times", n, shop.deferral, most)
	}
}

// Work that took longer than its lock lasts changes nothing any more.
func TestLostLock(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, retryPolicy)
	shop := newShop(s.Redis, 50*time.Millisecond, 20*time.Millisecond, 100*time.Millisecond)
	if err := shop.place(t.Context(), "1"); err != nil {
		t.Fatal(err)
	}
	err := shop.pay(t.Context(), "1", func(context.Context) error {
		consume(t, s, shop) // it comes to the event while the order is being paid
		becomes(t, shop, "1", cancelled)
		return nil
	})
	if !errors.Is(err, errLockLost) {
		t.Errorf("paid after the lock had ended: %v", err)
	}
	becomes(t, shop, "1", cancelled)
}

// Whenever customers pay, and whether the bank accepts or not, each order ends in the state reported for it.
func TestPaymentsRaceWithTimeouts(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, retryPolicy)
	for timeout := 2 * time.Second; ; timeout *= 4 {
		ends := race(t, s, timeout)
		if ends[paid] >= orders/10 && ends[cancelled] >= orders/10 {
			break
		}
		if timeout > time.Minute { // a busy machine needs more time for a race
			t.Fatalf("hardly a race: %v", ends)
		}
	}
}

// orders is the number of orders in a race.
const orders = 300

// race has customers pay about the time of the timeout, and returns how the orders have ended.
func race(t *testing.T, s *servers.Servers, timeout time.Duration) map[state]int {
	t.Helper()
	shop := newShop(s.Redis, timeout, 50*time.Millisecond, time.Minute)
	consume(t, s, shop)
	order := func(i int) string { return fmt.Sprintf("%v-%d", timeout, i) }
	errDeclined := errors.New("declined")
	var customers sync.WaitGroup
	results := make([]error, orders)
	for i := range orders {
		id := order(i)
		if err := shop.place(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		part := timeout / 10
		begins, takes := timeout+part/4-rand.N(part), rand.N(part)
		customers.Go(func() {
			pause(t.Context(), begins)
			results[i] = shop.pay(t.Context(), id, func(ctx context.Context) error {
				pause(ctx, takes)
				if i%4 == 0 {
					return errDeclined
				}
				return nil
			})
		})
	}
	customers.Wait()
	ends := make(map[state]int)
	for i, err := range results {
		want := cancelled
		switch {
		case err == nil:
			want = paid
		case !errors.Is(err, errDeclined) && !errors.Is(err, errNotOpen) && !errors.Is(err, errLocked):
			t.Errorf("order %d: %v", i, err)
		}
		becomes(t, shop, order(i), want)
		ends[want]++
	}
	testenv.Eventually(t, patience, func() error {
		for i := range orders {
			if _, found, err := shop.timers.Get(t.Context(), timerKey(order(i))); err != nil || found {
				return fmt.Errorf("timer of order %d: %t, %w", i, found, err)
			}
		}
		return nil
	}, "the end of every timer")
	if locks, err := s.Redis.Keys(t.Context(), "lock/*").Result(); err != nil || len(locks) > 0 {
		t.Errorf("locks are left: %v, %v", locks, err)
	}
	return ends
}

func TestProgram(t *testing.T) {
	testenv.NoLeaks(t)
	program := exampleenv.Timerd(t)
	var err error
	for _, timeout := range []string{"1s", "5s", "25s"} { // customers of a busy machine need more time
		if err = tellsItsStories(t, timeout, program); err == nil {
			return
		}
	}
	t.Error(err)
}

// tellsItsStories runs the program, and returns an error if its output is not as it should be.
func tellsItsStories(t *testing.T, timeout, timerd string) error {
	t.Helper()
	var out, errs strings.Builder
	err := run(t.Context(), []string{"-timeout", timeout, "-timerd", timerd}, &out, &errs)
	if err != nil || errs.Len() > 0 {
		return fmt.Errorf("-timeout %s: %w", timeout, errors.Join(err, errors.New(errs.String())))
	}
	for _, want := range []string{
		`-1 +never paid +cancelled +1\n`,
		`-2 +paid in time +paid +0\n`,
		`-3 +being paid when its time is up +paid +[2-6]\n`,
		`-4 +being paid then, and declined +cancelled +[3-7]\n`,
		`-5 +paid by a transfer, which cancels no timer +paid +0\n`,
		`-2 is paid\n`,
		`-3: its time is up, attempt 1 of 41: the order is being worked on\n`,
		`-4: the payment was declined\n`,
		`-4: its time is up, attempt \d of 41: done\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			return fmt.Errorf("-timeout %s: no %q in:\n%s", timeout, want, &out)
		}
	}
	return nil
}

func TestProgramReportsFaults(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-timeout 0s", "-timeout above 0"},
		{"here", "no arguments"},
		{"-nats nats://127.0.0.1:1", "both Redis and NATS"},
		{"-timerd ./none", "make build"},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
}
