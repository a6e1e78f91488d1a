package console_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// note writes an entry of the history.
func (w *world) note(e event.Entry) {
	w.t.Helper()
	e.Time = time.Now()
	if err := streams.WriteHistory(w.t.Context(), w.js, streams.Config{}, e); err != nil {
		w.t.Fatal(err)
	}
}

// The system's page shows the actions of the console and of the command line, with their authors.
func TestActionsAreRemembered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.page("/system"), "None is known")
	for _, id := range []string{"1", "2", "3", "4", "5"} {
		w.set("pay:order:callback:"+id, "x")
	}
	confirmed := url.Values{"to": {"2h"}, "how": {"shift"}}
	w.act(url.Values{"do": {"cancel"}, "key": {"pay:order:callback:1"}}, nil)
	w.act(url.Values{"do": {"fire"}, "key": {"pay:order:callback:2"}}, nil)
	w.act(url.Values{"do": {"move"}, "key": {"pay:order:callback:3"}}, confirmed)
	w.act(url.Values{"do": {"cancel"}, "all": {"1"}, "q": {"pay:order:callback:4"}}, nil)
	w.act(url.Values{"do": {"cancel"}, "all": {"1"}, "q": {"nobody"}}, nil)
	w.act(url.Values{"do": {"hold"}, "namespace": {"held"}, "reason": {"<b>down</b>"}, "for": {"2h"}}, nil)
	w.act(url.Values{"do": {"resume"}, "namespace": {"held"}}, confirmed)
	w.letter("pay:order:callback:9", "attempts used up")
	w.act(url.Values{"do": {"purge"}, "seq": {"1"}}, nil)
	w.note(event.Entry{Kind: event.EntryClock, By: "host-a", Via: event.ViaTimerd, Detail: "back by 5s to <b>"})
	w.note(event.Entry{Kind: event.EntryGone, By: "host-a", Via: event.ViaTimerd, Detail: "host-<b>, last seen"})
	w.note(event.Entry{Kind: event.EntryAudit, By: "<i>ops</i>@\u202ehost", Via: event.ViaCommand})
	if _, err := w.js.Publish(t.Context(), "timers.history.operator.hold", []byte("<script>")); err != nil {
		t.Fatal(err)
	}
	text := w.fresh("/system")
	has(t, text, "anybody@127.0.0.1", "console", `<a href="/timers/pay:order:callback:1"><bdi>cancelled pay:order:callback:1`,
		"had pay:order:callback:2 fire at once", "moved pay:order:callback:3, to 20",
		"cancelled 1 timer of pay:order:callback, all timers whose keys begin with pay:order:callback:4",
		"put held on hold, until 20", "reason: &lt;b&gt;down&lt;/b&gt;", "resumed held, shift",
		"purged 1 dead letter, letter 1", "&lt;i&gt;ops&lt;/i&gt;@", "audited all keys", "not an entry",
		"saw the clock of Redis stepped, back by 5s to &lt;b&gt;", "found a timerd gone, host-&lt;b&gt;, last seen")
	for _, bad := range []string{"<i>", "<script>", "\u202e", "of nobody"} {
		if strings.Contains(strings.ReplaceAll(text, `<script src=`, ""), bad) {
			t.Errorf("%q in:\n%s", bad, text)
		}
	}
	has(t, w.get("/api/v1/system").body, `"kind": "purge"`, `"via": "console"`, `"by": "anybody@127.0.0.1"`,
		`"what": "resumed held, shift"`,
		`"kind": "clock"`, `"kind": "gone"`, `"via": "timerd"`, `"by": "host-a"`)
	w.nats.Stop()
	testenv.Eventually(t, time.Minute, func() bool {
		return strings.Contains(w.fresh("/system"), "They cannot be read now")
	}, "the page without NATS")
	has(t, w.act(url.Values{"do": {"cancel"}, "key": {"pay:order:callback:5"}}, nil), "1 cancelled")
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.log.String(), "not in the history:") },
		"the log's line")
}

// The page of a timer that is gone says how it ended, as far as anything tells.
func TestPageOfATimerThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const gone = "shop:order:timeout:"
	fire := func(id string) {
		t.Helper()
		k, err := keys.Parse(gone + id)
		if err != nil {
			t.Fatal(err)
		}
		due := time.Now().Add(-time.Second)
		w.publish(keys.Fired, event.Event{ID: keys.EventID(k.String(), due.UnixMilli(), 1), Type: event.TypeFired,
			Key: k, Due: due, Attempt: 1, Trigger: "deadline"})
	}
	fire("fired")
	fire("cancelled")
	fire("guarded")
	w.note(event.Entry{Kind: event.EntryGuarded, Subjects: []string{gone + "guarded"},
		GuardUnless: "shop:order:paid:<b>"})
	w.note(event.Entry{Kind: event.EntryGuarded, Subjects: []string{gone + "unpaid"}, GuardIf: "pay:live"})
	w.note(event.Entry{Kind: event.EntryDropped, Subjects: []string{gone + "dropped"},
		Due: time.Now().Add(-3500 * time.Millisecond)})
	w.note(event.Entry{Kind: event.EntryCancel, Subjects: []string{gone + "cancelled"}, Count: 1, By: "ops@db-1",
		Via: event.ViaCommand})
	w.note(event.Entry{Kind: event.EntryCancel, Namespace: "shop:promo", Count: 12, By: "ops@db-1",
		Via: event.ViaConsole})
	for path, wants := range map[string][]string{
		gone + "fired":     {"Fired, attempt 1", "Nothing waits: it fired last"},
		gone + "guarded":   {"Fired", "shop:order:paid:&lt;b&gt; was there", "Nothing waits: its guard ended it"},
		gone + "unpaid":    {"did not fire: pay:live was not there"},
		gone + "dropped":   {"Too late to fire", "was dropped: 3", "Nothing waits: it was dropped as too late"},
		gone + "cancelled": {"ops@db-1 (command line) cancelled", "Nothing waits: an operator cancelled it"},
		"shop:promo:mail:7": {"Perhaps cancelled by an operator",
			"ops@db-1 (console) cancelled 12 timers of shop:promo", "perhaps also this one"},
		gone + "unknown": {"A cancellation by a program leaves no trace"},
	} {
		inOrder(t, w.page("/timers/"+url.PathEscape(path)), wants...)
	}
	w.set(gone+"fired", "x")
	if text := w.page("/timers/" + gone + "fired"); strings.Contains(text, "Nothing waits:") {
		t.Errorf("of a timer that waits:\n%s", text)
	}
	has(t, w.get("/api/v1/timers/"+gone+"guarded").body, `"kind": "guarded"`,
		`"what": "did not fire: shop:order:paid:`, `"text": "Ended by its guard"`)
	w.nats.Stop()
	testenv.Eventually(t, time.Minute, func() bool {
		return strings.Contains(w.page("/timers/"+gone+"guarded"), "cannot be shown now")
	}, "the page without NATS")
}
