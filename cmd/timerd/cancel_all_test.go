package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// cancel --all cancels the timers of a namespace, or the ones due before a time.
func TestCancelAll(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	if out := ok(t, "cancel", "--all", "shop"); out != "0 cancelled, 0 too late\n" {
		t.Errorf("of nothing: %s", out)
	}
	setFar(t, rdb, "shop", 1000, time.Hour)
	setFar(t, rdb, "pay", 3, time.Hour)
	setFar(t, rdb, "later", 10, 24*time.Hour)

	code, out, errs := timerd(t, "y\n", "cancel", "--all", "shop")
	if code != exitFailed || out != "" || !strings.Contains(errs,
		"timerd: nothing was cancelled: there is no terminal to ask on; give --yes to go on without. There are 1000 "+
			"timers of shop, the last one due at 20") {
		t.Errorf("without a terminal: %d %s%s", code, out, errs)
	}
	now, err := rdb.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ before, want string }{
		{"-1m", "0 cancelled, 0 too late\n"},
		{"@" + fmt.Sprint(now.Add(10*time.Minute).UnixMilli()), "0 cancelled, 0 too late\n"},
		{now.Add(10 * time.Minute).Format(time.RFC3339), "0 cancelled, 0 too late\n"},
		{"1d1m", "10 cancelled, 0 too late\n"},
	} {
		namespace := "shop"
		if c.before == "1d1m" {
			namespace = "later"
		}
		if out := ok(t, "cancel", "--all", namespace, "--yes", "--due-before="+c.before); out != c.want {
			t.Errorf("--due-before=%s: %s", c.before, out)
		}
	}
	if out := ok(t, "cancel", "--all", "shop:m", "--yes"); out != "1000 cancelled, 0 too late\n" {
		t.Errorf("cancel --all: %s", out)
	}
	if n := rdb.ZCard(t.Context(), keys.Single.Due()).Val(); n != 3 {
		t.Errorf("%d timers are left, want those of pay", n)
	}
	if out := ok(t, "cancel", "--all", "*", "-y"); out != "3 cancelled, 0 too late\n" {
		t.Errorf("cancel --all: %s", out)
	}
}

// Interrupted, it prints its progress, and can be run again.
func TestCancelAllIsInterrupted(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	const n = 20_000
	setFar(t, rdb, "shop", n, time.Hour)
	slow := testenv.NewProxy(t, server.Addr())
	slow.Delay(20 * time.Millisecond) // so that it is far from its end once it was seen to cancel
	t.Setenv("TIMERD_REDIS_URL", "redis://"+slow.Addr()+"/0")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"cancel", "--all", "shop", "--yes"}, strings.NewReader(""), &out, &errs)
	}()
	// setFar has called it, too
	testenv.Eventually(t, patience, func() bool { return calls(t, rdb, "fcall") > n }, "timers to be cancelled")
	cancel()
	code := <-ended
	var done int
	if _, err := fmt.Sscanf(out.String(), "%d cancelled, 0 too late\n", &done); err != nil {
		t.Fatalf("%d %s%s: %v", code, &out, &errs, err)
	}
	left := rdb.ZCard(t.Context(), keys.Single.Due()).Val()
	if code != exitFailed || done == 0 || int64(done)+left != n ||
		!strings.Contains(errs.String(), fmt.Sprintf(
			"timerd: interrupted after cancelling %d of 20000 timers, up to a due time of 20", done)) {
		t.Errorf("exit code %d, %d left\n%s%s", code, left, &out, &errs)
	}
	slow.Delay(0)
	if out := ok(t, "cancel", "--all", "shop", "--yes"); out != fmt.Sprintf("%d cancelled, 0 too late\n", left) {
		t.Errorf("again: %s", out)
	}
}

// A function library of an earlier version takes no arguments. The command says so instead of blaming its user.
func TestCancelAllWithAnEarlierLibrary(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	setFar(t, rdb, "shop", 3, time.Hour)
	const library = `#!lua name=timerd
redis.register_function('timer_cancel', function(keys, args)
  if #args > 0 then return redis.error_reply('ERR timerd: timer_cancel takes no arguments') end
end)`
	if err := rdb.FunctionLoadReplace(t.Context(), library).Err(); err != nil {
		t.Fatal(err)
	}
	code, out, errs := timerd(t, "", "cancel", "--all", "shop", "--yes")
	if code != exitFailed || out != "0 cancelled, 0 too late\n" ||
		!strings.Contains(errs, "is of another version: start a timerd of this version on it") {
		t.Errorf("%d %s%s", code, out, errs)
	}
}

// Where so many timers of others are owed that not all were looked at, it says so and fails.
func TestCancelAllBehindACrowd(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	setFar(t, rdb, "shop", 1, time.Hour)
	const due, n = 1763629200000, 100_000
	var owed []redis.Z
	for i := range n {
		owed = append(owed, redis.Z{Member: fmt.Sprintf("%d::pay:m:t:%d", due+i, i)})
	}
	for some := range slices.Chunk(append(owed, redis.Z{Member: fmt.Sprintf("%d::shop:m:t:owed", due+n)}), 10_000) {
		if err := rdb.ZAdd(t.Context(), keys.Single.Firing(), some...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for namespace, want := range map[string]string{"shop": "1 cancelled, 0 too late\n",
		"hidden": "0 cancelled, 0 too late\n"} {
		code, out, errs := timerd(t, "", "cancel", "--all", namespace, "--yes")
		if code != exitFailed || out != want || !strings.Contains(errs,
			"too many timers are owed or firing to search them all") {
			t.Errorf("%s: %d %s%s", namespace, code, out, errs)
		}
	}
	if code, _, errs := timerd(t, "", "cancel", "--all", "hidden"); code != exitFailed ||
		!strings.Contains(errs, "There are at least 0 timers of hidden") {
		t.Errorf("without --yes: %d %s", code, errs)
	}
}
