package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// The account adds up. A timer that somebody takes away is missing.
func TestAccount(t *testing.T) {
	testenv.NoLeaks(t)
	server := startRedis(t)
	rdb := server.Client()
	if code, out, errs := timerd(t, "", "account"); code != 0 || out != "" || !strings.Contains(errs, "no account") {
		t.Errorf("before it has begun: exit code %d\n%s%s", code, out, errs)
	}
	setFar(t, rdb, "shop", 3, time.Hour)
	s := beginAccount(t, rdb)
	t.Setenv("TIMERD_NATS_URL", "nats://127.0.0.1:1")
	if code, out, errs := timerd(t, "", "account"); code != 1 || !strings.Contains(out, "0  difference\n") ||
		!strings.Contains(errs, "the account is not compared with the events: ") {
		t.Errorf("without NATS: exit code %d\n%s%s", code, out, errs)
	}
	js := testenv.NATS(t).JetStream()
	t.Setenv("TIMERD_NATS_URL", js.Conn().ConnectedUrl())
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	ok(t, "cancel", "shop:m:t:1")
	const want = "0  opening\n3  in\n3    set\n1  out\n1    cancelled\n2  there\n2    pending\n0  difference\n"
	_, text, _ := strings.Cut(ok(t, "account"), "\n") // since when
	if text != want+"events are not compared: a timerd begins within a minute\n" {
		t.Errorf("before the comparison: %q", text)
	}
	keepLedger(t, s, js)
	_, text, _ = strings.Cut(ok(t, "account"), "\n")
	text, events, _ := strings.Cut(text, "events since ")
	if text != want || !strings.HasSuffix(events, ": 0 stored, 0 fired, 0 unexplained\n") {
		t.Errorf("compared: %q, events since %q", text, events)
	}
	if code, out, errs := timerd(t, "", "account", "--day", "2020-02-30"); code != 2 ||
		!strings.Contains(errs, "want a day such as 2026-11-25") {
		t.Errorf("of no day: exit code %d\n%s%s", code, out, errs)
	}
	setFar(t, rdb, "late", 1, time.Hour)
	_, text, _ = strings.Cut(ok(t, "account", "--since", "1s"), "\n")
	if text != "2  opening\n1  in\n1    set\n0  out\n3  there\n3    pending\n0  difference\n" {
		t.Errorf("since the copy: %q", text)
	}
	rdb.ZRem(t.Context(), keys.Single.Due(), "shop:m:t:2")
	code, out, errs := timerd(t, "", "account", "--json")
	var a schedule.Account
	if err := json.Unmarshal([]byte(out), &a); err != nil {
		t.Fatal(err)
	}
	if code != 1 || a.Difference != 1 || len(a.Differences) != 1 || a.In.Set != 4 || a.There.Pending != 2 ||
		!strings.Contains(errs, "1 timer is missing in timerd:{t}:") || !strings.Contains(errs, "timerd audit") {
		t.Errorf("after a loss: exit code %d\n%s%s", code, out, errs)
	}
	if code, _, errs := timerd(t, "", "account", "--since", "1s"); code != 1 ||
		!strings.Contains(errs, "the account differs; run: timerd account") {
		t.Errorf("a loss since the copy: exit code %d\n%s", code, errs)
	}
}

// beginAccount begins the account of a server, and returns its schedule.
func beginAccount(t *testing.T, rdb redis.UniversalClient) *schedule.Schedule {
	t.Helper()
	s := schedule.New(rdb, 1000)
	if _, err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[0].KeepAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// keepLedger has a timerd compare the account with the events, and copy it.
func keepLedger(t *testing.T, s *schedule.Schedule, js jetstream.JetStream) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TIMERS_STATE",
		Subjects: []string{"timers.state.>"}, MaxMsgsPerSubject: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ledger.Keeper{Sources: ledger.Sources{Schedule: s, JetStream: js},
			Logger: slog.New(slog.DiscardHandler)}.Run(ctx)
	}()
	testenv.Eventually(t, time.Minute, func() bool {
		copies, err := ledger.Copies(t.Context(), js, streams.Config{})
		return err == nil && len(copies) > 0
	}, "a copy of the account")
	cancel()
	<-ended
}
