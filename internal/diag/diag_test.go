package diag_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/diag"
)

// What the NATS client says of a buffer of no bytes means that there is no connection.
func TestNoConnectionInPlainWords(t *testing.T) {
	t.Parallel()
	said := diag.Of("jetstream", fmt.Errorf("stream TIMERS: %w", nats.ErrReconnectBufExceeded), "").Text
	if other := errors.New("other"); said != "NATS is disconnected" || !errors.Is(diag.Plain(other), other) {
		t.Errorf("it says %q", said)
	}
}

// The fix is separate from the problem, and appears once, however often an error was wrapped.
func TestOfSeparatesTheFix(t *testing.T) {
	t.Parallel()
	away := errors.New("a server is away")
	fault := &diag.Fault{What: "it is full", Remedy: "empty it", Err: away}
	for _, c := range []struct {
		err               error
		text, fix, whole  string
		isAway, isFixable bool
	}{
		{away, "a server is away", "look", "a server is away", true, false},
		{fault, "it is full", "empty it", "it is full; to fix it: empty it", true, true},
		{diag.Wrap("NATS", diag.Wrap("stream", fault)), "NATS: stream: it is full", "empty it",
			"NATS: stream: it is full; to fix it: empty it", true, true},
		{diag.Wrap("NATS", away), "NATS: a server is away", "look", "NATS: a server is away", true, false},
		// Of several, none speaks for all.
		{errors.Join(fault, away), "it is full; to fix it: empty it\na server is away", "look",
			"it is full; to fix it: empty it\na server is away", true, true},
		{fmt.Errorf("%w, again", fault), "it is full; to fix it: empty it, again", "look",
			"it is full; to fix it: empty it, again", true, true},
	} {
		f := diag.Of("nats", c.err, "look")
		if f != (diag.Finding{Level: diag.Fail, Check: "nats", Text: c.text, Fix: c.fix}) {
			t.Errorf("%v: %+v", c.err, f)
		}
		_, fixable := errors.AsType[diag.Fixable](c.err)
		if c.err.Error() != c.whole || errors.Is(c.err, away) != c.isAway || fixable != c.isFixable {
			t.Errorf("%q, fixable: %v; want %q", c.err, fixable, c.whole)
		}
	}
	if f := diag.Of("nats", fault, ""); f.String() != fault.Error() {
		t.Errorf("%q, want %q", f, fault)
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	table := []diag.Check[string]{
		{Name: "a", Run: func(of string, p *diag.Findings) { p.OK("%s: %d streams", of, 3) }},
		{Name: "b", Run: func(_ string, p *diag.Findings) { p.Warn("", "it is loading") }, Fix: "wait"},
	}
	all := diag.Run(table, "x", nil)
	if all.Failed() {
		t.Error("a warning fails")
	}
	all = append(all, diag.Finding{Level: diag.Fail, Check: "c", Text: "a server is away", Fix: "start it"})
	got, err := json.Marshal(all)
	want := `[{"level":"ok","check":"a","text":"x: 3 streams"},{"level":"warn","check":"b","text":"it is loading","fix":"wait"},` +
		`{"level":"fail","check":"c","text":"a server is away","fix":"start it"}]`
	if err != nil || string(got) != want || !all.Failed() {
		t.Errorf("%s, %v; failed: %v", got, err, all.Failed())
	}
}

// A row whose need has failed is left out, and a row with causes names the failed ones, in any order.
func TestRowsDependOnOthers(t *testing.T) {
	t.Parallel()
	fails := func(names ...string) func(string, *diag.Findings) {
		return func(failing string, p *diag.Findings) {
			for _, name := range names {
				if strings.Contains(failing, name) {
					p.Fail("mend it", "%s is broken", name)
				}
			}
		}
	}
	table := []diag.Check[string]{
		{Name: "overdue", Causes: []string{"redis", "nats"}, Run: fails("overdue")},
		{Name: "redis", Run: fails("redis")},
		{Name: "nats", Needs: []string{"outside"}, Run: fails("nats")},
		{Name: "holds", Needs: []string{"redis"}, Run: fails("holds")},
	}
	for failing, want := range map[string]string{
		"":            "",
		"holds":       "holds: holds is broken; ",
		"redis holds": "redis: redis is broken; ",
		"overdue":     "overdue: overdue is broken; no other check finds a cause; ",
		"overdue redis nats holds": "overdue: overdue is broken; the cause is under redis, nats; redis: redis is " +
			"broken; nats: nats is broken; ",
		"outside nats": "",
	} {
		before := diag.Findings{}
		if strings.Contains(failing, "outside") {
			before.Add(diag.Finding{Level: diag.Fail, Check: "outside"})
		}
		got := ""
		for _, f := range diag.Run(table, failing, before) {
			got += f.Check + ": " + f.Text + "; "
		}
		if got != want {
			t.Errorf("%s: %s, want %s", failing, got, want)
		}
	}
}
