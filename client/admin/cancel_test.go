package admin_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
)

// CancelAll cancels the timers of a namespace, or the ones due before a time; other namespaces' timers stay.
func TestCancelAll(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), timerdtest.Redis(t)
	timers, operator := client.New(rdb), admin.New(rdb)
	var settings []client.Setting
	for i := range 200 {
		settings = append(settings, client.Setting{Key: fmt.Sprintf("shop:m:t:%d", i),
			When: client.After(time.Duration(i+1) * time.Hour)})
	}
	settings = append(settings, client.Setting{Key: "pay:m:t:1", When: client.After(time.Hour)})
	dues, err := timers.SetMany(ctx, settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		before time.Time
		want   int64
	}{{dues[50].Due, 50}, {time.Time{}, 150}, {time.Time{}, 0}} {
		if done, err := operator.CancelAll(ctx, "shop", c.before); err != nil || done.Cancelled != c.want ||
			done.TooLate != 0 || done.Gone != 0 || done.Cut {
			t.Errorf("before %v: %+v, %v; want %d", c.before, done, err, c.want)
		}
	}
	if _, found, err := timers.Get(ctx, "pay:m:t:1"); err != nil || !found {
		t.Errorf("the timer of another namespace: %v, %v", found, err)
	}
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	_, noNamespace := operator.CancelAll(ctx, "a:b:c:d", time.Time{})
	_, noServer := admin.New(ring).CancelAll(ctx, "shop", time.Time{})
	for _, err := range []error{noNamespace, noServer} {
		if !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%v, want ErrInvalid", err)
		}
	}
}

// The pending timer of a key fires now, or at another time.
func TestFireAndMove(t *testing.T) {
	t.Parallel()
	ctx, rdb := t.Context(), timerdtest.Redis(t)
	timers, operator := client.New(rdb), admin.New(rdb)
	const key = "shop:m:t:1"
	due, err := timers.Set(ctx, key, []byte("p"), client.After(time.Hour), client.Attempt(4))
	if err != nil {
		t.Fatal(err)
	}
	if done, err := operator.Move(ctx, key, due.Add(time.Hour)); err != nil || done != (admin.MoveResult{Moved: 1}) {
		t.Errorf("Move: %+v, %v", done, err)
	}
	if timer, _, err := timers.Get(ctx, key); err != nil || !timer.Due.Equal(due.Add(time.Hour)) ||
		timer.Attempt != 4 || string(timer.Payload) != "p" {
		t.Errorf("moved to %+v, %v", timer, err)
	}
	for i, want := range []admin.MoveResult{{Moved: 1}, {TooLate: 1}} {
		if done, err := operator.Fire(ctx, key); err != nil || done != want {
			t.Errorf("Fire, call %d: %+v, %v; want %+v", i+1, done, err, want)
		}
	}
	if timer, _, err := timers.Get(ctx, key); err != nil || timer.State != client.Owed {
		t.Errorf("after Fire: %+v, %v", timer, err)
	}
	if done, err := operator.Fire(ctx, "shop:m:t:2"); err != nil || done != (admin.MoveResult{}) {
		t.Errorf("Fire of none: %+v, %v", done, err)
	}
	if _, err := operator.Fire(ctx, "shop:m:t"); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("Fire of no key: %v, want ErrInvalid", err)
	}
}
