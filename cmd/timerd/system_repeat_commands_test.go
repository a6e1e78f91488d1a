package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

const hour = int64(time.Hour / time.Millisecond)

// repeats sets a timer that repeats by an interval, and returns when it is due first, in unix ms.
func (s *system) repeats(key, payload string, every int64, options ...any) int64 {
	s.t.Helper()
	due, ok := s.do(append([]any{"FCALL", "timer_repeat", 1, key, payload, "EVERY", every}, options...)...).(int64)
	if !ok {
		s.t.Fatalf("timer_repeat of %s set nothing", key)
	}
	return due
}

// occurred describes events of one key, in the order of the stream: "due, as so many ms after first, number, payload".
func occurred(all []event.Event, key string, first int64) (said []string) {
	for _, e := range all {
		if e.Key.String() == key {
			said = append(said, fmt.Sprintf("%d %d %s", e.Due.UnixMilli()-first, e.Occurrence, e.Data))
		}
	}
	return said
}

// next waits until the pending timer of a key is due at a time, by timer_get and by its TTL, and timer_get says something.
func (s *system) next(key string, due int64, said string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		got := fmt.Sprint(s.do("FCALL_RO", "timer_get", 1, key))
		if !strings.HasPrefix(got, fmt.Sprintf("[due %d ", due)) || !strings.HasSuffix(got, " "+said+"]") {
			return fmt.Errorf("timer_get says %s; want %d, %s", got, due, said)
		}
		if at := s.due(key); at != due {
			return fmt.Errorf("the key runs out at %d, want %d", at, due)
		}
		return nil
	}, "what follows of "+key)
}

// over waits until a key has no timer and repeats no more.
func (s *system) over(key string) {
	s.t.Helper()
	testenv.Eventually(s.t, patience, func() error {
		if got := s.do("FCALL_RO", "timer_get", 1, key); got != nil {
			return fmt.Errorf("timer_get says %v", got)
		}
		if got := s.do("ZSCORE", keys.Single.Repeat(), key); got != nil {
			return fmt.Errorf("it has the serial %v", got)
		}
		return nil
	}, "the end of "+key)
}

// What each command on the trigger key does to a repetition, with what fires of it and what follows.
func TestCommandsOnRepetitions(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.env["TIMERD_RETRY"] = "*=300ms"
	p := s.start()
	c := s.collect()
	rows := []struct {
		name     string
		commands [][]any // on the key, which comes after the first word, or for functions after the third
		fires    string  // number and payload of the occurrence that fires now; empty for none
		next     string  // number and payload of the one in an hour; empty for none
	}{
		{"del", [][]any{{"DEL"}}, "", ""},
		{"unlink", [][]any{{"UNLINK"}}, "", ""},
		{"getdel", [][]any{{"GETDEL"}}, "", ""},
		{"rename", [][]any{{"RENAME", "nobody"}}, "", ""},
		{"persist", [][]any{{"PERSIST"}}, "", ""},
		{"set", [][]any{{"SET", "new"}}, "", ""},
		{"cancel", [][]any{{"timer_cancel"}}, "", ""},
		{"expire", [][]any{{"PEXPIRE", 1000}}, "1 p", "2 p"},
		{"set-ex", [][]any{{"SET", "new", "PX", 1000}}, "1 new", "2 new"},
		{"keepttl", [][]any{{"SET", "new", "KEEPTTL"}, {"PEXPIRE", 1000}}, "1 new", "2 new"},
		{"timer_set", [][]any{{"timer_set", "new", "PX", 1000}}, "0 new", ""},
		{"timer_repeat", [][]any{{"timer_repeat", "new", "EVERY", 2 * hour}}, "", ""},
		{"cron", [][]any{{"timer_repeat", "new", "CRON", "* * * * * *", "TIMES", 1}}, "1 new", ""},
	}
	firsts, fire := map[string]int64{}, 0
	for _, row := range rows {
		key := "shop:repeat:command:" + row.name
		firsts[row.name] = s.repeats(key, "p", hour)
		for _, command := range row.commands {
			name := command[0].(string)
			args := []any{name, key}
			if strings.HasPrefix(name, "timer_") {
				args = []any{"FCALL", name, 1, key}
			}
			if reply := s.do(append(args, command[1:]...)...); row.name == "timer_repeat" {
				firsts[row.name] = reply.(int64)
			}
		}
		if row.fires != "" {
			fire++
		}
	}
	all := s.events(c, fire)
	for _, row := range rows {
		key, first := "shop:repeat:command:"+row.name, firsts[row.name]
		var said []string
		for _, line := range occurred(all, key, first) {
			_, what, _ := strings.Cut(line, " ")
			said = append(said, what)
		}
		if got := strings.Join(said, ", "); got != row.fires {
			t.Errorf("%s: fired %q, want %q", row.name, got, row.fires)
		}
		switch number, payload, _ := strings.Cut(row.next, " "); {
		case row.name == "timer_repeat":
			s.next(key, first, "payload new state pending repeat every 2h0m0s occurrence 1")
		case row.next == "":
			s.over(key)
		default:
			s.next(key, first+hour, fmt.Sprintf("payload %s state pending repeat every 1h0m0s occurrence %s", payload, number))
		}
	}

	// A retry of an occurrence is one of its own, beside the next one.
	at := slices.IndexFunc(all, func(e event.Event) bool { return e.Key.ID == "expire" })
	s.retry(c.All()[at])
	again := s.events(c, fire+1)[fire]
	if again.Attempt != 2 || again.Repeat != "every 1h0m0s" || again.Occurrence != 1 {
		t.Errorf("the retry is %+v", again)
	}
	s.next("shop:repeat:command:expire", firsts["expire"]+hour, "payload p state pending repeat every 1h0m0s occurrence 2")
	c.Stays(fire+1, 100*time.Millisecond)
	p.stop()
}

// FROM, UNTIL and TIMES: what is due first, and what last.
func TestRepetitionsBeginAndEnd(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.start()
	c := s.collect()
	now := s.now()
	want := map[string][]string{}
	for _, row := range []struct {
		name    string
		options []any
		first   int64 // how long after now, unless the machine is slow
		last    int64 // likewise
	}{
		{"times", []any{"FROM", now + 1500, "TIMES", 2}, 1500, 1700},
		{"until", []any{"FROM", now + 1500, "UNTIL", now + 1900}, 1500, 1900},
		{"once", []any{"FROM", now + 1500, "UNTIL", now + 1500}, 1500, 1500},
		{"grid", []any{"FROM", now - 199_900, "UNTIL", now + 2099}, 100, 1900},
	} {
		key := "shop:repeat:end:" + row.name
		first := s.repeats(key, "p", 200, append(row.options, "CATCHUP", hour)...)
		if late := first - now - row.first; late < 0 || late%200 != 0 || row.name != "grid" && late > 0 {
			t.Errorf("%s: due first %d ms after the clock was read, want %d", row.name, first-now, row.first)
		}
		for due := first; due <= now+row.last; due += 200 {
			want[key] = append(want[key], fmt.Sprintf("%d %d p", due-first, len(want[key])+1))
		}
	}
	total := 0
	for _, fires := range want {
		total += len(fires)
	}
	all := s.events(c, total)
	for key, fires := range want {
		at := slices.IndexFunc(all, func(e event.Event) bool { return e.Key.String() == key })
		if got := occurred(all, key, all[at].Due.UnixMilli()); !slices.Equal(got, fires) {
			t.Errorf("%s: fired %q, want %q", key, got, fires)
		}
		s.over(key)
	}
	s.settled()
	p.stop()
}
