package client_test

import (
	"errors"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv/timerdtest"
)

func TestRepeat(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	rdb := timerdtest.Redis(t)
	timers := client.New(rdb)
	const key = "shop:report:daily:1"

	from := timerdtest.Now(t, rdb).Add(time.Hour).Truncate(time.Millisecond)
	first, err := timers.Repeat(ctx, key, []byte("p"), client.Every(5*time.Minute), client.From(from),
		client.Until(from.Add(time.Hour)),
		client.Times(3), client.CatchUp(time.Minute), client.Late(time.Second), client.NX())
	if err != nil || !first.Equal(from) {
		t.Fatalf("due first at %v, %v; want %v", first, err, from)
	}
	timer, found, err := timers.Get(ctx, key)
	if err != nil || !found || timer.Repeat != "every 5m0s" || timer.Occurrence != 1 || !timer.Due.Equal(from) ||
		timer.Late != time.Second || string(timer.Payload) != "p" {
		t.Errorf("got %+v, %v, %v", timer, found, err)
	}
	if _, err := timers.Repeat(ctx, key, nil, client.Every(time.Minute), client.NX()); !errors.Is(err,
		client.ErrNotSet) {
		t.Errorf("NX: %v", err)
	}
	if first, err := timers.Repeat(ctx, key, nil, client.Cron("0 9 * * 1-5", "Europe/Berlin")); err != nil ||
		!first.IsZero() {
		t.Errorf("a cron expression is due first at %v, %v; want nothing yet", first, err)
	}
	if timer, _, err := timers.Get(ctx, key); err != nil || timer.Repeat != "cron 0 9 * * 1-5 Europe/Berlin" ||
		timer.State != client.Pending {
		t.Errorf("got %+v, %v", timer, err)
	}
	for name, by := range map[string]client.Repetition{"none": {}, "short": client.Every(time.Millisecond),
		"bad": client.Cron("* * *", "")} {
		if _, err := timers.Repeat(ctx, key, nil, by); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if outcome, err := timers.Cancel(ctx, key); err != nil || outcome != client.Cancelled {
		t.Errorf("cancel: %v, %v", outcome, err)
	}
}
