package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
)

// virtual is a timerd dev --virtual, and the variables of this process name its servers.
type virtual struct {
	t      *testing.T
	began  time.Time // real
	rdb    *redis.Client
	timers *client.Timers
	js     jetstream.JetStream
	out    *testenv.Output
	errs   *testenv.Output
}

func startVirtual(t *testing.T, retries string, flags ...string) *virtual {
	t.Helper()
	testenv.NoLeaks(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_RETRY": retries})
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	v := &virtual{t: t, began: time.Now(), out: &testenv.Output{}, errs: &testenv.Output{}}
	ended := make(chan int, 1)
	go func() {
		args := devArgs(append([]string{"--virtual", "--console-addr", "off"}, flags...)...)
		ended <- run(ctx, args, strings.NewReader(""), v.out, v.errs)
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitOK || strings.Contains(v.errs.String(), "level=ERROR") {
			t.Errorf("dev ended with %d\n%s", code, v.errs)
		}
	})
	testenv.Eventually(t, patience, func() bool { return strings.Contains(v.out.String(), "Each firing") }, "its start")
	for _, s := range regexp.MustCompile(`(?m)^  export (TIMERD_[A-Z_]+)='?([^'\n]+)'?$`).FindAllStringSubmatch(
		v.out.String(), -1) {
		t.Setenv(s[1], s[2])
	}
	options, err := redis.ParseURL(os.Getenv("TIMERD_REDIS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	v.rdb = redis.NewClient(options)
	t.Cleanup(func() { _ = v.rdb.Close() })
	v.timers = client.New(v.rdb)
	nc, err := nats.Connect(os.Getenv("TIMERD_NATS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if v.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return v
}

// run runs another command of timerd, which must succeed. An advance may wait long, on a busy machine.
func (v *virtual) run(args ...string) string {
	v.t.Helper()
	if args[0] == "advance" {
		args = append(args, "--wait", patience.String())
	}
	code, out, errs := timerd(v.t, "", args...)
	if code != exitOK {
		v.t.Fatalf("timerd %q: exit code %d\n%s%s", args, code, out, errs)
	}
	return out
}

// stored returns how many events have been stored.
func (v *virtual) stored() uint64 {
	v.t.Helper()
	stream, err := v.js.Stream(v.t.Context(), "TIMERS")
	if err != nil {
		v.t.Fatal(err)
	}
	return stream.CachedInfo().State.LastSeq
}

// now returns the virtual time.
func (v *virtual) now() time.Time {
	v.t.Helper()
	ahead, err := v.rdb.Get(v.t.Context(), "timerd:{t}:ahead").Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		v.t.Fatal(err)
	}
	now, err := v.rdb.Time(v.t.Context()).Result()
	if err != nil {
		v.t.Fatal(err)
	}
	return now.Add(time.Duration(ahead) * time.Millisecond)
}

// fires advances the clock and checks which keys have fired, each as "KEY ATTEMPT +DISTANCE" from a time.
func (v *virtual) fires(by time.Duration, since time.Time, want ...string) {
	v.t.Helper()
	var got []string
	for line := range strings.Lines(v.run("advance", by.String(), "--json")) {
		var e struct {
			Subject string
			DueAt   time.Time `json:"dueat"`
			Time    time.Time
			Attempt int
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			v.t.Fatal(err)
		}
		if late := e.Time.Sub(e.DueAt); late < 0 || !v.is(late, 0) {
			v.t.Errorf("%s is %v late", e.Subject, late)
		}
		distance := e.DueAt.Sub(since)
		if len(got) < len(want) {
			_, text, _ := strings.Cut(want[len(got)], "+")
			if wanted, err := time.ParseDuration(text); err == nil && v.is(distance, wanted) {
				distance = wanted
			}
		}
		got = append(got, fmt.Sprintf("%s %d +%v", e.Subject, e.Attempt, distance))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		v.t.Errorf("advancing by %v fired\n  %s\nwant\n  %s", by, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// is reports whether a virtual time has the wanted length. It may be longer by the real time since the test began, and
// shorter by the second to which an instant in a text is cut.
func (v *virtual) is(length, want time.Duration) bool {
	return length > want-time.Second && length <= want+time.Since(v.began)
}

// saysNow reports whether a text printed since some virtual time has the time of then or of now, in a layout.
func (v *virtual) saysNow(text, layout string, since time.Time) bool {
	v.t.Helper()
	return strings.Contains(text, since.UTC().Format(layout)) || strings.Contains(text, v.now().UTC().Format(layout))
}

func (v *virtual) do(args ...any) {
	v.t.Helper()
	if err := v.rdb.Do(v.t.Context(), args...).Err(); err != nil {
		v.t.Fatalf("%v: %v", args, err)
	}
}

// page returns a page of the console.
func (v *virtual) page(path string) string {
	v.t.Helper()
	at := regexp.MustCompile(`The console is at (http://\S+)`).FindStringSubmatch(v.out.String())
	if at == nil {
		v.t.Fatalf("no console:\n%s", v.out)
	}
	response, err := http.Get(at[1] + path)
	if err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return string(text)
}

// consume runs a consumer of a namespace until the test ends.
func (v *virtual) consume(namespace string, handle client.Handler) {
	v.t.Helper()
	c := client.NewConsumer(v.js)
	c.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(v.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Consume(ctx, namespace, handle) }()
	v.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			v.t.Error(err)
		}
	})
	testenv.Eventually(v.t, patience, func() bool {
		is, err := v.js.Consumer(ctx, "TIMERS", "timerd~"+namespace)
		return err == nil && is.CachedInfo().NumWaiting > 0
	}, "the consumer to ask")
}

// What clients set and change by commands of Redis, before an advance and after it.
func TestAdvancePlainKeys(t *testing.T) {
	v := startVirtual(t, "")
	t0 := v.now()
	v.do("SET", "shop:plain:set:1", "one", "EX", 3600)
	v.do("SET", "shop:plain:expired:1", "one", "EX", 3600)
	v.do("SET", "shop:plain:persisted:1", "one", "EX", 3600)
	v.do("SET", "shop:plain:deleted:1", "one", "EX", 3600)
	v.do("HSET", "shop:plain:hash:1", "a", "b")
	v.do("EXPIRE", "shop:plain:hash:1", 7200)
	v.fires(30*time.Minute, t0)
	v.do("EXPIRE", "shop:plain:expired:1", 7200) // from now on: due after 2.5 hours
	v.do("PERSIST", "shop:plain:persisted:1")
	v.do("DEL", "shop:plain:deleted:1")
	v.do("SET", "shop:plain:again:1", "two", "EX", 3600) // due after 1.5 hours
	v.fires(2*time.Hour+time.Minute, t0, "shop:plain:set:1 1 +1h0m0s", "shop:plain:again:1 1 +1h30m0s",
		"shop:plain:hash:1 1 +2h0m0s", "shop:plain:expired:1 1 +2h30m0s")
	if n := v.rdb.Exists(t.Context(), "shop:plain:set:1", "shop:plain:hash:1").Val(); n != 0 {
		t.Errorf("%d keys of fired timers are left", n)
	}
	// A key that keeps its TTL keeps its due time, and follows its value.
	v.do("SET", "shop:plain:kept:1", "old", "EX", 3600)
	v.fires(10*time.Minute, t0)
	v.do("SET", "shop:plain:kept:1", "new", "KEEPTTL")
	v.fires(0, t0)
	if out := v.run("get", "shop:plain:kept:1", "--raw"); out != "new" {
		t.Errorf("its payload is %q", out)
	}
	v.fires(49*time.Minute, t0)
	v.fires(2*time.Minute, t0, "shop:plain:kept:1 1 +3h31m0s")
}

// Timers of timer_set keep their due times on a virtual clock, also once moved, fired early or cancelled, and commands
// name the virtual time.
func TestAdvanceFunctions(t *testing.T) {
	v := startVirtual(t, "")
	ctx, t0 := t.Context(), v.now()
	for _, set := range []struct {
		key  string
		when client.When
	}{
		{"shop:order:timeout:1", client.After(72 * time.Hour)},
		{"shop:order:timeout:2", client.At(t0.Add(24 * time.Hour))},
		{"shop:order:cancelled:1", client.After(time.Hour)},
		{"shop:order:moved:1", client.After(time.Hour)},
		{"shop:order:fired:1", client.After(1000 * time.Hour)},
	} {
		if _, err := v.timers.Set(ctx, set.key, []byte("x"), set.when); err != nil {
			t.Fatal(err)
		}
	}
	if outcome, err := v.timers.Cancel(ctx, "shop:order:cancelled:1"); err != nil || outcome != client.Cancelled {
		t.Errorf("cancel: %v, %v", outcome, err)
	}
	v.run("move", "shop:order:moved:1", "3h")
	v.fires(2*time.Hour, t0)
	if timer, found, err := v.timers.Get(ctx, "shop:order:timeout:1"); err != nil || !found ||
		!v.is(timer.Due.Sub(t0), 72*time.Hour) || timer.State != client.Pending {
		t.Errorf("get after two hours: %+v, %v, %v", timer, found, err)
	}
	v.run("fire", "shop:order:fired:1")
	if out := v.run("watch", "shop:order:fired", "--since", "1h", "--count", "1"); !strings.Contains(out, ":fired:1") {
		t.Errorf("it has not fired: %s", out)
	}
	v.fires(100*time.Hour, t0, "shop:order:moved:1 1 +3h0m0s",
		"shop:order:timeout:2 1 +24h0m0s", "shop:order:timeout:1 1 +72h0m0s")
	// A fired timer cannot be cancelled.
	if outcome, err := v.timers.Cancel(ctx, "shop:order:timeout:1"); err != nil || outcome != client.Fired {
		t.Errorf("cancel: %v, %v", outcome, err)
	}
	before := v.now()
	code, _, errs := timerd(t, "", "ls")
	if code != exitOK || !v.saysNow(errs, "virtual time 2006-01-02T15:", before) {
		t.Errorf("ls does not tell of the virtual time: %d, %s", code, errs)
	}
	for _, args := range [][]string{{"status"}, {"forecast"}} {
		if code, _, errs := timerd(t, "", args...); code != exitOK || !strings.Contains(errs, "virtual time 20") {
			t.Errorf("%q does not tell of the virtual time: %d, %s", args, code, errs)
		}
	}
	if _, _, errs := timerd(t, "", "advance", "--to", t0.Add(1000*time.Hour).Format(time.RFC3339),
		"--wait", patience.String()); !strings.Contains(
		errs, " ahead") {
		t.Errorf("advance --to: %s", errs)
	}
	if past := v.now().Sub(t0); !v.is(past, 1000*time.Hour) {
		t.Errorf("advance --to has reached %v", past)
	}
}

// An advance over a year fires each occurrence once, also over the changes of summer time.
func TestAdvanceRepetitions(t *testing.T) {
	v := startVirtual(t, "")
	ctx, t0 := t.Context(), v.now()
	set := func(key string, by client.Repetition, options ...client.SetOption) {
		t.Helper()
		if _, err := v.timers.Repeat(ctx, key, nil, by, options...); err != nil {
			t.Fatal(err)
		}
	}
	set("shop:repeat:times:1", client.Every(time.Hour), client.Times(3))
	set("shop:repeat:until:1", client.Every(2*time.Hour), client.Until(t0.Add(5*time.Hour)),
		client.CatchUp(24*time.Hour))
	v.fires(10*time.Hour, t0, "shop:repeat:times:1 1 +1h0m0s", "shop:repeat:times:1 1 +2h0m0s",
		"shop:repeat:until:1 1 +2h0m0s", "shop:repeat:times:1 1 +3h0m0s", "shop:repeat:until:1 1 +4h0m0s")
	set("shop:repeat:cron:1", client.Cron("0 9 1 * *", "Europe/Berlin"), client.Times(12))
	out := v.run("advance", (370 * 24 * time.Hour).String(), "--json")
	months := regexp.MustCompile(`"dueat":"(\d+-\d+)-01T0([78]):00:00`).FindAllStringSubmatch(out, -1)
	if len(months) != 12 {
		t.Errorf("%d months of 12 have their statement:\n%s", len(months), out)
	}
	summer := 0
	for _, m := range months {
		if m[2] == "7" {
			summer++
		}
	}
	if summer != 7 {
		t.Errorf("%d months of 7 are of summer time", summer)
	}
}

// Holds end, resumes release and limits on lateness apply by the virtual clock.
func TestAdvanceHoldsAndLimits(t *testing.T) {
	v := startVirtual(t, "")
	ctx, t0 := t.Context(), v.now()
	set := func(key string, after time.Duration, options ...client.SetOption) {
		t.Helper()
		if _, err := v.timers.Set(ctx, key, nil, client.After(after), options...); err != nil {
			t.Fatal(err)
		}
	}
	v.run("hold", "pay", "--for", "2h")
	set("pay:order:held:1", time.Hour)
	set("pay:order:late:1", time.Hour, client.DropLate(30*time.Minute))
	set("shop:order:free:1", 90*time.Minute)
	v.fires(100*time.Minute, t0, "shop:order:free:1 1 +1h30m0s")
	if state := v.run("get", "pay:order:held:1"); !strings.Contains(state, "held") {
		t.Errorf("the held timer: %s", state)
	}
	code, out, errs := timerd(t, "", "advance", "1h", "--json", "--wait", patience.String())
	if code != exitOK || strings.Count(out, "\n") != 1 || !strings.Contains(out, "pay:order:held:1") {
		t.Errorf("at the end of the hold: %d, %s%s", code, out, errs)
	}
	// Resumed at a rate, each fires in a second of its own.
	v.run("hold", "pay")
	t1 := v.now()
	for i := range 30 {
		set(fmt.Sprintf("pay:order:many:%d", i), time.Hour)
	}
	v.fires(2*time.Hour, t1)
	before, ended := v.stored(), make(chan string, 1)
	go func() { ended <- v.run("resume", "pay", "--rate", "1/s") }()
	testenv.Eventually(t, patience, func() bool { return strings.Contains(v.run("holds"), "rate") }, "the resume")
	v.run("advance", "1h")
	<-ended
	if n := v.stored() - before; n != 30 {
		t.Errorf("%d of 30 have fired", n)
	}
}

// Retries, with the delay of the policy or their own, postponements and replays fire by the virtual clock.
func TestAdvanceRetries(t *testing.T) {
	v := startVirtual(t, "pay=1m,1h,24h; *=10s")
	ctx, t0 := t.Context(), v.now()
	v.consume("pay", func(_ context.Context, e client.Event) error {
		switch {
		case e.Key.Type == "delayed" && e.Attempt == 1:
			return client.RetryAfter(5*time.Hour, io.ErrUnexpectedEOF)
		case e.Key.Type == "postponed" && e.Time.Sub(t0) < 3*time.Hour:
			return client.Postpone(time.Hour, io.ErrUnexpectedEOF)
		case e.Key.Type == "policy":
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	for i, typ := range []string{"delayed", "postponed", "policy"} {
		after := time.Hour + time.Duration(i)*time.Millisecond // those of one ms fire by their names
		if _, err := v.timers.Set(ctx, "pay:callback:"+typ+":1", nil, client.After(after)); err != nil {
			t.Fatal(err)
		}
	}
	v.fires(72*time.Hour, t0, "pay:callback:delayed:1 1 +1h0m0s", "pay:callback:postponed:1 1 +1h0m0s",
		"pay:callback:policy:1 1 +1h0m0s", "pay:callback:policy:1 2 +1h1m0s", "pay:callback:postponed:1 1 +2h0m0s",
		"pay:callback:policy:1 3 +2h1m0s", "pay:callback:postponed:1 1 +3h0m0s", "pay:callback:delayed:1 2 +6h0m0s",
		"pay:callback:policy:1 4 +26h1m0s")
	if out := v.run("dead", "ls"); !strings.Contains(out, "\n1 dead letter\n") {
		t.Errorf("the dead letters:\n%s", out)
	}
	t1 := v.now()
	v.run("dead", "replay", "pay", "--yes")
	v.fires(0, t1)
	v.fires(90*time.Second, t1, "pay:callback:policy:1 2 +1m0s")
}

// An advance names a handler that does not end.
func TestAdvanceNamesWhatIsOpen(t *testing.T) {
	v := startVirtual(t, "")
	begun, end := make(chan struct{}), make(chan struct{})
	v.consume("shop", func(context.Context, client.Event) error {
		close(begun)
		<-end
		return nil
	})
	v.do("SET", "shop:order:slow:1", "", "EX", 60)
	v.do("SET", "shop:order:later:1", "", "EX", 7200)
	// A busy machine may take longer than the wait to fire the timer, and names it then. No advance gets past it.
	testenv.Eventually(t, time.Minute, func() bool {
		code, out, errs := timerd(t, "", "advance", "1h", "--wait", "500ms")
		if code != exitFailed {
			t.Fatalf("exit code %d\n%s%s", code, out, errs)
		}
		return out == "" && strings.Contains(errs, "consumer timerd~shop has 1 in hand")
	}, "an advance names the consumer")
	<-begun
	close(end)
	// The next advance goes on from there.
	if out := v.run("advance", "1h"); strings.Contains(out, "later") {
		t.Errorf("it has gone on too far:\n%s", out)
	}
}

// Each page of the console tells of the virtual clock, and so does its API.
func TestVirtualConsole(t *testing.T) {
	v := startVirtual(t, "", "--console-addr", "127.0.0.1:0")
	before := time.Now()
	v.run("advance", "72h")
	took, day := time.Since(before), v.now()
	for _, path := range []string{"", "timers", "repeating", "dead", "holds", "consumers", "webhooks", "system",
		"timers/shop:order:none:1"} {
		testenv.Eventually(t, patience, func() bool { // a busy machine may not read the clock in time for a page
			page := v.page(path)
			return strings.Contains(page, "The clock is virtual:") && v.saysNow(page, "2006-01-02", day)
		}, "/"+path+" to tell of the virtual clock")
	}
	for _, path := range []string{"overview", "system"} {
		var state struct {
			At    time.Time
			Ahead int64
		}
		if err := json.Unmarshal([]byte(v.page("api/v1/"+path)), &state); err != nil {
			t.Fatal(err)
		}
		ahead, due := time.Duration(state.Ahead)*time.Millisecond, state.At
		if path == "system" { // it shows what goes by Redis's own clock
			due = due.Add(ahead)
		}
		if left := 72*time.Hour - ahead; left < 0 || left > took || !v.is(v.now().Sub(due), 0) {
			t.Errorf("%s says %v, %v ahead", path, state.At, ahead)
		}
	}
}

// Nobody else may serve a virtual installation.
func TestVirtualIsRefused(t *testing.T) {
	startVirtual(t, "")
	for _, args := range [][]string{{"serve"}, {"console"}, {"deliver", "--config", endpointsFile(t)}} {
		t.Setenv("TIMERD_CONSOLE_ADDR", "127.0.0.1:0")
		t.Setenv("TIMERD_HTTP_ADDR", "off")
		if code, _, errs := timerd(t, "", args...); code != exitFailed || !strings.Contains(errs, "dev --virtual") {
			t.Errorf("%q: %d, %s", args, code, errs)
		}
	}
}

// A timerd that starts while the virtual installation's Redis is slow is refused as well.
func TestSlowVirtualIsRefused(t *testing.T) {
	startVirtual(t, "")
	url := os.Getenv("TIMERD_REDIS_URL")
	address := strings.TrimSuffix(strings.TrimPrefix(url, "redis://"), "/0")
	proxy := testenv.NewProxy(t, address)
	t.Setenv("TIMERD_REDIS_URL", strings.Replace(url, address, proxy.Addr(), 1))
	t.Setenv("TIMERD_HTTP_ADDR", "off")
	proxy.Delay(700 * time.Millisecond) // an answer takes twice as long: more than the first question waits
	if code, _, errs := timerd(t, "", "serve"); code != exitFailed || !strings.Contains(errs, "dev --virtual") {
		t.Errorf("%d, %s", code, errs)
	}
}

// A console that began while the virtual installation's Redis was silent ends once that answers.
func TestConsoleEndsOnceTheClockIsVirtual(t *testing.T) {
	startVirtual(t, "")
	url := os.Getenv("TIMERD_REDIS_URL")
	address := strings.TrimSuffix(strings.TrimPrefix(url, "redis://"), "/0")
	proxy := testenv.NewProxy(t, address)
	proxy.Blackhole()
	t.Setenv("TIMERD_REDIS_URL", strings.Replace(url, address, proxy.Addr(), 1))
	t.Setenv("TIMERD_CONSOLE_ADDR", "127.0.0.1:0")
	errs, ended := &testenv.Output{}, make(chan int, 1)
	go func() { ended <- run(t.Context(), []string{"console"}, strings.NewReader(""), io.Discard, errs) }()
	errs.Wait(t, patience, "the console is running")
	proxy.Heal()
	if code := <-ended; code != exitFailed || !strings.Contains(errs.String(), "dev --virtual") {
		t.Errorf("%d, %s", code, errs)
	}
}

// endpointsFile writes a file of endpoints.
func endpointsFile(t *testing.T) string {
	t.Helper()
	name := t.TempDir() + "/endpoints.yaml"
	t.Setenv("WEBHOOK_SECRET", "whsec_"+strings.Repeat("A", 43)+"=")
	const text = "endpoints:\n- match: shop\n  url: https://example.com/\n  secrets: [env:WEBHOOK_SECRET]\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A real clock cannot be advanced.
func TestAdvanceOnRealClock(t *testing.T) {
	server := startRedis(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": server.URL(0),
		"TIMERD_NATS_URL": testenv.NATS(t).URL()})
	if code, _, errs := timerd(t, "", "advance", "1h"); code != exitFailed || !strings.Contains(errs, "is Redis's") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}
