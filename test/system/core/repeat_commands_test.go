package core_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// The effect of each command on the trigger key of a repetition, with its firings and its next occurrence.
func TestCommandsOnRepetitions(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_RETRY"] = "*=300ms"
	p := s.Start()
	c := s.Collect()
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
		{"expire", [][]any{{"PEXPIRE", system.Soon}}, "1 p", "2 p"},
		{"set-ex", [][]any{{"SET", "new", "PX", system.Soon}}, "1 new", "2 new"},
		{"keepttl", [][]any{{"SET", "new", "KEEPTTL"}, {"PEXPIRE", system.Soon}}, "1 new", "2 new"},
		{"timer_set", [][]any{{"timer_set", "new", "PX", 2000}}, "0 new", ""},
		{"timer_repeat", [][]any{{"timer_repeat", "new", "EVERY", 2 * system.Hour}}, "", ""},
		{"cron", [][]any{{"timer_repeat", "new", "CRON", "* * * * * *", "TIMES", 1}}, "1 new", ""},
	}
	firsts, fire := map[string]int64{}, 0
	for _, row := range rows {
		key := "shop:repeat:command:" + row.name
		firsts[row.name] = s.Repeats(key, "p", system.Hour)
		for _, command := range row.commands {
			name := command[0].(string)
			args := []any{name, key}
			if strings.HasPrefix(name, "timer_") {
				args = []any{"FCALL", name, 1, key}
			}
			if reply := s.Do(append(args, command[1:]...)...); row.name == "timer_repeat" {
				firsts[row.name] = reply.(int64)
			}
		}
		if row.fires != "" {
			fire++
		}
	}
	all := s.Events(c, fire)
	for _, row := range rows {
		key, first := "shop:repeat:command:"+row.name, firsts[row.name]
		var said []string
		for _, line := range system.Occurred(all, key, first) {
			_, what, _ := strings.Cut(line, " ")
			said = append(said, what)
		}
		if got := strings.Join(said, ", "); got != row.fires {
			t.Errorf("%s: fired %q, want %q", row.name, got, row.fires)
		}
		switch number, payload, _ := strings.Cut(row.next, " "); {
		case row.name == "timer_repeat":
			s.Next(key, first, "payload new state pending repeat every 2h0m0s occurrence 1")
		case row.next == "":
			s.Over(key)
		default:
			s.Next(key, first+system.Hour, fmt.Sprintf("payload %s state pending repeat every 1h0m0s occurrence %s",
				payload, number))
		}
	}

	// A retry of an occurrence is one of its own, beside the next one.
	at := slices.IndexFunc(all, func(e event.Event) bool { return e.Key.ID == "expire" })
	s.Retry(c.All()[at])
	again := s.Events(c, fire+1)[fire]
	if again.Attempt != 2 || again.Repeat != "every 1h0m0s" || again.Occurrence != 1 {
		t.Errorf("the retry is %+v", again)
	}
	s.Next("shop:repeat:command:expire", firsts["expire"]+system.Hour,
		"payload p state pending repeat every 1h0m0s occurrence 2")
	c.Stays(fire+1, 100*time.Millisecond)
	p.Stop()
}
