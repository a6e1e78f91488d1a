package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// timerd runs the program to its end.
func timerd(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// ok runs the program, which must succeed and say nothing on stderr but how far it is.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := timerd(t, "", args...)
	if code != 0 || testenv.WithoutProgress(errs) != "" {
		t.Fatalf("timerd %q: exit code %d\n%s%s", args, code, out, errs)
	}
	return out
}

// Bad usage exits with 2, changes nothing, and names the fault, with a guess at the meaning.
func TestUsage(t *testing.T) {
	testenv.SetVariables(t, nil)
	for _, test := range []struct {
		args, want string
	}{
		{"nosuch", `unknown command "nosuch"`},
		{"canel x", "did you mean cancel?"},
		{"run", "did you mean serve?"},
		{"start", "did you mean serve?"},
		{"delete a:b:c:d", "did you mean cancel?"},
		{"list", "did you mean ls?"},
		{"--nosuch", "unknown flag: --nosuch"},
		{"cancel --all shop --due 1h", "unknown flag: --due; did you mean --due-before?"},
		{"ls --repeat", "unknown flag: --repeat; did you mean --repeating?"},
		{"set a:b:c:d 1s --drop", "unknown flag: --drop; did you mean --drop-late?"},
		{"version now", "timerd: want no arguments, got \"now\"\nTry: timerd version --help"},
		{"ls --limit many", "--limit=many: want a whole number"},
		{"set a:b:c:d", "want KEY DELAY [PAYLOAD], got 1"},
		{"set a:b:c:d 30s some words", "put quotes around a PAYLOAD"},
		{"set a:b:c 30s", "want app:module:type:id"},
		{"get a:b:c", "want app:module:type:id"},
		{"cancel a:b:c", "want app:module:type:id"},
		{"set a:b:c:" + strings.Repeat("d", 1030) + " 30s", "ddd… (1036 bytes)\": timer key too long: 1036 bytes"},
		{"set a:b:c:d 0s", "want at least 1ms from now"},
		{"set a:b:c:d -5s", "DELAY cannot be negative"},
		{"set a:b:c:d 5s --nosuch", "unknown flag: --nosuch"},
		{"statsu --json", `unknown command "statsu"; did you mean status?`},
		{"dead lss", `unknown command "lss"; did you mean ls?`},
		{"dead lss --limit 1", `unknown command "lss"`},
		{"--jsno", "unknown flag: --jsno"},
		{"ls shop order", "want [NAMESPACE], got 2 arguments"},
		{"hold 'shop'", `"'" is not allowed: leave it out (commas divide a list); if keys have it, write %27shop%27`},
		{"ls shop;pay", "write shop%3Bpay"},
		{"watch shop,pay", "write shop%2Cpay"},
		{"set a:b:c:d -- -5s", "want at least 1ms from now"},
		{"set a:b:c:d soon", `DELAY "soon": want a duration such as`},
		{"set a:b:c:d 30", `DELAY "30": want`},
		{"set a:b:c:d @soon", "want milliseconds since 1970"},
		{"set a:b:c:d 30s --nx --xx", "exclude each other"},
		{"set a:b:c:d 30s --attempt 0", "--attempt=0: want a number"},
		{"get a:b:c:d --raw --json", "exclude each other"},
		{"get", "timerd: want KEY, got nothing"},
		{"fire a:b:c", "want app:module:type:id"},
		{"move a:b:c:d soon", `DELAY "soon": want a duration such as`},
		{"cancel", "want {KEY | --all NAMESPACE}, got nothing"},
		{"cancel --all a b", "want {KEY | --all NAMESPACE}, got 2 arguments"},
		{"cancel --all a:b:c:d", "at most three parts"},
		{"cancel --all shop --due-before soon",
			`--due-before "soon": want a duration such as 90s, 1h30m or 30d, an instant such as 2026-11-20T09:00:00Z, or @unix-ms`},
		{"cancel a:b:c:d --yes", "--yes needs --all"},
		{"cancel a:b:c:d --due-before 1h", "--due-before needs --all"},
		{"forecast a:b:c:d", "at most three parts"},
		{"forecast --minutes 0", "--minutes=0: want 1 to 1440"},
		{"forecast --limit -1", "--limit=-1"},
		{"ls a:b:c:d", "at most three parts; for one timer: timerd get a:b:c:d"},
		{"ls a:b:c:", "at most three parts\n"},
		{"ls --limit -1", "--limit=-1"},
		{"ls --state owed,done", "--state=done: want one or more of pending, held, owed, firing"},
		{"watch --count -1", "cannot be negative"},
		{"watch --since soon", "want a duration such as 90s, 1h30m or 30d"},
		{"watch --since -1d", "cannot be negative"},
		{"set --from file a:b:c:d 1h", "only from the file"},
		{"set --from file --nx", "only from the file"},
		{"dead show", "want SEQ, got nothing"},
		{"dead show 0", `SEQ "0": want the number of a dead letter`},
		{"dead show a:b:c:d@1.1", "want the number of a dead letter"},
		{"repeat", "want KEY {--every INTERVAL | --cron EXPR} [PAYLOAD], got nothing"},
		{"repeat nxt --every 5m", "KEY"},
		{"repeat a:b:c:d", "want either --every INTERVAL or --cron EXPR"},
		{"repeat a:b:c:d --every 5m --cron @daily", "want either --every INTERVAL or --cron EXPR"},
		{"repeat a:b:c:d --every 50ms", "interval 50ms: want from 100ms"},
		{"repeat a:b:c:d --every 5m --tz UTC", "--tz goes with --cron only"},
		{"repeat a:b:c:d --cron @dayly", `"@dayly": want @hourly`},
		{"repeat a:b:c:d --cron @daily --tz Europe/Berln", `zone "Europe/Berln"`},
		{"repeat a:b:c:d --every 5m --times -1", "--times=-1"},
		{"repeat a:b:c:d --every 5m --from soon", "--from"},
		{"repeat a:b:c:d --every 5m --nx --xx", "exclude each other"},
		{"repeat a:b:c:d --every 5m --drop-late", "--drop-late goes with --late"},
		{"health nowhere", "want host:port"},
		{"completion", "want bash|zsh|fish|powershell, got nothing"},
		{"completion csh", `unknown shell "csh": want bash, zsh, fish, powershell`},
	} {
		code, out, errs := timerd(t, "", strings.Fields(test.args)...)
		if code != 2 || out != "" || !strings.Contains(errs, test.want) {
			t.Errorf("timerd %s: exit code %d, want 2 and %q\n%s%s", test.args, code, test.want, out, errs)
		}
	}
	t.Setenv("TIMERD_REDIS_URL", "nosuch")
	if code, _, errs := timerd(t, "", "get", "a:b:c:d"); code != 2 || !strings.Contains(errs, "TIMERD_REDIS_URL") {
		t.Errorf("a bad configuration: exit code %d\n%s", code, errs)
	}
}

func TestVersion(t *testing.T) {
	out := ok(t, "version")
	if !strings.HasPrefix(out, "timerd ") || !strings.Contains(out, "go1.") {
		t.Errorf("version: %s", out)
	}
	if flag := ok(t, "--version"); flag != out {
		t.Errorf("--version: %s, want %s", flag, out)
	}
}

// attend has a Redis look as if a timerd were alive that serves it.
func attend(t *testing.T, server *testenv.RedisServer) {
	t.Helper()
	nodes, err := schedule.New(server.Client(), 1000).Nodes(t.Context())
	if err == nil {
		_, err = nodes[0].Heartbeat(t.Context(), schedule.Self{Instance: "test", Version: "v0", Since: time.Now()},
			time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// startRedis starts a Redis with the function library, and with a living timerd's data, and points the program to it.
func startRedis(t *testing.T) *testenv.RedisServer {
	t.Helper()
	server := testenv.Redis(t)
	if _, err := schedule.New(server.Client(), 1000).Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	attend(t, server)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": server.URL(0)})
	return server
}

// set, get, ls and cancel agree on a timer, as text and as JSON, for any bytes in key and payload.
func TestSetGetCancelLs(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	redisNow := func() time.Time {
		now, err := server.Client().Time(t.Context()).Result()
		if err != nil {
			t.Fatal(err)
		}
		return now
	}

	before := redisNow()
	out := ok(t, "set", "app:mod:typ:1", "1h", `{"attempt":3, "x":"<ü>"}`)
	if !strings.HasPrefix(out, "app:mod:typ:1 is due at 20") || !strings.HasSuffix(out, " (1h)\n") {
		t.Errorf("set: %s", out)
	}
	var got timerView
	if err := json.Unmarshal([]byte(ok(t, "get", "app:mod:typ:1", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if due := time.UnixMilli(got.Due); due.Before(before.Add(time.Hour).Truncate(time.Millisecond)) ||
		due.After(redisNow().Add(time.Hour)) {
		t.Errorf("due at %v, set at %v for an hour later", due, before)
	}
	if got.Attempt != 3 || string(got.Data) != `{"attempt":3,"x":"<ü>"}` || got.DataContentType != "application/json" {
		t.Errorf("get: %+v", got)
	}
	if out := ok(t, "get", "app:mod:typ:1", "--raw"); out != `{"attempt":3, "x":"<ü>"}` {
		t.Errorf("get --raw: %q", out)
	}
	if out := ok(t, "get", "app:mod:typ:1"); !strings.Contains(out, "attempt  3\n") ||
		!strings.Contains(out, `payload  {"attempt":3, "x":"<ü>"}`) {
		t.Errorf("get: %s", out)
	}

	if strings.Contains(ok(t, "get", "app:mod:typ:1"), "late ") || got.Late != 0 {
		t.Error("get shows a limit of a timer that has none")
	}
	ok(t, "set", "app:mod:typ:1", "1h", "--late", "1h30m", "--drop-late")
	if out := ok(t, "get", "app:mod:typ:1"); !strings.Contains(out, "attempt  1\nlate     1h 30m at most\npayload  ") {
		t.Errorf("get of a timer with a limit: %s", out)
	}
	if out := ok(t, "get", "app:mod:typ:1", "--json"); !strings.Contains(out, `"late":5400000,`) {
		t.Errorf("get --json of a timer with a limit: %s", out)
	}
	ok(t, "set", "app:mod:typ:1", "1h", "--unless", "paid:1\n", "--if", "live")
	guards := "unless   paid:1%0A exists\nif       live exists\n"
	if out := ok(t, "get", "app:mod:typ:1"); !strings.Contains(out, guards) {
		t.Errorf("get of one with guards: %s", out)
	}
	for _, command := range []string{"get app:mod:typ:1 --json", "ls --json"} {
		if out := ok(t, strings.Fields(command)...); !strings.Contains(out, `"unless":"paid:1%0A","if":"live"`) {
			t.Errorf("%s: %s", command, out)
		}
	}
	for _, args := range [][]string{{"--drop-late"}, {"--late", "soon"}, {"--late", "-1s"}, {"--late", "3651d"}} {
		if code, _, errs := timerd(t, "", append([]string{"set", "app:mod:typ:1", "1h"},
			args...)...); code != exitUsage || !strings.Contains(errs, "late") {
			t.Errorf("set %v: %d %s", args, code, errs)
		}
	}

	at := time.Now().Add(2 * time.Hour).UTC().Truncate(time.Second)
	if out := ok(t, "set", "app:mod:typ:1", at.Format(time.RFC3339), "--xx", "--attempt", "7"); !strings.Contains(out,
		at.Format("2006-01-02T15:04:05.000Z")) {
		t.Errorf("set at an instant: %s", out)
	}
	if code, _, errs := timerd(t, "", "set", "app:mod:typ:1", "1h", "--nx"); code != 1 ||
		!strings.Contains(errs, "--nx was given") {
		t.Errorf("set --nx of a pending timer: %d %s", code, errs)
	}
	if code, _, errs := timerd(t, "", "set", "app:mod:typ:2", "1h", "--xx"); code != 1 ||
		!strings.Contains(errs, "--xx was given") {
		t.Errorf("set --xx of no timer: %d %s", code, errs)
	}
	const binary = "a\x00\xff\n"
	if code, _, errs := timerd(t, binary, "set", "app:mod:other:2", fmt.Sprintf("@%d", at.Add(time.Hour).UnixMilli()),
		"-", "--nx"); code != 0 {
		t.Errorf("set from standard input: %s", errs)
	}
	if out := ok(t, "get", "app:mod:other:2", "--raw"); out != binary {
		t.Errorf("get --raw: %q", out)
	}
	ok(t, "set", "shop:a b:typ:\x1b[31m", "3m", strings.Repeat("é", 100))

	table := strings.Split(strings.TrimSpace(ok(t, "ls")), "\n")
	if len(table) != 4 || !strings.HasPrefix(table[0], "DUE ") {
		t.Fatalf("ls:\n%s", strings.Join(table, "\n"))
	}
	for i, want := range []string{"shop:a b:typ:%1B[31m " + strings.Repeat("é", 100), `7 retry app:mod:typ:1 ""`,
		`app:mod:other:2 "a\x00\xff\n"`} {
		if !strings.Contains(strings.Join(strings.Fields(table[i+1]), " "), want) {
			t.Errorf("line %d of ls lacks %q:\n%s", i+1, want, table[i+1])
		}
	}
	if out := ok(t, "ls", "app:*:typ", "--json"); strings.Count(out, "\n") != 1 ||
		!strings.Contains(out, `"key":"app:mod:typ:1"`) || !strings.Contains(out, `"data":""`) {
		t.Errorf("ls app:*:typ --json: %s", out)
	}
	if code, out, errs := timerd(t, "", "ls", "--limit", "1"); code != 0 || strings.Count(out, "\n") != 2 ||
		!strings.Contains(errs, "more than these 1") {
		t.Errorf("ls --limit 1: %d %s%s", code, out, errs)
	}
	if code, out, errs := timerd(t, "", "ls", "nosuch"); code != 0 || out != "0 timers\n" || errs != "" {
		t.Errorf("ls of nothing: %d %s%s", code, out, errs)
	}

	if out := ok(t, "cancel", "app:mod:typ:1"); out != "cancelled\n" {
		t.Errorf("cancel: %s", out)
	}
	if code, out, errs := timerd(t, "", "cancel", "app:mod:typ:1"); code != 1 || out != "unknown\n" || errs != "" {
		t.Errorf("cancel again: %d %s%s", code, out, errs)
	}
	if code, out, errs := timerd(t, "", "get", "app:mod:typ:1"); code != 1 || out != "" ||
		!strings.Contains(errs, "app:mod:typ:1 is not pending, held, owed or firing") {
		t.Errorf("get of a cancelled timer: %d %s%s", code, out, errs)
	}
	if code, out, _ := timerd(t, "", "ls", "nosuch", "--json"); code != 0 || out != "" {
		t.Errorf("ls --json of nothing: %d %s", code, out)
	}
	if out := ok(t, "repeat", "app:mod:typ:again", "--every", "1h"); !strings.HasPrefix(out,
		"app:mod:typ:again is set: every 1h0m0s\nDUE ") {
		t.Errorf("repeat: %s", out)
	}
	ok(t, "cancel", "app:mod:typ:again")
	early := redisNow().Truncate(time.Millisecond)
	ok(t, "set", "app:mod:typ:past", "2020-01-01T00:00:00Z")
	if err := json.Unmarshal([]byte(ok(t, "get", "app:mod:typ:past", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if due := time.UnixMilli(got.Due); got.State != "owed" || due.Before(early) ||
		due.After(redisNow().Add(time.Millisecond)) {
		t.Errorf("set for an instant that has passed: %+v, want it due now", got)
	}
	ok(t, "cancel", "app:mod:typ:past")
	if err := server.Client().Set(t.Context(), "app:mod:typ:kept", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := timerd(t, "", "get", "app:mod:typ:kept"); code != 1 ||
		!strings.Contains(errs, "app:mod:typ:kept has no TTL, so nothing fires: EXPIRE gives it one") {
		t.Errorf("get of a key without a TTL: %d %s", code, errs)
	}
	if out := ok(t, "set", "app:mod:typ:1", "40d 51m"); !strings.Contains(out, "(40d 51m)") {
		t.Errorf("set with days: %s", out)
	}
	if out := ok(t, "ls", "app:mod:typ"); !strings.Contains(out, "  40d 51m  ") {
		t.Errorf("ls with days: %s", out)
	}
	if code, _, errs := timerd(t, "", "set", "app:mod:typ:1", "@99999999999999999"); code != 2 ||
		!strings.Contains(errs, "Try: timerd set --help") {
		t.Errorf("set for a time too far away: %d %s", code, errs)
	}
	if code, _, errs := timerd(t, "", "set", "app:mod", "1h"); code != 2 ||
		!strings.Contains(errs, "want app:module:type:id") {
		t.Errorf("set of another key: %d %s", code, errs)
	}
}

// A key as printed by timerd means that key for every command, with any content.
func TestPrintedKeysCanBePasted(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := startRedis(t).Client()
	set := func(key, payload string) {
		t.Helper()
		if err := rdb.FCall(t.Context(), "timer_set", []string{key}, payload, "PX", 3_600_000).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a:b:c:user%40example.com", "a:b:c:100%", "a:b:c:%zz%25", "a:b:c:line\n\x00",
		"a:b:c:\xff%41", "50%25:b:c:d"} {
		set(key, "p")
		var listed struct{ Key string }
		if err := json.Unmarshal([]byte(ok(t, "ls", "--json")), &listed); err != nil {
			t.Fatal(err)
		}
		if listed.Key != keys.EncodeText(key) {
			t.Fatalf("ls prints %q for %q", listed.Key, key)
		}
		for _, arg := range []string{listed.Key, key} {
			if strings.Contains(arg, "\x00") {
				continue // no shell can pass it
			}
			if got := ok(t, "get", arg, "--raw"); got != "p" {
				t.Errorf("get %q: payload %q", arg, got)
			}
			ok(t, "set", arg, "2h", "p")
			ok(t, "move", arg, "1h")
			ok(t, "repeat", arg, "--every", "1h", "p")
		}
		if got := ok(t, "cancel", listed.Key); got != "cancelled\n" || ok(t, "ls", "--json") != "" {
			t.Errorf("cancel %q: %s", listed.Key, got)
		}
	}
	for _, key := range []string{"a:b:c:50%25", "a:b:c:50%"} {
		set(key, key)
	}
	if code, _, said := timerd(t, "", "cancel", "a:b:c:50%25"); code != 1 ||
		!strings.Contains(said, `write "a:b:c:50%2525"`) {
		t.Errorf("a KEY that may mean two timers: exit code %d, %s", code, said)
	}
	ok(t, "cancel", "a:b:c:50%2525")
	if got := ok(t, "get", "a:b:c:50%25", "--raw"); got != "a:b:c:50%" {
		t.Errorf("the other one: %q", got)
	}
}

func TestClientCommandsNameMissingParts(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.Redis(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": server.URL(0), "TIMERD_REDISURL": "x"})
	for _, args := range [][]string{{"set", "a:b:c:d", "1h"}, {"get", "a:b:c:d"}, {"cancel", "a:b:c:d"}} {
		code, _, errs := timerd(t, "", args...)
		if code != 1 || !strings.Contains(errs, "start timerd on it once") {
			t.Errorf("%v without the library: %d %s", args, code, errs)
		}
		if !strings.Contains(errs,
			"warning: TIMERD_REDISURL is unknown and has no effect; did you mean TIMERD_REDIS_URL?") {
			t.Errorf("no warning: %s", errs)
		}
	}
	server.Stop()
	if code, _, errs := timerd(t, "", "get", "a:b:c:d"); code != 1 ||
		!strings.Contains(errs, server.Addr()+"/0 does not answer") {
		t.Errorf("without Redis: %d %s", code, errs)
	}
}

func TestWatch(t *testing.T) {
	testenv.NoLeaks(t)
	server := testenv.NATS(t)
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": server.URL()})
	if code, _, errs := timerd(t, "", "watch"); code != 1 ||
		!strings.Contains(errs, "there is no stream TIMERS: timerd makes it at its start") {
		t.Errorf("watch without a stream: %d %s", code, errs)
	}
	js := server.JetStream()
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS",
		Subjects: []string{"timers.fired.>"}}); err != nil {
		t.Fatal(err)
	}
	publish := func(app string, n int) {
		t.Helper()
		due := time.UnixMilli(1763629200000)
		e := event.Event{
			Type: event.TypeFired, Key: keys.Key{App: app, Module: "m", Type: "t", ID: fmt.Sprint(n)}, Due: due,
			Time:    due.Add(3 * time.Millisecond),
			Attempt: 2, MaxAttempts: 16, Trigger: "deadline", Data: []byte("{\n}"),
		}
		e.ID = keys.EventID(e.Key.String(), due.UnixMilli(), 2)
		// After a restart the connection is back when it is.
		testenv.Eventually(t, patience, func() bool {
			_, err := js.Publish(t.Context(), e.Key.Subject("timers", keys.Fired), e.AppendJSON(nil),
				jetstream.WithMsgID(e.ID))
			return err == nil
		}, "the event to be stored")
	}
	publish("app", 1)
	publish("shop", 2)
	_, out, _ := timerd(t, "", "watch", "--since", "1h", "--count", "2")
	if strings.Count(out, "\n") != 2 ||
		!strings.Contains(out, `2025-11-20T09:00:00.000Z    +3ms  app:m:t:1  2/16 retry  deadline  "{\n}"`) {
		t.Errorf("watch --since: %s", out)
	}
	_, out, _ = timerd(t, "", "watch", "shop", "--since", "1h", "--count", "1", "--json")
	if strings.Count(out, "\n") != 1 || !strings.Contains(out, `"data":{}`) {
		t.Errorf("watch --json: %s", out)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var live, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"watch", "app"}, strings.NewReader(""), &live, &errs) }()
	errs.Wait(t, patience, "watching timers.fired.app.*.* in stream TIMERS")
	publish("shop", 3)
	publish("app", 4)
	server.Restart()
	publish("app", 5)
	live.Wait(t, patience, "app:m:t:5")
	if got := live.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "app:m:t:4") {
		t.Errorf("watch app: %s", got)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("an interrupted watch: %d %s", code, &errs)
	}
}
