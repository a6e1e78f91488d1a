package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// setFar sets timers of an app that are due one after the other, the first one in some time.
func setFar(t *testing.T, rdb *redis.Client, app string, n int, in time.Duration) {
	t.Helper()
	const some = 2000 // fit into one reply's time
	for first := 0; first < n; first += some {
		_, err := rdb.Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
			for i := first; i < min(first+some, n); i++ {
				pipe.FCall(t.Context(), "timer_set", []string{fmt.Sprintf("%s:m:t:%d", app, i)}, "p", "PX",
					in.Milliseconds()+int64(i))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// calls returns how often a Redis has executed a command.
func calls(t *testing.T, rdb *redis.Client, command string) int {
	t.Helper()
	stats, err := rdb.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^cmdstat_` + command + `:calls=(\d+),`).FindStringSubmatch(stats)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[1]) // digits
	return n
}

// A few timers are found without looking at all others, however many these are.
func TestLsOfAFewAmongMany(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	setFar(t, rdb, "few", 5, time.Hour)
	setFar(t, rdb, "many", 20_000, 2*time.Hour)
	before := calls(t, rdb, "evalsha")
	code, out, errs := timerd(t, "", "ls", "few", "--limit", "5")
	if code != 0 || strings.Count(out, "\n") != 6 ||
		errs != "timerd: there may be more than these 5; --limit 0 lists all\n" {
		t.Errorf("ls few --limit 5: %d\n%s%s", code, out, errs)
	}
	if n := calls(t, rdb, "evalsha") - before; n > 6 {
		t.Errorf("Redis was asked %d times, want a few", n)
	}
	before = calls(t, rdb, "evalsha")
	code, out, errs = timerd(t, "", "ls", "few")
	if code != 0 || strings.Count(out, "\n") != 6 || strings.Contains(errs, "more than") {
		t.Errorf("ls few: %d\n%s%s", code, out, errs)
	}
	if n := calls(t, rdb, "evalsha") - before; n > 60 {
		t.Errorf("Redis was asked %d times for 20,000 timers, want few large pages", n)
	}
}

// Timers in some states are found without looking at all others.
func TestLsOfSomeStates(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	setFar(t, rdb, "many", 20_000, 2*time.Hour)
	setFar(t, rdb, "few", 2, time.Millisecond)
	testenv.Eventually(t, patience, func() bool {
		return strings.Count(ok(t, "ls", "few", "--state", "owed", "--json"), `"state":"owed"`) == 2
	}, "two timers to be owed")
	before := calls(t, rdb, "zrange")
	if table := ok(t, "ls", "--state", "owed", "--state", "firing"); strings.Count(table, "\n") != 3 ||
		strings.Count(table, "  owed   ") != 2 {
		t.Errorf("ls of what waits:\n%s", table)
	}
	if n := calls(t, rdb, "zrange") - before; n > 6 {
		t.Errorf("Redis was asked %d times, want a few", n)
	}
	if code, out, errs := timerd(t, "", "ls", "few", "--state", "pending,firing"); code != 0 || out != "0 timers\n" ||
		testenv.WithoutProgress(errs) != "" {
		t.Errorf("ls of none: %d\n%s%s", code, out, errs)
	}
}

// For a claimed timer, cancel prints that its event or its dead letter may be in NATS, and not only that it is too
// late.
func TestCancelOfAClaimedTimer(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	setFar(t, rdb, "app", 1, time.Millisecond)
	nodes, err := schedule.New(rdb, 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		claimed := nodes[0].Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Minute)[0]
		return len(claimed.Firings) == 1
	}, "the claim")
	if out := ok(t, "get", "app:m:t:0"); !strings.Contains(out, "\nstate    firing\n") {
		t.Errorf("get:\n%s", out)
	}
	if code, out, errs := timerd(t, "", "cancel", "app:m:t:0"); code != exitFailed || out != "fired\n" ||
		!strings.Contains(errs, "its event, or its dead letter, may be in NATS already") {
		t.Errorf("cancel: %d\n%s%s", code, out, errs)
	}
}

// A pending timer fires now, or is due at another time; other timers stay, with the reason.
func TestFireAndMove(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	ok(t, "set", "shop:order:timeout:1", "1h", "payload", "--attempt", "3")
	ok(t, "set", "shop:order:timeout:2", "1h")
	if code, _, errs := timerd(t, "", "hold", "held"); code != 0 {
		t.Fatal(errs)
	}
	ok(t, "set", "held:order:timeout:1", "1ms")
	out := ok(t, "move", "shop:order:timeout:1", "3h")
	due, isDue := strings.CutPrefix(out, "shop:order:timeout:1 is due at ")
	if !isDue || !strings.Contains(out, "Z (3h)\n") && !strings.Contains(out, "Z (2h 59m") {
		t.Errorf("move: %s", out)
	}
	due, _, _ = strings.Cut(due, " ")
	if out := ok(t, "get", "shop:order:timeout:1"); !strings.Contains(out, "payload") || !strings.Contains(out, "3") ||
		!strings.Contains(out, due) {
		t.Errorf("get of one that was moved to %s: %s", due, out)
	}
	for _, args := range [][]string{{"fire", "shop:order:timeout:1"},
		{"move", "shop:order:timeout:2", "2020-01-01T00:00:00Z"}} {
		if out := ok(t, args...); out != args[1]+" fires now\n" {
			t.Errorf("timerd %q: %s", args, out)
		}
	}
	testenv.Eventually(t, patience, func() bool {
		return strings.Contains(ok(t, "ls", "held", "--state", "held"),
			"held:order")
	}, "a held timer")
	for args, want := range map[string]string{
		"fire shop:order:timeout:1":    "shop:order:timeout:1 is due already: it is too late",
		"move held:order:timeout:1 1h": "held:order:timeout:1 is held: timerd resume releases it",
		"fire shop:order:timeout:3":    "shop:order:timeout:3 is not pending, held, owed or firing",
	} {
		if code, out, errs := timerd(t, "", strings.Fields(args)...); code != exitFailed || out != "" ||
			!strings.Contains(errs, want) {
			t.Errorf("timerd %s: exit code %d, %s%s", args, code, out, errs)
		}
	}
	if got := claimed(t, server); !slices.Equal(got, []string{"shop:order:timeout:1 attempt 3: payload",
		"shop:order:timeout:2 attempt 0: "}) {
		t.Errorf("fires %q", got)
	}
}

// claimed claims the due timers.
func claimed(t *testing.T, server *testenv.RedisServer) (said []string) {
	t.Helper()
	nodes, err := schedule.New(server.Client(), 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	result := nodes[0].Claim(t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, time.Minute)[0]
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	for _, f := range result.Firings {
		said = append(said, fmt.Sprintf("%s attempt %d: %s", f.Key, f.Attempt, f.Payload))
	}
	slices.Sort(said)
	return said
}

// A namespace that nobody serves is probably misspelt.
func TestUnservedNamespaceIsNamed(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": server.URL(0)})
	nodes, err := schedule.New(server.Client(), 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, instance := range []string{"a", "b"} {
		self := schedule.Self{Instance: instance, Settings: map[string]string{"TIMERD_NAMESPACES": "pay,shop:order"}}
		if _, err := nodes[0].Heartbeat(t.Context(), self, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for args, warned := range map[string]bool{
		"ls": false, "ls shop": false, "ls shop:*:timeout": false, "ls shop:oder": true, "hold pay:x": false,
		"hold pya": true,
	} {
		code, _, errs := timerd(t, "", strings.Fields(args)...)
		_, name, _ := strings.Cut(args, " ")
		if code != 0 || strings.Contains(errs,
			"warning: no timerd serves "+name+"; they serve pay,shop:order: ") != warned {
			t.Errorf("timerd %s: exit code %d\n%s", args, code, errs)
		}
	}
}

// A retry beside a newer timer of its key is listed too, and told apart.
func TestLsOfARetryBeside(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	setFar(t, rdb, "app", 1, 2*time.Hour)
	key, err := keys.Parse("app:m:t:0")
	if err != nil {
		t.Fatal(err)
	}
	retry := schedule.Retry{EventID: "x", Key: key, Due: schedule.MillisOf(time.Now().Add(time.Hour)), Attempt: 2,
		Payload: []byte("old")}
	if _, set, err := schedule.New(rdb, 1000).Retry(t.Context(), retry); !set || err != nil {
		t.Fatal(set, err)
	}
	if table := ok(t, "ls"); !regexp.MustCompile(
		`pending beside +2 retry +app:m:t:0 +old\n.* pending +1 +app:m:t:0 +p\n`).MatchString(table) {
		t.Errorf("ls:\n%s", table)
	}
	if lines := ok(t, "ls", "--json"); strings.Count(lines, `"state":"pending","beside":true,`) != 1 ||
		strings.Count(lines, `"state":"pending",`) != 2 {
		t.Errorf("ls --json:\n%s", lines)
	}
}

// A slow listing shows its progress and prints its finds. It can be interrupted.
func TestLsTellsHowFarItIs(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	setFar(t, rdb, "few", 3, time.Hour)
	setFar(t, rdb, "many", 20_000, 2*time.Hour)
	slow := testenv.NewProxy(t, server.Addr())
	slow.Delay(200 * time.Millisecond)
	t.Setenv("TIMERD_REDIS_URL", "redis://"+slow.Addr()+"/0")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"ls", "few", "--limit", "10"}, strings.NewReader(""), &out, &errs) }()
	errs.Wait(t, patience, " of 20003 timers so far, up to 20")
	out.Wait(t, patience, "few:m:t:2")
	// Other tests pass over the progress of a slow machine.
	if rest := testenv.WithoutProgress(errs.String()); rest != "" {
		t.Errorf("progress that testenv does not know: %s", rest)
	}
	cancel()
	if code := <-ended; code != exitFailed || !strings.Contains(errs.String(), " and was interrupted, up to 20") ||
		!strings.Contains(errs.String(), "; found 3\n") {
		t.Errorf("exit code %d\n%s%s", code, &out, &errs)
	}
}

// A type without a payload is distinguished from a missing payload.
func TestLsAndGetTellWhyThereIsNoPayload(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	var hints []schedule.Hint
	for kind, command := range map[string][]any{
		"list": {"RPUSH", "app:m:t:list", "a"}, "zset": {"ZADD", "app:m:t:zset", 1, "a"},
		"set":    {"SADD", "app:m:t:set", "a"},
		"stream": {"XADD", "app:m:t:stream", "*", "a", "b"}, "string": {"SET", "app:m:t:string", "a"},
	} {
		if err := rdb.Do(t.Context(), command...).Err(); err != nil {
			t.Fatal(err)
		}
		key := "app:m:t:" + kind
		if err := rdb.Expire(t.Context(), key, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		hints = append(hints, schedule.Hint{Kind: schedule.Touched, Key: key})
	}
	nodes, err := schedule.New(rdb, 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[0].Observe(t.Context(), hints, time.Time{}); err != nil {
		t.Fatal(err)
	}
	table := ok(t, "ls", "app")
	for kind, want := range map[string]string{
		"list": "(missing: a list has no payload)", "zset": "(missing: a sorted set has no payload)",
		"set":    "(missing: a set has no payload)",
		"stream": "(missing: a stream has no payload)", "string": "a",
	} {
		if !regexp.MustCompile(`app:m:t:` + kind + ` +` + regexp.QuoteMeta(want) + `\n`).MatchString(table) {
			t.Errorf("ls does not say %q of %s:\n%s", want, kind, table)
		}
		if out := ok(t, "get", "app:m:t:"+kind); !strings.HasSuffix(out, "\npayload  "+want+"\n") {
			t.Errorf("get does not say %q of %s:\n%s", want, kind, out)
		}
	}
	if out := ok(t, "ls", "app", "--json"); strings.Count(out, `"datastatus":"missing"}`) != 4 {
		t.Errorf("ls --json:\n%s", out)
	}
}
