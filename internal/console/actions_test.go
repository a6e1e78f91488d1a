package console_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// left returns how many timers a namespace has.
func (w *world) left(prefix string) (n int) {
	w.t.Helper()
	text := w.get("/api/v1/timers?limit=200&q=" + url.QueryEscape(prefix)).body
	return strings.Count(text, `"which":`)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 150 {
		w.set(fmt.Sprintf("shop:order:timeout:%03d", i), "x")
	}
	w.set("pay:order:callback:1", "x")
	has(t, w.act(url.Values{"do": {"cancel"}, "key": {"shop%3Aorder:timeout:000"}}, nil, "1 timer",
		"Cancel: shop:order:timeout:000"), "1 cancelled")
	has(t, w.act(url.Values{"do": {"cancel"}, "key": {"shop:order:timeout:000"}}, nil, "0 timers"), "1 gone meanwhile")
	var some []string
	for _, part := range strings.Split(w.get("/api/v1/timers?limit=3&q=shop").body, `"which": "`)[1:] {
		which, _, _ := strings.Cut(part, `"`)
		some = append(some, which)
	}
	has(t, w.act(url.Values{"do": {"cancel"}, "t": some, "q": {"shop"}}, nil, "3 timers", "shop:order:timeout:001"),
		"3 cancelled")
	has(t, w.act(url.Values{"do": {"cancel"}, "all": {"1"}, "q": {"shop:order"}}, nil, "146 timers",
		"all timers of shop:order"), "146 cancelled")
	if n := w.left(""); n != 1 {
		t.Errorf("%d timers are left, want the one of the other namespace", n)
	}
	has(t, w.page("/jobs"), "all timers of shop:order", "done")
	has(t, w.log.String(), `msg="console: action"`, "do=cancel", "who=anybody@127.0.0.1", "touches=146",
		"cancelled=146")
}

// Where so many timers of others are owed that not all were looked at, it is not said that all is done.
func TestCancelBehindACrowd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("shop:order:timeout:1", "x")
	rdb := w.redis.Client()
	const due, n = 1763629200000, 100_000
	var owed []redis.Z
	for i := range n {
		owed = append(owed, redis.Z{Member: fmt.Sprintf("%d::pay:m:t:%d", due+i, i)})
	}
	for some := range slices.Chunk(append(owed, redis.Z{Member: fmt.Sprintf("%d::shop:m:t:0", due+n)}), 10_000) {
		if err := rdb.ZAdd(t.Context(), keys.Single.Firing(), some...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	has(t, w.act(url.Values{"do": {"cancel"}, "all": {"1"}, "q": {"shop"}}, nil, "At least 1 timer"), "Failed.",
		"too many timers are owed or firing to search them all", "1 cancelled")
}

// A confirmation covers exactly the counted timers: none set since, and one selected twice once. A query of a whole key
// shows its meaning.
func TestCancelOnlyCountedTimers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const key = "shop:order:timeout:4"
	w.set(key, "x")
	w.set(key+"2", "x")
	a := w.post("/actions", url.Values{"do": {"cancel"}, "key": {key}})
	at := a.Header.Get("Location")
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page(at), "1 timer") }, "the question")
	if _, err := w.timers.Set(t.Context(), key, []byte("newer"), client.After(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	w.post(at, url.Values{"confirm": {"yes"}})
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page(at), "Go back</a>") }, "the end")
	if timer, found, err := w.timers.Get(t.Context(), key); err != nil || !found || string(timer.Payload) != "newer" {
		t.Errorf("%+v, %v, %v; want the newer timer\n%s", timer, found, err, w.page(at))
	}
	_, rest, _ := strings.Cut(w.get("/api/v1/timers?q="+key+"2").body, `"which": "`)
	which, _, _ := strings.Cut(rest, `"`)
	has(t, w.act(url.Values{"do": {"move"}, "t": {which, which}}, url.Values{"to": {"3h"}}, "Set 1 timer"), "1 moved")
	has(t, w.act(url.Values{"do": {"cancel"}, "all": {"1"}, "q": {key}}, nil, "Cancel 2 timers",
		"all timers whose keys begin with "+key), "2 cancelled")
}

func TestFireNowAndMove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 3 {
		w.set(fmt.Sprint("shop:order:timeout:", i), "x")
	}
	has(t, w.act(url.Values{"do": {"fire"}, "key": {"shop:order:timeout:0"}}, nil, "Fire 1 timer now"),
		"1 set to fire now")
	timer, found, err := w.timers.Get(t.Context(), "shop:order:timeout:0")
	if err != nil || !found || timer.State != client.Owed {
		t.Errorf("%+v, %v, %v", timer, found, err)
	}
	at := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Second)
	has(t, w.act(url.Values{"do": {"move"}, "all": {"1"}, "q": {"shop"}, "state": {"pending"}},
		url.Values{"to": {at.Format(time.RFC3339)}}, "2 timers", `name="to"`), "2 moved")
	for i := 1; i < 3; i++ {
		if timer, _, err := w.timers.Get(t.Context(), fmt.Sprint("shop:order:timeout:", i)); err != nil ||
			timer.Due.Sub(at).Abs() > time.Second {
			t.Errorf("%+v, %v; want it at %v", timer, err, at)
		}
	}
}

func TestHoldAndResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("pay:refund:poll:1", "x")
	has(t, w.act(url.Values{"do": {"hold"}, "namespace": {"pay:refund"}, "reason": {"<down>"}, "for": {"2h"}}, nil,
		"1 timer", "ends by itself after 2 h"), "1 held")
	has(t, w.page("/holds"), "pay:refund", "&lt;down&gt;", "anybody@127.0.0.1 in the console", "Resume…")
	has(t, w.page("/"), "pay:refund is held")
	has(t, w.page("/timers/pay:refund:poll:1"), "is due in")
	has(t, w.act(url.Values{"do": {"resume"}, "namespace": {"pay:refund"}}, url.Values{"how": {"now"}}, "0 timers",
		`value="shift"`), "released")
	has(t, w.page("/holds"), "No namespace is on hold")
}

// That a slot moves, so that not all timers can be counted, keeps nobody from holding them.
func TestHoldWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, false)
	w := newWorld(t, func(w *world) { w.rdb = cluster.Client() })
	cluster.OpenSlot(0, cluster.Master(0), cluster.Master(keys.Slots-1))
	has(t, w.act(url.Values{"do": {"hold"}, "namespace": {"shop"}}, nil, "At least 0 timers"), "the hold stands")
}

// While a slot moves, the lists are of the others and say so in the words of the commands.
func TestListsWhileASlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testenv.Cluster(t, 3, false)
	w := newWorld(t, func(w *world) { w.rdb = cluster.Client() })
	const gone, there = "shop:order:poll:gone", "shop:order:poll:there"
	for _, key := range []string{gone, there} {
		if err := w.rdb.FCall(t.Context(), "timer_repeat", []string{key}, "x", "EVERY",
			time.Hour.Milliseconds()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	lists := []string{"/timers", "/timers?q=shop", "/search?q=shop:order", "/repeating", "/api/v1/timers",
		"/api/v1/search?q=shop:order", "/api/v1/repeating"}
	said := (&query.MovingError{Slots: 1}).Error()
	for _, path := range lists {
		w.until(path, func(text string) bool { return !strings.Contains(text, said) && strings.Contains(text, "gone") })
	}
	slot := keys.PartitionOf(gone).Slot()
	cluster.OpenSlot(slot, cluster.Master(slot), cluster.Master((slot+keys.Slots/3)%keys.Slots))
	for _, path := range lists {
		w.until(path, func(text string) bool {
			return strings.Contains(text, said) && strings.Contains(text, "there") && !strings.Contains(text, "gone")
		})
	}
	w.until("/timers?q=pay", func(text string) bool {
		return strings.Contains(text, said) && strings.Contains(text, "None found")
	})
}

func TestBadActions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("shop:order:timeout:1", "x")
	for _, test := range []struct {
		form string
		code int
		want string
	}{
		{"do=explode", 400, "There is no action"},
		{"do=cancel", 422, "Nothing is selected"},
		{"do=cancel&key=nokey", 400, "no timer"},
		{"do=cancel&t=1.2.3.x", 400, "names no timer"},
		{"do=cancel&all=1&state=dead", 400, "no state"},
		{"do=fire&t=" + strings.Repeat("9", 30) + ".1.0.a:b:c:d", 400, "names no timer"},
		{"do=replay", 422, "Nothing is selected"},
		{"do=replay&seq=-1", 400, "no number"},
		{"do=hold&namespace=a:b:c:d", 400, "at most three parts"},
		{"do=hold&namespace=a&for=soon", 422, "no duration"},
		{"do=hold&namespace=a&reason=" + strings.Repeat("x", 1025), 422, "too long"},
		{"do=cancel&t=" + strings.Repeat("x", 2<<20), 413, "cannot be read"},
	} {
		form, _ := url.ParseQuery(test.form)
		if a := w.post("/actions", form); a.StatusCode != test.code || !strings.Contains(a.body, test.want) {
			t.Errorf("%.60s: %s, want %d with %q\n%s", test.form, a.Status, test.code, test.want, a.body)
		}
	}
	a := w.post("/actions", url.Values{"do": {"move"}, "key": {"shop:order:timeout:1"}})
	for _, to := range []string{"", "soon", "-5m", "20000d"} {
		if b := w.post(a.Header.Get("Location"), url.Values{"confirm": {"yes"},
			"to": {to}}); b.StatusCode != http.StatusUnprocessableEntity || !strings.Contains(b.body, `name="to"`) {
			t.Errorf("to %q: %s", to, b.Status)
		}
	}
	if b := w.post(a.Header.Get("Location"), url.Values{"stop": {"yes"}}); b.StatusCode != http.StatusSeeOther {
		t.Errorf("stop: %s", b.Status)
	}
	has(t, w.page(a.Header.Get("Location")), "Nothing was changed")
	if b := w.get("/jobs/none"); b.StatusCode != http.StatusNotFound ||
		!strings.Contains(b.body, "knows of no such action") {
		t.Errorf("%s\n%s", b.Status, b.body)
	}
}

// A job can be stopped: its finished part stays done, and is shown.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 8000
	for first := 0; first < n; first += 500 {
		settings := make([]client.Setting, 500)
		for i := range settings {
			settings[i] = client.Setting{Key: fmt.Sprint("shop:order:timeout:", first+i), When: client.After(time.Hour)}
		}
		if _, err := w.timers.SetMany(t.Context(), settings); err != nil {
			t.Fatal(err)
		}
	}
	a := w.post("/actions", url.Values{"do": {"cancel"}, "all": {"1"}, "q": {"shop"}})
	at := a.Header.Get("Location")
	testenv.Eventually(t, time.Minute, func() bool { return strings.Contains(w.page(at), "8,000 timers") }, "the count")
	// Redis does not cancel before it has been stopped, however fast it is.
	if err := w.redis.Client().Do(t.Context(), "CLIENT", "PAUSE", time.Minute.Milliseconds(),
		"WRITE").Err(); err != nil {
		t.Fatal(err)
	}
	w.post(at, url.Values{"confirm": {"yes"}})
	w.post(at, url.Values{"stop": {"yes"}})
	if err := w.redis.Client().ClientUnpause(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	var text string
	testenv.Eventually(t, time.Minute, func() bool { text = w.page(at); return strings.Contains(text, "Go back</a>") },
		"the end")
	has(t, text, "Stopped.", "The rest is as it was")
	has(t, w.act(url.Values{"do": {"cancel"}, "all": {"1"}, "q": {"shop"}}, nil), "Done.")
	if left := w.left("shop"); left != 0 {
		t.Errorf("%d are left", left)
	}
}
