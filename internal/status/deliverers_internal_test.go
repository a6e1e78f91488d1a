package status

import (
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
)

// Processes of one group are reported together, and a host that several of them do not call once.
func TestDeliverersThatAreHindered(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 9, 0, 0, 0, time.UTC)
	older := &streams.Outdated{Group: "pay", File: "aaaaaaaaaaaa", By: "one", Changed: at}
	newer := &streams.Outdated{Group: "pay", File: "bbbbbbbbbbbb", By: "two", Changed: at.Add(time.Hour), Version: 7}
	host := func(name string, since time.Time, postponed int64, namespaces ...string) streams.Circuit {
		return streams.Circuit{Host: name, Since: since, Namespaces: namespaces, Postponed: postponed}
	}
	var p diag.Findings
	f := &facts{deliverers: []streams.Deliverer{
		{Instance: "a", Circuits: []streams.Circuit{{Host: "h:2", Since: at, Error: "connection\x1b refused"}},
			Outdated: older},
		{Instance: "b", Circuits: []streams.Circuit{host("h:1", at.Add(-time.Hour), 3, "pay:order:callback",
			"shop:a:b"), host("h:2", at, 4, "shop:a:b")}},
		{Instance: "c", Outdated: newer},
		{Instance: "d", Outdated: &streams.Outdated{Group: "deliver", File: "cccccccccccc", By: "th\x1bree",
			Changed: at}},
	}}
	checkCircuits(f, &p)
	checkDeliverers(f.deliverers, &p)
	want := []string{
		"h:1, h:2: not called by timerd deliver, because calls fail, since 2026-11-24T08:00:00Z; deliveries of " +
			"pay:order:callback, shop:a:b were put off 7 times, and wait as timers; the last call: connection%1B " +
			"refused",
		"group deliver of timerd deliver: no events are taken by d, as the group uses another file, with SHA-256 " +
			"cccccccccccc (changed at 2026-11-24T09:00:00Z, set by th%1Bree)",
		"group pay of timerd deliver: no events are taken by a, c, as the group uses another file, with SHA-256 " +
			"bbbbbbbbbbbb (version 7, changed at 2026-11-24T10:00:00Z, set by two)",
	}
	if len(p) != len(want) {
		t.Fatalf("%+v", p)
	}
	for i, f := range p {
		if f.Text != want[i] || f.Level != diag.Warn || f.Fix == "" {
			t.Errorf("%+v\nwant %s", f, want[i])
		}
	}
	p = nil
	checkDeliverers([]streams.Deliverer{{Instance: "a"}}, &p)
	if len(p) > 0 {
		t.Errorf("of one that nothing keeps from delivering: %+v", p)
	}
}
