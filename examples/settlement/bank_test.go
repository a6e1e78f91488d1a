package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// payments is a clearing house that pays each id once.
type payments struct {
	paid  map[string]int64
	fails error
}

func (p *payments) pay(_ context.Context, id string, cents int64) error {
	if _, again := p.paid[id]; p.fails == nil && !again {
		p.paid[id] = cents
	}
	return p.fails
}

// occurrence is the event of a timer that was due at a time.
func occurrence(t *testing.T, key, due string) client.Event {
	t.Helper()
	k, err := keys.Parse(key)
	if err != nil {
		t.Fatal(err)
	}
	at, err := time.Parse(time.RFC3339, due)
	if err != nil {
		t.Fatal(err)
	}
	return client.Event{Key: k, Due: at}
}

// Days and months are the branch's own; missed days are made up for, and nothing is paid twice.
func TestSettlementAndStatement(t *testing.T) {
	testenv.NoLeaks(t)
	rdb := testenv.Redis(t).Client()
	house := &payments{paid: map[string]int64{}}
	b := &bank{rdb: rdb, timers: client.New(rdb), pay: house.pay}
	kathmandu := branches()[2]
	for _, booking := range []struct {
		at    string
		cents int64
	}{
		{"2026-11-27T12:00:00Z", 100}, // its settlement was skipped
		{"2026-11-29T18:14:59Z", 200}, // 23:59 there
		{"2026-11-29T18:15:00Z", 400}, // 0:00 of the 30th there
		{"2026-12-01T00:00:00Z", 800},
	} {
		at, err := time.Parse(time.RFC3339, booking.at)
		if err == nil {
			err = b.book(t.Context(), kathmandu, at, booking.cents)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	handle := func(key, due string) {
		t.Helper()
		if err := b.handle(t.Context(), occurrence(t, key, due)); err != nil {
			t.Fatal(err)
		}
	}
	house.fails = errors.New("away")
	night := occurrence(t, kathmandu.settleKey(), "2026-11-29T20:45:00Z") // half past two of the 30th
	if err := b.handle(t.Context(), night); !errors.Is(err, house.fails) {
		t.Errorf("without the clearing house: %v", err)
	}
	house.fails = nil
	for range 2 { // as events may come
		handle(kathmandu.settleKey(), "2026-11-29T20:45:00Z")
	}
	if got := fmt.Sprint(house.paid); got != "map[kathmandu/2026-11-27:100 kathmandu/2026-11-29:200]" {
		t.Errorf("paid %s", got)
	}
	for _, month := range []struct{ due, want string }{
		{"2026-11-30T18:14:00Z", "map[2026-11:7.00]"},
		{"2026-12-01T18:14:00Z", "map[2026-11:7.00 2026-12:8.00]"}, // as a retry that comes in December
	} {
		handle(kathmandu.statementKey(), month.due)
		if got := fmt.Sprint(rdb.HGetAll(t.Context(), kathmandu.statements()).Val()); got != month.want {
			t.Errorf("statements at %s: %s, want %s", month.due, got, month.want)
		}
	}
	for _, bad := range []client.Event{
		occurrence(t, "bank:settle:daily:atlantis", "2026-11-30T18:14:00Z"),
		occurrence(t, "bank:settle:weekly:berlin", "2026-11-30T18:14:00Z"),
	} {
		if err := b.handle(t.Context(), bad); err == nil || !strings.Contains(err.Error(),
			"no branch has the timer "+bad.Key.String()) {
			t.Errorf("%s: %v", bad.Key, err)
		}
	}
}

// The file has the program's timers, and applying it again changes nothing.
func TestFileHasTheTimersOfTheProgram(t *testing.T) {
	testenv.NoLeaks(t)
	s := exampleenv.Servers(t, retryPolicy)
	b := &bank{rdb: s.Redis, timers: client.New(s.Redis)}
	for range 2 {
		if err := b.repeat(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), exampleenv.Timerd(t), "repeat", "apply", "-f", "repeats.yaml", "--prune",
		namespace, "--dry-run")
	cmd.Env = append(cmd.Environ(), "TIMERD_REDIS_URL="+s.RedisURL)
	out, err := cmd.CombinedOutput()
	if want := "0 to add, 0 to change, 0 to remove, 6 unchanged\n"; err != nil || string(out) != want {
		t.Errorf("repeat apply: %v\n%s\nwant %s", err, out, want)
	}
}

func TestProgram(t *testing.T) {
	testenv.NoLeaks(t)
	var out, errs strings.Builder
	if err := run(t.Context(), []string{"-timerd", exampleenv.Timerd(t)}, &out, &errs); err != nil || errs.Len() > 0 {
		t.Fatalf("%v\n%s\n%s", err, &errs, &out)
	}
	for _, want := range []string{
		`settle:daily:berlin +1 +\w+ \d{4}-\d\d-\d\d (02:30|03:00) \+0[12]:00 *\n`,
		`statement:monthly:newyork +1 +\w+ \d{4}-\d\d-(28|29|30|31) 23:59 -0[45]:00 *\n`,
		`settle:daily:newyork, occurrence 1, attempt 1: the clearing house does not answer\n`,
		`settle:daily:newyork, occurrence 1, attempt 2: done\n`,
		`newyork/\d{4}-\d\d-\d\d: 246\.90 is paid out\n`,
		`settle:daily:kathmandu, occurrence 1, attempt 1: done\n`,
		`statement:monthly:berlin, occurrence 1, attempt 1: done\n`,
		`settle:daily:kathmandu +2 +\w+ \d{4}-\d\d-\d\d 02:30 \+05:45 *\n`,
		`statement:monthly:kathmandu +2 +\w+ \d{4}-\d\d-(28|29|30|31) 23:59 \+05:45 +.*\d{4}-\d\d: (370\.35|740\.70)\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

func TestProgramReportsFaults(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"here", "no arguments"},
		{"-nats nats://127.0.0.1:1", "both Redis and NATS"},
		{"-timerd ./none", "make build"},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
}
