package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/notify"
)

func TestDead(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := withRedis(t), testenv.NATS(t)
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	if code, _, errs := timerd(t, "", "dead", "ls"); code != 1 || !strings.Contains(errs, "no stream TIMERS_DEAD") {
		t.Errorf("without a stream: %d %s", code, errs)
	}
	for _, args := range []string{"dead", "dead nosuch", "dead replay", "dead purge", "dead purge * --seq 1", "dead replay a:b:c:d", "dead ls --limit -1", "dead purge --seq 1 --older-than 1h"} {
		if code, _, errs := timerd(t, "", strings.Fields(args)...); code != 2 {
			t.Errorf("timerd %s: exit code %d %s", args, code, errs)
		}
	}
	js := nats.JetStream()
	if err := notify.EnsureStreams(t.Context(), js, notify.Streams{}); err != nil {
		t.Fatal(err)
	}
	if out := ok(t, "dead", "ls"); out != "" {
		t.Errorf("ls of nothing: %s", out)
	}
	if out := ok(t, "dead", "purge", "*"); out != "0 purged\n" {
		t.Errorf("purge of nothing: %s", out)
	}
	letter := func(app string, id int, change func(*event.Event)) {
		t.Helper()
		e := event.Event{
			Type: event.TypeDead, Key: keys.Key{App: app, Module: "m", Type: "t", ID: fmt.Sprint(id)}, Due: time.Now(), Attempt: 13,
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
	if len(table) != 8 || !strings.HasPrefix(table[0], "SEQ ") {
		t.Fatalf("dead ls:\n%s", strings.Join(table, "\n"))
	}
	for i, want := range map[int]string{1: `app:m:t:1 13 attempts used up no answer`, 6: "timers.dead.shop.m.t not an event"} {
		if got := strings.Join(strings.Fields(table[i]), " "); !strings.HasPrefix(got, fmt.Sprint(i)) || !strings.Contains(got, want) {
			t.Errorf("line %d of dead ls lacks %q: %s", i, want, got)
		}
	}
	if out := ok(t, "dead", "ls", "app", "--json"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"deadreason":"attempts used up"`) {
		t.Errorf("dead ls --json: %s", out)
	}
	if code, out, errs := timerd(t, "", "dead", "ls", "--limit", "2"); code != 0 || strings.Count(out, "\n") != 3 || !strings.Contains(errs, "more than these 2") {
		t.Errorf("dead ls --limit: %d %s%s", code, out, errs)
	}

	// 4 is set again already; 3, 5 and 6 cannot be replayed.
	ok(t, "set", "shop:m:t:4", "1h", "newer")
	code, out, errs := timerd(t, "", "dead", "replay", "shop")
	if code != 1 || errs != "" || !strings.Contains(out, "2 replayed: shop:m:t:2\n") || !strings.Contains(out, "7 replayed: shop:m:t:7\n") || !strings.HasSuffix(out, "\n2 replayed, 4 left\n") {
		t.Errorf("dead replay: %d\n%s%s", code, out, errs)
	}
	for _, want := range []string{"3 left: shop:m:t:3: its payload was too large", "4 left: shop:m:t:4: the timer, or a key of its name, is set again", "5 left: it stands for a message", "6 left: not an event"} {
		if !strings.Contains(out, want) {
			t.Errorf("dead replay lacks %q:\n%s", want, out)
		}
	}
	rdb := redis.Client()
	if record, err := rdb.HGet(t.Context(), keys.Single.Data(), "shop:m:t:2").Result(); err != nil || record != `1:{"attempt":5}` {
		t.Errorf("the record of a replayed timer: %q, %v", record, err)
	}
	if out := ok(t, "get", "shop:m:t:4", "--raw"); out != "newer" {
		t.Errorf("a newer timer was overwritten: %s", out)
	}
	if out := ok(t, "dead", "replay", "--seq", "1"); out != "1 replayed: app:m:t:1\n1 replayed, 0 left\n" {
		t.Errorf("dead replay --seq: %s", out)
	}

	// The one letter that is left of app must not go with those of others.
	letter("app", 8, nil)
	if out := ok(t, "dead", "purge", "*", "--older-than", "1h"); out != "0 purged\n" {
		t.Errorf("dead purge --older-than: %s", out)
	}
	if out := ok(t, "dead", "purge", "--seq", "3"); out != "1 purged\n" {
		t.Errorf("dead purge --seq: %s", out)
	}
	if code, _, errs := timerd(t, "", "dead", "purge", "--seq", "3"); code != 1 || !strings.Contains(errs, "letter 3") {
		t.Errorf("dead purge of a letter that is gone: %d %s", code, errs)
	}
	if out := ok(t, "dead", "purge", "shop", "--older-than", "1ns"); out != "3 purged\n" {
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
	if out := ok(t, "dead", "purge", "*"); out != "1 purged\n" {
		t.Errorf("dead purge: %s", out)
	}
}
