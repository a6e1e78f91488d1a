package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// actions returns the actions in the history, oldest first, and checks their authors.
func actions(t *testing.T, s *testenv.NATSServer) (words []string) {
	t.Helper()
	page, err := history.New(s.JetStream(), keys.Names{}).Search(t.Context(), history.Query{Kind: keys.Operator}, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range slices.Backward(page.Records) {
		if !strings.Contains(r.Entry.By, "@") || r.Entry.Via != event.ViaCommand ||
			time.Since(r.Entry.Time).Abs() > time.Minute {
			t.Errorf("%+v", r.Entry)
		}
		words = append(words, history.Words(r.Entry))
	}
	return words
}

// Changes by the commands are in the history, with their authors. get shows how a timer ended.
func TestCommandsWriteTheHistory(t *testing.T) {
	testenv.NoLeaks(t)
	redis, nats := startRedis(t), testenv.NATS(t)
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	js := nats.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	setFar(t, redis.Client(), "shop", 3, time.Hour)
	for _, id := range []string{"1", "2", "3"} {
		ok(t, "set", "pay:m:t:"+id, "1h")
	}
	ok(t, "move", "pay:m:t:1", "2027-01-01T00:00:00Z")
	ok(t, "fire", "pay:m:t:2")
	ok(t, "cancel", "pay:m:t:3")
	timerd(t, "", "cancel", "pay:m:t:3")                                      // nothing to cancel
	timerd(t, "", "hold", "held", "--reason", "<b>down</b>\n", "--for", "2h") // warns that nobody serves it
	timerd(t, "", "resume", "held", "--rate", "200/s")                        // warns that no replica has it
	ok(t, "cancel", "--all", "shop", "--yes", "--due-before", "2h")
	ok(t, "cancel", "--all", "nobody", "--yes")
	letter := event.Event{Type: event.TypeDead, Key: keys.Key{App: "shop", Module: "m", Type: "t", ID: "dead"},
		Due: time.Now(), Attempt: 1, DeadReason: "held"}
	letter.ID = keys.EventID(letter.Key.String(), letter.Due.UnixMilli(), 1)
	for range 2 {
		if _, err := js.Publish(t.Context(), letter.Key.Subject("timers", keys.Dead),
			letter.AppendJSON(nil)); err != nil {
			t.Fatal(err)
		}
	}
	ok(t, "dead", "replay", "--seq", "1", "--yes")
	ok(t, "dead", "purge", "shop", "--yes")
	got := actions(t, nats)
	want := []string{"moved pay:m:t:1, to 2027-01-01T00:00:00", "had pay:m:t:2 fire at once", "cancelled pay:m:t:3",
		"put held on hold, until 20", "resumed held, rate 200/s", "cancelled 3 timers of shop, due before 20",
		"replayed 1 dead letter, letter 1", "purged 1 dead letter of shop"}
	for i, text := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], text) {
			t.Errorf("%d: want %q in %q", i, text, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%q", got)
	}
	for key, want := range map[string]string{
		"pay:m:t:3":  "(command line) cancelled pay:m:t:3\n",
		"shop:m:t:9": "(command line) cancelled 3 timers of shop, due before 20",
	} {
		if _, _, errs := timerd(t, "", "get", key); !strings.Contains(errs, want) {
			t.Errorf("get %s: %s", key, errs)
		}
	}
	if err := streams.WriteHistory(t.Context(), js, streams.Config{}, event.Entry{Kind: event.EntryGuarded,
		Subjects: []string{"pay:m:t:3"}, GuardUnless: "pay:m:paid:3", Time: time.Now()}); err != nil {
		t.Fatal(err)
	}
	_, _, errs := timerd(t, "", "get", "pay:m:t:3")
	if !strings.Contains(errs, "it did not fire: pay:m:paid:3 was there") {
		t.Errorf("get: %s", errs)
	}
}

// Without NATS an action is done all the same, soon, and one line says that it is not in the history.
func TestActionsWithoutNATS(t *testing.T) {
	startRedis(t)
	nats := testenv.NATS(t)
	proxy := testenv.NewProxy(t, nats.Addr())
	t.Setenv("TIMERD_NATS_URL", "nats://"+proxy.Addr())
	for i, away := range []func(){proxy.Blackhole, proxy.Cut} {
		name := []string{"silent", "refused"}[i]
		ok(t, "set", "pay:m:t:1", "1h")
		away()
		watch := testenv.StartStopwatch()
		code, out, errs := timerd(t, "", "cancel", "pay:m:t:1")
		if code != 0 || out != "cancelled\n" || !strings.HasPrefix(errs, "timerd: not in the history, but done: ") ||
			strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %d %s%s", name, code, out, errs)
		}
		watch.AtMost(t, 4*time.Second, name)
	}
}

// Two commands at once find no stream, and both write their entries.
func TestTwoCommandsWriteTheHistory(t *testing.T) {
	startRedis(t)
	nats := testenv.NATS(t)
	t.Setenv("TIMERD_NATS_URL", nats.URL())
	var commands sync.WaitGroup
	for _, key := range []string{"pay:m:t:1", "pay:m:t:2"} {
		ok(t, "set", key, "1h")
		commands.Go(func() {
			if code := run(context.WithoutCancel(t.Context()), []string{"cancel", key}, strings.NewReader(""),
				&strings.Builder{}, &strings.Builder{}); code != 0 {
				t.Errorf("%s: %d", key, code)
			}
		})
	}
	commands.Wait()
	got := actions(t, nats)
	if slices.Sort(got); !slices.Equal(got, []string{"cancelled pay:m:t:1", "cancelled pay:m:t:2"}) {
		t.Errorf("%q", got)
	}
}
