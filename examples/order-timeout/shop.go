package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
)

// namespace is the timers' namespace: shop:order:timeout:<order>.
const namespace = "shop:order:timeout"

// state is the state of an order.
type state string

// The states. An order is open first and then one of the others for good.
const (
	open      state = "open"
	paid      state = "paid"
	cancelled state = "cancelled"
)

var (
	errLocked   = errors.New("the order is being worked on")
	errLockLost = errors.New("the work took longer than its lock lasts")
	errNotOpen  = errors.New("the order is not open")
)

// finishScript ends the work on an order, in one atomic step.
//
// KEYS: the lock, the order. ARGV: the token of the lock, the order's new state or
// nothing. Returns 1; or 0 and changes nothing if the lock is not the caller's.
const finishScript = `
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[2], 'state', ARGV[2])
end
redis.call('DEL', KEYS[1])
return 1
`

// shop keeps orders in Redis. Whoever works on one holds its lock. Its methods may
// be called concurrently, from any number of processes.
type shop struct {
	rdb    redis.UniversalClient
	timers *client.Timers

	// timeout is the time for which an order may stay open.
	timeout time.Duration
	// deferral is the delay of work that found its order locked. Multiplied by the attempts of the retry policy it must
	// outlast lockTime.
	deferral time.Duration
	// lockTime is the lifetime of a dead holder's lock.
	lockTime time.Duration

	finish *redis.Script
}

// newShop returns a shop on rdb with the durations in its fields.
func newShop(rdb redis.UniversalClient, timeout, deferral, lockTime time.Duration) *shop {
	return &shop{
		rdb:      rdb,
		timers:   client.New(rdb),
		timeout:  timeout,
		deferral: deferral,
		lockTime: lockTime,
		finish:   redis.NewScript(finishScript),
	}
}

// None of these keys is a timer's: that would have four parts.
func orderKey(id string) string { return "order/{" + id + "}" }
func lockKey(id string) string  { return "lock/{" + id + "}" }

func timerKey(id string) string { return namespace + ":" + id }

// transferKey is there if the money for an order has come by transfer. It is in the timer's slot of a cluster, and has
// no TTL, which would make it a timer.
func transferKey(id string) string { return "transfer/{" + timerKey(id) + "}" }

// transfer is what another program does once the money for an order has come: it notes that, and knows no timers.
func transfer(ctx context.Context, rdb redis.UniversalClient, id string) error {
	return rdb.Set(ctx, transferKey(id), "come", 0).Err()
}

// place makes an open order. The timer is set first: should this process die in
// between, it fires for an order that does not exist, which does no harm. The other
// way round the order would stay open for ever. The timer does not fire once a transfer
// has come, though nobody cancels it.
func (s *shop) place(ctx context.Context, id string) error {
	payload, err := json.Marshal(map[string]string{"order": id})
	if err != nil {
		return err
	}
	if _, err := s.timers.Set(ctx, timerKey(id), payload, client.After(s.timeout),
		client.Unless(transferKey(id))); err != nil {
		return err
	}
	return s.rdb.HSet(ctx, orderKey(id), "state", string(open)).Err()
}

// state returns the state of an order, "" if there is none. A transfer makes an open
// one paid.
func (s *shop) state(ctx context.Context, id string) (state, error) {
	text, err := s.rdb.HGet(ctx, orderKey(id), "state").Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	if err != nil || state(text) != open {
		return state(text), err
	}
	come, err := s.rdb.Exists(ctx, transferKey(id)).Result()
	if come > 0 {
		return paid, err
	}
	return open, err
}

// pay charges the customer and, with that, cancels the timeout. Its errors are errLocked, errNotOpen, what charge
// returned, or of Redis; errLockLost means that the customer was charged for nothing and must get the money back.
func (s *shop) pay(ctx context.Context, id string, charge func(context.Context) error) error {
	err := s.work(ctx, id, func(now state) (state, error) {
		if now != open {
			return "", fmt.Errorf("%w: %s", errNotOpen, now)
		}
		return paid, charge(ctx)
	})
	if err != nil {
		return fmt.Errorf("pay order %s: %w", id, err)
	}
	// Too late is fine: the event then finds the order paid. So the answer does not
	// matter, and neither does a process that dies before this.
	_, err = s.timers.Cancel(ctx, timerKey(id))
	return err
}

// expire is the client.Handler: it cancels an order that is still open. Where
// somebody works on the order at the moment, it is put off.
func (s *shop) expire(ctx context.Context, e client.Event) error {
	err := s.work(ctx, e.Key.ID, func(now state) (state, error) {
		if now == open {
			return cancelled, nil
		}
		return "", nil
	})
	if errors.Is(err, errLocked) {
		return client.RetryAfter(s.deferral, err)
	}
	return err
}

// work does something with an order while holding its lock, and sets the state that
// do returns, unless that is "" or do fails. It does not wait for the lock: where
// that is taken its error is errLocked, and do is not called.
func (s *shop) work(ctx context.Context, id string, do func(now state) (next state, err error)) error {
	token := rand.Text()
	switch err := s.rdb.SetArgs(ctx, lockKey(id), token, redis.SetArgs{Mode: "NX", TTL: s.lockTime}).Err(); {
	case errors.Is(err, redis.Nil):
		return errLocked
	case err != nil:
		return err
	}
	now, err := s.state(ctx, id)
	var next state
	if err == nil {
		next, err = do(now)
	}
	if err != nil {
		next = ""
	}
	held, unlock := s.finish.Run(ctx, s.rdb, []string{lockKey(id), orderKey(id)}, token, string(next)).Bool()
	switch {
	case err != nil:
		return err // the lock that may be left ends by itself
	case unlock != nil:
		return unlock
	case !held && next != "":
		return errLockLost
	}
	return nil
}
