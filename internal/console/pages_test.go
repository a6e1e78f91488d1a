package console_test

import (
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// pages returns the addresses of all pages.
func pages() []string {
	return []string{"/", "/timers", "/timers/shop:order:timeout:42", "/repeating", "/dead", "/holds", "/consumers",
		"/system", "/webhooks",
		"/search",
		"/search?q=42", "/search?q=shop%3Aorder+42"}
}

func TestEmptyPagesSayHowToBegin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for path, want := range map[string]string{
		"/": "no timerd is alive", "/timers": "redis-cli SET shop:order:timeout:42", "/repeating": "timerd repeat",
		"/dead":  "No dead letters",
		"/holds": "No namespace is on hold", "/search": "part of its id",
		"/timers/shop:order:timeout:42": "A cancellation by a program leaves no trace",
	} {
		has(t, w.page(path), want)
	}
	if a := w.get("/nothing"); a.StatusCode != http.StatusNotFound || !strings.Contains(a.body, "No such page") {
		t.Errorf("%s\n%s", a.Status, a.body)
	}
}

func TestTimersPageByPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 120 {
		w.set(fmt.Sprintf("shop:order:timeout:%03d", i), `{"order":1}`)
	}
	w.set("pay:order:callback:1", "x")
	seen := map[string]int{}
	at := "/timers?q=shop:order"
	for range 5 {
		text := w.page(at)
		for i := range 120 {
			seen[fmt.Sprint(i)] += strings.Count(text, fmt.Sprintf(`href="/timers/shop:order:timeout:%03d"`, i))
		}
		if strings.Contains(text, "pay:") {
			t.Error("another namespace is listed")
		}
		_, rest, more := strings.Cut(text, `href="/timers?place=`)
		if !more {
			break
		}
		place, _, _ := strings.Cut(rest, `"`)
		at = "/timers?place=" + strings.ReplaceAll(place, "&amp;", "&")
	}
	for i := range 120 {
		if n := seen[fmt.Sprint(i)]; n != 1 {
			t.Errorf("timer %d is listed %d times", i, n)
		}
	}
}

func TestOneTimerPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("pay:order:callback:88120", `{"order":88120,"note":"<b>x</b>"}`)
	text := w.page("/timers/pay:order:callback:88120")
	has(t, text, "Attempt 1 of 4 is due in", "&#34;order&#34;: 88120", "&lt;b&gt;x&lt;/b&gt;", "&#43; 10 s",
		"attempt 4, then a dead letter", "there, expires in")
	if _, err := w.timers.Repeat(t.Context(), "shop:stock:count:1", []byte("x"), client.Every(time.Hour)); err != nil {
		t.Fatal(err)
	}
	has(t, w.page("/timers/shop:stock:count:1"), "Occurrence 1 is due in", "next occurrence", "every 1h0m0s")
	has(t, w.page("/repeating"), "/timers/shop:stock:count:1", "every 1h0m0s")
	if _, err := w.timers.Repeat(t.Context(), "shop:stock:count:2", []byte("x"),
		client.Cron("0 9 * * *", "Asia/Shanghai")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/timers/shop:stock:count:2", "/repeating?q=shop:stock"} {
		has(t, w.page(path), "01:00:00.000", "09:00:00 &#43;08:00") // in UTC, and in the zone of the expression
	}
	has(t, w.get("/api/v1/repeating").body, `"zone": "Asia/Shanghai"`, `"zone": "UTC"`)
	if a := w.get("/timers/no-key"); a.StatusCode != http.StatusNotFound {
		t.Errorf("%s for a text that is no key", a.Status)
	}
}

// What cannot be told of one timer that repeats is said in its row, and the others are shown.
func TestRepeatingAmongManyFirings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const crowded = "shop:stock:count:1"
	for _, key := range []string{crowded, "shop:stock:count:2"} {
		if _, err := w.timers.Repeat(t.Context(), key, []byte("x"), client.Every(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	rdb := w.redis.Client()
	if n, err := rdb.HDel(t.Context(), keys.Single.Data(), crowded).Result(); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	for i := range 1000 {
		if err := rdb.ZAdd(t.Context(), keys.Single.Firing(),
			redis.Z{Score: 1, Member: fmt.Sprintf("1::other:m:t:%d", i)}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	inOrder(t, w.page("/repeating"), "/timers/"+crowded, "not known now", "/timers/shop:stock:count:2", "every 1h0m0s")
	inOrder(t, w.get("/api/v1/repeating").body, `"key": "`+crowded+`"`, `"unknown": true`, `"repeat": "every 1h0m0s"`)
}

// However many timers repeat, a page looks at a bounded number of them and says where it goes on: all are found, each
// once.
func TestRepeatingAmongMany(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rdb := w.redis.Client()
	if _, err := w.timers.Repeat(t.Context(), "shop:stock:count:1", []byte("x"), client.Every(time.Hour)); err != nil {
		t.Fatal(err)
	}
	const others = 45_000
	for first := 0; first < others; first += 5000 {
		pipe := rdb.Pipeline()
		for i := first; i < first+5000; i++ {
			pipe.ZAdd(t.Context(), keys.Single.Repeat(), redis.Z{Score: float64(i + 1),
				Member: fmt.Sprintf("other:stock:count:%d", i)})
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	look := func(query string) (found []string, pages int) {
		for after := ""; pages < 2000; pages++ {
			var page struct {
				Timers []struct{ Key string }
				Looked int
				Next   string
			}
			a := w.get("/api/v1/repeating?q=" + query + "&after=" + url.QueryEscape(after))
			if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.StatusCode != http.StatusOK {
				t.Fatalf("%s, %v: %s", a.Status, err, a.body)
			}
			if page.Looked > 21_000 {
				t.Fatalf("a page has looked at %d", page.Looked)
			}
			for _, timer := range page.Timers {
				found = append(found, timer.Key)
			}
			if after = page.Next; after == "" {
				return found, pages + 1
			}
		}
		return found, pages
	}
	if found, pages := look("none"); len(found) != 0 || pages != 3 {
		t.Errorf("found %q on %d pages, want nothing on 3", found, pages)
	}
	if found, pages := look("shop"); !slices.Equal(found, []string{"shop:stock:count:1"}) || pages > 4 {
		t.Errorf("found %q on %d pages, want one timer", found, pages)
	}
	has(t, w.page("/repeating?q=none"), "searched. There are more.", "Go on")
}

// The overview shows the gaps of the last 15 minutes and the firing timers.
func TestOverviewShowsGaps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pulse = func() history.LiveStats { return history.LiveStats{At: time.Now(), Gaps: 3} }
	has(t, w.page("/"), "<strong>3</strong> <span>gaps in 15 minutes</span>", "<span>firing</span>")
}

// publish publishes an event as timerd does.
func (w *world) publish(kind string, e event.Event) {
	w.t.Helper()
	data := e.AppendJSON(nil)
	m := &nats.Msg{Subject: e.Key.Subject(keys.DefaultPrefix, kind), Data: data,
		Header: nats.Header{event.MsgIDHeader: {e.ID}}}
	if _, err := w.js.PublishMsg(w.t.Context(), m); err != nil {
		w.t.Fatal(err)
	}
}

// letter publishes a dead letter of a key.
func (w *world) letter(key, reason string) {
	w.t.Helper()
	w.bury(key, reason, "<i>502</i>")
}

// failed publishes a dead letter of a key, with the error of its last attempt.
func (w *world) failed(key, lastError string) {
	w.t.Helper()
	w.bury(key, "attempts used up", lastError)
}

func (w *world) bury(key, reason, lastError string) {
	w.t.Helper()
	k, err := keys.Parse(key)
	if err != nil {
		w.t.Fatal(err)
	}
	due := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	w.publish(keys.Dead, event.Event{
		ID: keys.EventID(key, due.UnixMilli(), 4), Type: event.TypeDead, Key: k, Time: due, Due: due, Attempt: 4,
		MaxAttempts: 4,
		Data:        []byte(`{"x":1}`), DeadReason: reason, LastError: lastError,
	})
}

func TestTimerPageShowsItsPast(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "A-42-x"}
	due := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	w.publish(keys.Fired, event.Event{
		ID: keys.EventID(key.String(), due.UnixMilli(), 1), Type: event.TypeFired, Key: key,
		Time: due.Add(7 * time.Millisecond), Due: due, Attempt: 1, MaxAttempts: 4,
		Trigger: "deadline", Data: []byte(`{"order":42}`),
	})
	w.letter("shop:order:timeout:B-42", "attempts used up")
	w.set("shop:order:timeout:C-42", "waits")
	w.set("shop:order:timeout:other", "no")
	for _, query := range []string{"42", "shop:order 42", "shop:*:*:42", "shop:order … 42"} {
		text := w.page("/search?q=" + url.QueryEscape(query))
		has(t, text, "/timers/shop:order:timeout:A-42-x", "/timers/shop:order:timeout:B-42",
			"/timers/shop:order:timeout:C-42", "attempts used up", "7 ms", "All of the streams searched")
		if strings.Contains(text, "timeout:other") {
			t.Errorf("%s found another timer", query)
		}
	}
	for i := range 60 { // more than a page has
		w.set(fmt.Sprint("shop:order:timeout:D-42-", i), "waits")
	}
	if text := w.page("/search?q=42"); strings.Contains(text, "All of the streams searched.") ||
		!strings.Contains(text, "Search on among waiting timers") {
		t.Errorf("it has looked at everything, and goes on looking:\n%s", text)
	}
	has(t, w.page("/timers/shop:order:timeout:A-42-x"), "Fired, attempt 1 of 4, 7 ms late", "TIMERS 1")
	if a := w.get("/search?q=shop:order:timeout:42"); a.StatusCode != http.StatusSeeOther ||
		a.Header.Get("Location") != "/timers/shop:order:timeout:42" {
		t.Errorf("%s to %s", a.Status, a.Header.Get("Location"))
	}
}

func TestDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 {
		w.letter(fmt.Sprintf("pay:order:callback:%d", i), "attempts used up")
	}
	if _, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: "timers.dead.a.b.c",
		Data: []byte("<script>no event</script>")}); err != nil {
		t.Fatal(err)
	}
	has(t, w.page("/dead"), "/dead/1", "/dead/4", "not an event", "&lt;i&gt;502&lt;/i&gt;")
	has(t, w.page("/dead?text=no+such"), "No dead letter matches")
	has(t, w.page("/dead/2"), "attempts used up", "pay:order:callback:1", "TIMERS_DEAD 2")
	has(t, w.page("/dead/4"), "It cannot be replayed", "&lt;script&gt;no event&lt;/script&gt;")
	if a := w.get("/dead/99"); a.StatusCode != http.StatusNotFound {
		t.Errorf("%s for a letter that is not there", a.Status)
	}
	has(t, w.act(url.Values{"do": {"replay"}, "seq": {"1"}}, nil, "1 dead letter", "fires at once"), "1 replayed")
	has(t, w.act(url.Values{"do": {"replay"}, "all": {"1"}}, nil, "2 dead letters", "1 other has no timer"),
		"2 replayed")
	has(t, w.act(url.Values{"do": {"purge"}, "all": {"1"}}, nil, "1 dead letter", "cannot be brought back"), "1 purged")
	has(t, w.page("/dead"), "No dead letters")
	has(t, w.log.String(), `msg="console: action"`, "do=purge", "who=anybody@127.0.0.1", "touches=1",
		`msg="console: action ended"`, "purged=1")
}

// The next page of a filtered list has the rest of it.
func TestNextPageKeepsTheFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 60 {
		w.letter(fmt.Sprintf("pay:order:callback:%d", i), "502 & more")
		if i%10 == 0 {
			w.letter(fmt.Sprintf("shop:order:callback:%d", i), "502 & more")
		}
	}
	next := regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(w.page("/dead?q=pay:order&text=502+%26"))
	if next == nil {
		t.Fatal("no next page")
	}
	text := w.page(html.UnescapeString(next[1]))
	has(t, text, `value="pay:order"`, `value="502 &amp;"`)
	for i := range 11 {
		if there := strings.Contains(text, fmt.Sprintf(`/timers/pay:order:callback:%d"`, i)); there != (i < 10) {
			t.Errorf("letter %d is there: %t, in:\n%s", i, there, text)
		}
	}
	if strings.Contains(text, "/timers/shop:order") {
		t.Errorf("another namespace is listed:\n%s", text)
	}
}

// allSay checks that each page has a text. They wait for servers that do not answer, so they do it side by side.
func allSay(t *testing.T, w *world, text string) {
	t.Helper()
	t.Run(text, func(t *testing.T) {
		for _, path := range pages() {
			t.Run(path, func(t *testing.T) {
				t.Parallel()
				if a := w.get(path); a.StatusCode != http.StatusOK || !strings.Contains(a.body, text) {
					t.Errorf("%s, no %q in:\n%s", a.Status, text, a.body)
				}
			})
		}
	})
}

// Each page answers when Redis or NATS is away, and says so.
func TestServersAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.letter("pay:order:callback:1", "attempts used up")
	w.set("pay:order:callback:2", "x")
	w.nats.Stop()
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page("/"), "NATS away") },
		"the overview to say that NATS is away")
	allSay(t, w, "NATS away")
	has(t, w.page("/"), "NATS cannot be read now.")
	has(t, w.page("/timers"), "/timers/pay:order:callback:2")
	has(t, w.page("/timers/pay:order:callback:2"), "Its events cannot be shown now", "is due in")
	w.nats.Start()
	testenv.Eventually(t, time.Minute, func() bool { return !strings.Contains(w.page("/"), "NATS away") },
		"NATS to be back")
	w.redis.Kill()
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page("/"), "Redis away") },
		"the overview to say that Redis is away")
	allSay(t, w, "Redis away")
	if page := w.page("/"); strings.Contains(page, "Nothing has fired in") ||
		strings.Contains(page, "No namespace has been counted") {
		t.Errorf("it says what only Redis knows:\n%s", page)
	}
	has(t, w.page("/dead"), "/dead/1")
	if a := w.get("/api/v1/timers"); a.StatusCode != http.StatusServiceUnavailable || !json.Valid([]byte(a.body)) {
		t.Errorf("the API: %s\n%s", a.Status, a.body)
	}
}
