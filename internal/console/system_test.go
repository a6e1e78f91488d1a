package console_test

import (
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// The system's page has each timerd with the reason why it is not ready, each server, and each stream with the time
// until it is full.
func TestSystem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.page("/system"), "No timerd is alive", w.redis.Addr(), "master", "none yet", "TIMERS_RETRY", "no limit",
		"None is known")
	self := settled()
	self.Since = time.Now().Add(-time.Minute)
	self.Settings = map[string]string{"TIMERD_NAMESPACES": "shop,<b>"}
	self.Counts = &schedule.Counts{Wrong: []schedule.Wrong{{Check: "claims", Text: "<i>no scripts</i>"}}}
	w.beat(self)
	lost := redis.Z{Score: float64(time.Now().Add(-time.Hour).UnixMilli()), Member: "lost<b>"}
	if err := w.redis.Client().ZAdd(t.Context(), keys.Single.Silent(), lost).Err(); err != nil {
		t.Fatal(err)
	}
	w.limit("TIMERS", 100_000, 0)
	w.limit("TIMERS_DEAD", 1000_000, time.Hour)
	for range 6 {
		for _, subject := range []string{"timers.fired.a.b.c", "timers.dead.a.b.c"} {
			if _, err := w.js.Publish(t.Context(), subject, make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.note(event.Entry{Kind: event.EntryAudit, By: "ops@db-1", Via: event.ViaCommand})
	text := w.fresh("/system")
	// A young stream counts as a minute old: one message in ten seconds, of some 1,040 bytes. In an hour those are less
	// than the second limit.
	has(t, text, "not ready", "claims", "&lt;i&gt;no scripts&lt;/i&gt;", "shop, &lt;b&gt;", `data-is="full">in 1`,
		"never at this rate", "1 timerd is gone since yesterday", "lost&lt;b&gt;</bdi></span>, last seen 1 h",
		"1 stream that no timer passes", ">TIMERS_HISTORY<", `data-is="kept up to">67.1 MB, 30 d`)
	if strings.Contains(text, "<i>") || strings.Contains(text, "<b>") {
		t.Errorf("markup of somebody else:\n%s", text)
	}
	has(t, w.get("/api/v1/system").body, `"instance": "a"`, `"instance": "lost\u003cb\u003e"`, `"check": "claims"`,
		`"role": "master"`, `"fullin": null`)
}

// The system's page has the account, and the events beside it once they were compared.
func TestSystemHasTheAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	has(t, w.page("/system"), "There is none: it begins once a timerd runs.")
	has(t, w.get("/api/v1/system").body, `"account": null`)
	nodes, err := w.sched.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nodes[0].KeepAccount(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.set("shop:order:timeout:1", "")
	has(t, w.fresh("/system"), "<dt>in</dt><dd>1 <small>set 1</small></dd>",
		"<dt>there</dt><dd>1 <small>pending 1</small></dd>", "<dt>difference</dt><dd>0</dd>", "not compared yet")
}

// The system's page shows which timers guards have ended, and by which key: of all, of a namespace, or by a part of the
// guard's key, page by page.
func TestGuardedTimersAreShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	inOrder(t, w.page("/system"), "Stopped by guards", "None is known")
	has(t, w.get("/api/v1/system").body, `"timers": []`)
	for i := range 30 {
		w.note(event.Entry{Kind: event.EntryGuarded, Subjects: []string{fmt.Sprint("shop:order:timeout:", i)},
			GuardUnless: fmt.Sprint("shop:order:paid:", i)})
	}
	w.note(event.Entry{Kind: event.EntryDropped, Subjects: []string{"shop:order:timeout:late"}})
	w.note(event.Entry{Kind: event.EntryGuarded, Subjects: []string{"pay:order:callback:%FF"}, GuardIf: "<b>live"})
	text := w.fresh("/system")
	inOrder(t, text, "Stopped by guards", `href="/timers/pay:order:callback:%FF"`,
		"&lt;b&gt;live</bdi></span> was not there",
		`href="/timers/shop:order:timeout:29"`, "shop:order:paid:29</bdi></span> was there", "Next page")
	if strings.Contains(text, "timeout:late") || strings.Contains(text, "<b>") || strings.Contains(text, "timeout:10") {
		t.Errorf("want the last ones, without dropped ones:\n%s", text)
	}
	next := regexp.MustCompile(`href="(/system\?place=[^"]*)#guards"`).FindStringSubmatch(text)
	if next == nil {
		t.Fatal("no address of the next page")
	}
	inOrder(t, w.page(html.UnescapeString(next[1])), "timeout:22", "timeout:15", "First page")
	for query, want := range map[string]int{"q=pay": 1, "q=shop:order": 8, "text=paid:7": 1, "q=shop&text=live": 0} {
		body := w.get("/api/v1/system?" + query).body
		if n := strings.Count(body, `"kind": "guarded"`); n != want {
			t.Errorf("%s: %d, want %d:\n%s", query, n, want, body)
		}
	}
	has(t, w.get("/api/v1/system?q=pay").body, `"key": "pay:order:callback:%FF"`, `"ref": "pay:order:callback:%FF"`,
		`"guardif": "\u003cb\u003elive"`)
	has(t, w.page("/system?q=shop&text=live"), "None matches")
	for _, query := range []string{"q=a:b:c:d", "place=x"} {
		if a := w.get("/system?" + query); a.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", query, a.Status)
		}
	}
}

// The list and the page of a timer show its guards: its own, or those of TIMERD_GUARD.
func TestGuardsOfATimer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.guards = "shop=unless shop:paid:%id" })
	for id, options := range map[string][]client.SetOption{
		"own": {client.Unless("shop:order:paid:<b>"), client.If("pay:live")}, "ruled": nil,
	} {
		if _, err := w.timers.Set(t.Context(), "shop:order:timeout:"+id, nil, client.After(time.Hour),
			options...); err != nil {
			t.Fatal(err)
		}
	}
	w.until("/timers", func(text string) bool { return strings.Count(text, `<span class="chip">guard</span>`) == 1 })
	w.shows("/timers/shop:order:timeout:own", "unless shop:order:paid:&lt;b&gt; if pay:live (its own)")
	w.shows("/timers/shop:order:timeout:ruled", "unless shop:paid:%id (TIMERD_GUARD)")
	w.shows("/api/v1/timers/shop:order:timeout:own", `"unless": "shop:order:paid:\u003cb\u003e"`,
		`"if": "pay:live"`, `"guardrule": "unless shop:paid:%id"`)
	w.set("pay:order:callback:1", "")
	w.until("/timers/pay:order:callback:1", func(text string) bool {
		return strings.Contains(text, "pending") && !strings.Contains(text, "<dt>fires</dt>")
	})
}

// limit gives a stream a limit in bytes, and an age.
func (w *world) limit(stream string, bytes int64, age time.Duration) {
	w.t.Helper()
	s, err := w.js.Stream(w.t.Context(), stream)
	if err != nil {
		w.t.Fatal(err)
	}
	config := s.CachedInfo().Config
	config.MaxBytes, config.Discard, config.MaxAge = bytes, jetstream.DiscardNew, age
	if _, err := w.js.UpdateStream(w.t.Context(), config); err != nil {
		w.t.Fatal(err)
	}
}

// A gap is shown with the audit that answered it; the gap of a start alarms nobody.
func TestGapsAreExplained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pulse = func() history.LiveStats { return history.LiveStats{At: time.Now(), Gaps: 1} }
	self := settled()
	self.Since = time.Now()
	w.beat(self)
	audited := func(report schedule.AuditReport) {
		t.Helper()
		nodes, err := w.sched.Nodes(t.Context())
		if err == nil {
			report.Instance, report.Took, report.LastGap = "a", 12*time.Millisecond, "events <b>back</b>"
			err = nodes[0].RecordAudit(t.Context(), report)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	audited(schedule.AuditReport{At: now.Add(time.Second), Reason: "subscribed", Gaps: 1, GapAt: now})
	has(t, w.fresh("/"), `<a href="/system#gaps" class="is-quiet"><strong>1</strong> <span>gaps in 15 minutes</span>`)
	has(t, w.page("/system"), `<tr class="soft">`, "it was started", "in 12 ms")
	audited(schedule.AuditReport{At: now.Add(-time.Second), Reason: "regular", Gaps: 2, GapAt: now})
	has(t, w.fresh("/"), `<a href="/system#gaps" class="is-owed"><strong>1</strong>`)
	has(t, w.page("/system"), "events &lt;b&gt;back&lt;/b&gt;", "an audit follows")
	has(t, w.get("/api/v1/system").body, `"count": 2`, `"audited": false`)
}
