package repeat_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/test/system"
)

// FROM, UNTIL and TIMES: the first and the last due time.
func TestRepetitionsBeginAndEnd(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	p := s.Start()
	c := s.Collect()
	now := s.Now()
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
		first := s.Repeats(key, "p", 200, append(row.options, "CATCHUP", system.Hour)...)
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
	all := s.Events(c, total)
	for key, fires := range want {
		at := slices.IndexFunc(all, func(e event.Event) bool { return e.Key.String() == key })
		if got := system.Occurred(all, key, all[at].Due.UnixMilli()); !slices.Equal(got, fires) {
			t.Errorf("%s: fired %q, want %q", key, got, fires)
		}
		s.Over(key)
	}
	s.Settled()
	p.Stop()
}
