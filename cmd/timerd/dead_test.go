package main

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// For a key without a timer, get prints its past from the streams.
func TestGetReadsTheStreams(t *testing.T) {
	startRedis(t)
	nats := testenv.NATS(t)
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	js := nats.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	for kind, id := range map[string]string{keys.Fired: "fired", keys.Dead: "dead"} {
		e := event.Event{Type: event.TypeFired, Key: keys.Key{App: "shop", Module: "m", Type: "t", ID: id},
			Due: time.Now(), Attempt: 2, MaxAttempts: 13}
		if kind == keys.Dead {
			e.Type, e.DeadReason = event.TypeDead, "attempts used up"
		}
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), 2)
		if _, err := js.Publish(t.Context(), e.Key.Subject("timers", kind), e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[string]string{
		"fired": `^timerd: shop:m:t:fired is not pending, held, owed or firing\nit last fired at 20[-0-9T:.]*Z, attempt 2: timerd watch shop:m:t --since 1h\n$`,
		"dead":  `\nit became a dead letter at 20[-0-9T:.]*Z: timerd dead ls shop:m:t\n$`,
		"never": `\nno event of it is in stream TIMERS: a program cancelled it, or it was never set\n$`,
	} {
		code, out, errs := timerd(t, "", "get", "shop:m:t:"+id)
		if code != exitFailed || out != "" || !regexp.MustCompile(want).MatchString(errs) {
			t.Errorf("%s: %d\n%s%s", id, code, out, errs)
		}
	}
}

// Dead letters are listed, shown, replayed and purged, by number, id, namespace and age; bad selections change nothing.
func TestDead(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := startRedis(t), testenv.NATS(t)
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	if code, _, errs := timerd(t, "", "dead", "ls"); code != 1 || !strings.Contains(errs, "no stream TIMERS_DEAD") {
		t.Errorf("without a stream: %d %s", code, errs)
	}
	for _, args := range []string{
		"dead", "dead nosuch", "dead purge * --seq 1", "dead purge --id x --seq 1", "dead replay a --id x",
		"dead replay a:b:c:d",
		"dead ls --limit -1", "dead purge --older-than -1h",
	} {
		if code, _, errs := timerd(t, "", strings.Fields(args)...); code != 2 {
			t.Errorf("timerd %s: exit code %d %s", args, code, errs)
		}
	}
	js := nats.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "dead", "ls"); out != "0 dead letters\n" {
		t.Errorf("ls of nothing: %s", out)
	}
	if out := ok(t, "dead", "purge"); out != "0 purged\n" {
		t.Errorf("purge of nothing: %s", out)
	}
	if out := ok(t, "dead", "replay"); out != "0 replayed, 0 skipped\n" {
		t.Errorf("replay of nothing: %s", out)
	}
	letter := func(app string, id int, change func(*event.Event)) {
		t.Helper()
		e := event.Event{
			Type: event.TypeDead, Key: keys.Key{App: app, Module: "m", Type: "t", ID: fmt.Sprint(id)}, Due: time.Now(),
			Attempt: 13, MaxAttempts: 16,
			Data: []byte(`{"attempt":5}`), DeadReason: "attempts used up", LastError: "no\nanswer",
		}
		if change != nil {
			change(&e)
		}
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), 13)
		if _, err := js.Publish(t.Context(), e.Key.Subject("timers", keys.Dead), e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	letter("app", 1, nil)
	letter("shop", 2, nil)
	letter("shop", 3, func(e *event.Event) { e.Data, e.Status = nil, event.StatusTooLarge })
	letter("shop", 4, nil)
	letter("shop", 5, func(e *event.Event) { e.DeadReason = "malformed: no event" })
	if _, err := js.Publish(t.Context(), "timers.dead.shop.m.t", []byte("junk")); err != nil {
		t.Fatal(err)
	}
	letter("shop", 7, func(e *event.Event) { e.Data, e.Status = nil, event.StatusMissing })

	table := strings.Split(strings.TrimSpace(ok(t, "dead", "ls")), "\n")
	if len(table) != 9 || !strings.HasPrefix(table[0], "SEQ ") || table[8] != "7 dead letters" {
		t.Fatalf("dead ls:\n%s", strings.Join(table, "\n"))
	}
	for i, want := range map[int]string{1: `app:m:t:1 13/16 attempts used up no answer app:m:t:1@`,
		6: "timers.dead.shop.m.t not an event"} {
		if got := strings.Join(strings.Fields(table[i]), " "); !strings.HasPrefix(got, fmt.Sprint(i)) ||
			!strings.Contains(got, want) {
			t.Errorf("line %d of dead ls lacks %q: %s", i, want, got)
		}
	}
	id := table[1][strings.LastIndex(table[1], " ")+1:]
	for _, want := range []string{
		"\nsubject     timers.dead.app.m.t\n", "\nid          " + id + "\n", "\nkey         app:m:t:1\n",
		"\nattempt     13/16\n",
		"\nreason      attempts used up\n", "\nlast error  no answer\n", "\npayload     {\"attempt\":5}\n",
	} {
		if out := ok(t, "dead", "show", "1"); !strings.HasPrefix(out, "seq         1\nstored      20") ||
			!strings.Contains(out, want) {
			t.Errorf("dead show lacks %q:\n%s", want, out)
		}
	}
	if out := ok(t, "dead", "show", "3"); !strings.HasSuffix(out, "\npayload     (toolarge)\n") {
		t.Errorf("dead show of a large payload:\n%s", out)
	}
	if out := ok(t, "dead", "show", "6"); !strings.Contains(out, "\nfault       not an event: ") ||
		!strings.HasSuffix(out, "\ncontent     junk\n") {
		t.Errorf("dead show of a message that is no event:\n%s", out)
	}
	if out := ok(t, "dead", "show", "1", "--json"); strings.Count(out, "\n") != 1 ||
		!strings.Contains(out, `"deadreason":"attempts used up"`) {
		t.Errorf("dead show --json: %s", out)
	}
	if out := ok(t, "dead", "show", "6", "--json"); !strings.Contains(out, `"seq":6,`) ||
		!strings.Contains(out, `"data_base64":"anVuaw=="`) {
		t.Errorf("dead show --json of a message that is no event: %s", out)
	}
	if code, out, errs := timerd(t, "", "dead", "show", "99"); code != 1 || out != "" ||
		!strings.Contains(errs, "no dead letter 99;") {
		t.Errorf("dead show of no letter: %d %s%s", code, out, errs)
	}
	if out := ok(t, "dead", "ls", "app", "--json"); strings.Count(out, "\n") != 1 ||
		!strings.Contains(out, `"deadreason":"attempts used up"`) {
		t.Errorf("dead ls --json: %s", out)
	}
	for line := range strings.Lines(ok(t, "dead", "ls", "--json")) {
		if !json.Valid([]byte(line)) {
			t.Errorf("dead ls --json: %s", line)
		}
	}
	if code, out, errs := timerd(t, "", "dead", "ls", "--limit", "2"); code != 0 || strings.Count(out, "\n") != 3 ||
		!strings.Contains(errs, "more than these 2") {
		t.Errorf("dead ls --limit: %d %s%s", code, out, errs)
	}

	// Nothing happens without a yes.
	for _, command := range [][]string{{"dead", "replay"}, {"dead", "purge"}, {"dead", "purge", "--id", id}} {
		for input, want := range map[string]string{"": "give --yes", "n\n": "nothing was done",
			"\n": "nothing was done"} {
			if code, _, errs := timerd(t, input, command...); code != 1 || !strings.Contains(errs, want) ||
				!strings.Contains(errs, " dead letter") {
				t.Errorf("timerd %s with the answer %q: %d %s", command, input, code, errs)
			}
		}
	}
	if out := ok(t, "dead", "ls", "--limit", "0"); !strings.HasSuffix(out, "\n7 dead letters\n") {
		t.Fatalf("dead ls: %s", out)
	}

	// 4 is set again already, and fires beside. 5 and 6 cannot be replayed.
	ok(t, "set", "shop:m:t:4", "1h", "newer")
	code, out, errs := timerd(t, "y\n", "dead", "replay", "shop")
	if code != 1 || !strings.Contains(errs, "4 dead letters to replay") ||
		!strings.HasSuffix(out, "\n4 replayed, 2 skipped\n") {
		t.Errorf("dead replay: %d\n%s%s", code, out, errs)
	}
	for _, want := range []string{"2 replayed: shop:m:t:2\n", "3 replayed: shop:m:t:3\n", "4 replayed: shop:m:t:4\n",
		"7 replayed: shop:m:t:7\n", "5 skipped: a malformed message", "6 skipped: not an event"} {
		if !strings.Contains(out, want) {
			t.Errorf("dead replay lacks %q:\n%s", want, out)
		}
	}
	rdb := redis.Client()
	records := rdb.HVals(t.Context(), keys.Single.FiringData()).Val()
	slices.Sort(records)
	for i := range records {
		// where they come from, and when they were replayed
		records[i] = regexp.MustCompile(`;O=\d+\.13;P=\d+:`).ReplaceAllString(records[i], ";O;P:")
	}
	if want := []string{"1;L=0;O;P:{\"attempt\":5}", "1;L=0;O;P:{\"attempt\":5}", "1l;L=0;O;P:",
		"1m;L=0;O;P:"}; !slices.Equal(records, want) {
		// however late they are
		t.Errorf("the replayed timers are %q, want %q", records, want)
	}
	if out := ok(t, "get", "shop:m:t:4", "--raw"); out != "newer" {
		t.Errorf("a newer timer was overwritten: %s", out)
	}
	if code, out, _ := timerd(t, "", "dead", "replay", "--seq", "5", "--yes"); code != 1 ||
		!strings.HasSuffix(out, "\n0 replayed, 1 skipped\n") {
		t.Errorf("dead replay of letters without a timer: %d %s", code, out)
	}
	if out := ok(t, "dead", "replay", "--id", id, "--yes"); out != "1 replayed: app:m:t:1\n1 replayed, 0 skipped\n" {
		t.Errorf("dead replay --id: %s", out)
	}
	if code, _, errs := timerd(t, "", "dead", "replay", "--id", id, "--yes"); code != 1 ||
		!strings.Contains(errs, "no dead letter has the id") {
		t.Errorf("dead replay of a letter that is gone: %d %s", code, errs)
	}

	// The one letter that is left of app must not go with those of others.
	letter("app", 8, nil)
	if out := ok(t, "dead", "purge", "--older-than", "1h"); out != "0 purged\n" {
		t.Errorf("dead purge --older-than: %s", out)
	}
	if out := ok(t, "dead", "purge", "--seq", "5", "--yes"); out != "1 purged\n" {
		t.Errorf("dead purge --seq: %s", out)
	}
	if code, _, errs := timerd(t, "", "dead", "purge", "--seq", "5"); code != 1 ||
		!strings.Contains(errs, "no dead letter 5;") {
		t.Errorf("dead purge of a letter that is gone: %d %s", code, errs)
	}
	if code, out, _ := timerd(t, "yes\n", "dead", "purge", "shop", "--older-than", "1ns"); code != 0 ||
		out != "1 purged\n" {
		t.Errorf("dead purge shop: %s", out)
	}
	if out := ok(t, "dead", "purge", "nobody"); out != "0 purged\n" {
		t.Errorf("dead purge nobody: %s", out)
	}
	dead, err := js.Stream(t.Context(), "TIMERS_DEAD")
	if err != nil {
		t.Fatal(err)
	}
	if n := dead.CachedInfo().State.Msgs; n != 1 {
		t.Errorf("%d letters are left, want 1", n)
	}
	if out := ok(t, "dead", "purge", "--yes"); out != "1 purged\n" {
		t.Errorf("dead purge: %s", out)
	}
}

// publishDead publishes a dead letter of app:m:t:1 on a subject, some times, to a NATS server that the commands then
// use.
func publishDead(t *testing.T, subject string, times int) {
	t.Helper()
	nats := testenv.NATS(t)
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	js := nats.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	k := keys.Key{App: "app", Module: "m", Type: "t", ID: "1"}
	e := event.Event{Type: event.TypeDead, Key: k, Due: time.Now(), Attempt: 3, Data: []byte("x"),
		DeadReason: event.ReasonExhausted}
	e.ID = keys.EventID(k.String(), e.Due.UnixMilli(), 3)
	for range times {
		if _, err := js.Publish(t.Context(), subject, e.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
}

// A replay that ended between setting a timer and deleting its letter, and a letter
// that was stored twice, set the timer once.
func TestDeadReplayOfTheSameLetter(t *testing.T) {
	redis := startRedis(t)
	publishDead(t, "timers.dead.app.m.t", 2)
	if out := ok(t, "dead", "replay",
		"--yes"); out != "1 replayed: app:m:t:1\n2 was replayed or sent again before: app:m:t:1\n2 replayed, 0 "+
		"skipped\n" {
		t.Errorf("dead replay: %s", out)
	}
	if n := redis.Client().ZCard(t.Context(), keys.Single.Firing()).Val(); n != 1 {
		t.Errorf("%d firings, want 1", n)
	}
}

// A letter on the subject of one app that names a timer of another sets none.
func TestDeadReplayOfAnotherAppsTimer(t *testing.T) {
	redis := startRedis(t)
	publishDead(t, "timers.dead.evil.m.t", 1)
	code, out, _ := timerd(t, "", "dead", "replay", "evil", "--yes")
	if code != 1 || !strings.Contains(out, `1 skipped: not an event: its timer "app:m:t:1" does not match`) {
		t.Errorf("dead replay: %d %s", code, out)
	}
	if n := redis.Client().Exists(t.Context(), keys.Single.Firing(), keys.Single.Due()).Val(); n != 0 {
		t.Error("the timer was set")
	}
}

// A message with headers like NATS's own reports on a consumer ends no list, and one with headers that name another
// subject counts for its own.
func TestDeadAmongMessagesLikeThoseOfNATS(t *testing.T) {
	publishDead(t, "timers.dead.app.m.t", 1)
	nc, err := nats.Connect(os.Getenv("TIMERD_NATS_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, header := range []nats.Header{
		{"Status": {"409"}, "Description": {"Consumer Deleted"}},
		{"Status": {"404"}, "Description": {"No Messages"}},
		{"Nats-Sequence": {"1"}, "Nats-Subject": {"timers.dead.app.m.t"}},
	} {
		if _, err := nc.RequestMsg(&nats.Msg{Subject: "timers.dead.evil.m.t", Header: header},
			5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if out := ok(t, "dead", "ls"); !strings.HasSuffix(out, "4 dead letters\n") {
		t.Errorf("dead ls: %s", out)
	}
	if out := ok(t, "dead", "show", "4"); !strings.Contains(out, "timers.dead.evil.m.t") {
		t.Errorf("dead show: %s", out)
	}
}
