package console_test

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client/admin"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
)

// hostile returns keys that belong to somebody who means harm.
func hostile() []string {
	return []string{
		"evil:<script>alert(1)</script>:\"'><img src=x onerror=alert(1)>:id",
		"evil:{{.}}:`${1}`:a/../..//./%2e%2e%2f?x=1&y=2#z;=",
		"evil:\u202e\u2066:\u200b\u00ad:\u202eabc\u0000\n\r\t\x1b[31m",
		"evil:\xff\xfe:\xc3\x28:" + strings.Repeat("\xf0", 200),
		"evil:m:t:" + strings.Repeat("A", 1024-len("evil:m:t:")),
		"evil:m:t:..",
		"evil:m:t:" + strings.Repeat("/", 500),
		"evil: : :  ",
		"*:*:*:*",
	}
}

func TestHostileKeysAndPayloadsAreText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	payloads := []string{"</pre><script>alert(1)</script>", "\u202egnp.exe\x00\xff", `{"a":"</script><b>"}`,
		strings.Repeat("[", 9000), strings.Repeat("é", 120_000), ""}
	for i, key := range hostile() {
		w.set(key, payloads[i%len(payloads)])
		w.letter(key, "<b>"+key)
	}
	if _, err := admin.New(w.redis.Client()).Hold(t.Context(), "evil:m", admin.Reason("<script>\u202e")); err != nil {
		t.Fatal(err)
	}
	for _, key := range hostile() {
		path := "/timers/" + url.PathEscape(key)
		text := w.page(path)
		has(t, text, "is due in", "Became a dead letter")
		harmless(t, path, text)
		for _, m := range regexp.MustCompile(`name="key" value="([^"]*)"`).FindAllStringSubmatch(text, -1) {
			if back, err := url.PathUnescape(unescape(m[1])); err != nil || back != key {
				t.Errorf("%q came back as %q, %v", key, back, err)
			}
		}
	}
	for _, path := range append(pages(), "/dead/1", "/dead/2", "/dead/3", "/search?q=evil+"+url.QueryEscape("%FF"),
		"/timers?q="+url.QueryEscape("<script>\xff\u202e:"), "/dead?text="+url.QueryEscape("<b>")) {
		harmless(t, path, w.get(path).body)
	}
	links := regexp.MustCompile(`href="(/timers/[^"?]+)"`).FindAllStringSubmatch(w.page("/timers"), -1)
	if len(links) != len(hostile()) {
		t.Errorf("%d links, want %d", len(links), len(hostile()))
	}
	for _, m := range links {
		has(t, w.page(unescape(m[1])), "is due in")
	}
}

// unescape undoes html/template's escaping of an attribute.
func unescape(s string) string {
	return strings.NewReplacer("&#34;", `"`, "&#39;", "'", "&lt;", "<", "&gt;", ">", "&#43;", "+", "&amp;",
		"&").Replace(s)
}

// harmless fails if a page has markup of somebody else, or characters that cannot be seen.
func harmless(t *testing.T, path, text string) {
	t.Helper()
	for _, bad := range []string{"<script>", "<img", "<b>", "<i>", "style=", "\x00", "\u202e", "\u2066", "\u200b",
		"\x1b", "\xff", "ZgotmplZ"} {
		if i := strings.Index(text, bad); i >= 0 && !strings.Contains(text[max(i-30, 0):i], `value="`) {
			t.Errorf("%s has %q: …%q", path, bad, text[max(i-60, 0):min(i+60, len(text))])
		}
	}
	if len(text) > 2<<20 {
		t.Errorf("%s has %d bytes", path, len(text))
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.get("/")
	for name, want := range map[string]string{
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store",
		"X-Frame-Options": "DENY",
	} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	policy := a.Header.Get("Content-Security-Policy")
	has(t, policy, "default-src 'none'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'")
	if strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
	style := regexp.MustCompile(`href="(/static/console\.[0-9a-f]+\.css)"`).FindStringSubmatch(a.body)
	if style == nil {
		t.Fatal("no style sheet")
	}
	if s := w.get(style[1]); s.StatusCode != http.StatusOK ||
		!strings.Contains(s.Header.Get("Cache-Control"), "immutable") ||
		!strings.HasPrefix(s.Header.Get("Content-Type"), "text/css") {
		t.Errorf("%s %v", s.Status, s.Header)
	}
	addresses := regexp.MustCompile(`<(\w+) [^>]*(?:src|href|action)="([^"]+)"`)
	for _, m := range addresses.FindAllStringSubmatch(a.body, -1) {
		toRunbook := m[1] == "a" && strings.HasPrefix(m[2], diag.Runbook("")) // opened by a click, and not loaded
		if !strings.HasPrefix(m[2], "/") && !strings.HasPrefix(m[2], "#") && !toRunbook {
			t.Errorf("%s is elsewhere", m[2])
		}
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.settings.Addr, w.settings.Hosts = "10.1.2.3:8081", []string{"timerd.example.com", "other.example.com:8443"}
	})
	for host, want := range map[string]int{
		"10.1.2.3:8081": 200, "10.1.2.3": 200, "localhost": 200, "LOCALHOST:9000": 200, "timerd.example.com": 200,
		"Timerd.Example.com:443": 200,
		"other.example.com:8443": 200, "other.example.com": 421, "evil.example.com": 421,
		"localhost.evil.example.com": 421, "10.1.2.4": 421,
		"[::1]:8081": 421, "127.0.0.1:1": 200, // where this connection came to
	} {
		for _, path := range []string{"/", "/api/v1/overview", "/live"} {
			r := w.request(http.MethodGet, path, nil)
			r.Host = host
			if path == "/live" && want == 200 {
				continue // goes on
			}
			if a := w.do(r); a.StatusCode != want {
				t.Errorf("%s of %s: %s, want %d", path, host, a.Status, want)
			}
		}
	}
}

func TestCrossSitePostsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("shop:order:timeout:1", "x")
	for _, path := range []string{"/actions", "/api/v1/jobs", "/jobs/x", "/api/v1/jobs/x"} {
		for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site",
			"Origin": "https://evil.example.com"} {
			r := w.request(http.MethodPost, path, url.Values{"do": {"cancel"}, "key": {"shop:order:timeout:1"},
				"confirm": {"yes"}})
			r.Header.Set(name, value)
			if a := w.do(r); a.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %s: %s", path, name, a.Status)
			}
		}
	}
	if _, found, err := w.timers.Get(t.Context(), "shop:order:timeout:1"); !found || err != nil {
		t.Errorf("the timer is gone, %v", err)
	}
}

// What a page of another site loads as a part of itself is refused, before it costs anything; a link to a page is not.
func TestPartsOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		site, mode, dest string
		want             int
	}{
		{"cross-site", "no-cors", "image", http.StatusForbidden},
		{"cross-site", "cors", "empty", http.StatusForbidden},
		{"cross-site", "navigate", "iframe", http.StatusForbidden},
		{"same-site", "no-cors", "script", http.StatusForbidden},
		{"cross-site", "navigate", "document", http.StatusOK},
		{"same-origin", "cors", "empty", http.StatusOK},
		{"none", "navigate", "document", http.StatusOK},
	} {
		for _, path := range []string{"/repeating?q=x", "/api/v1/repeating?q=x"} {
			r := w.request(http.MethodGet, path, nil)
			r.Header.Set("Sec-Fetch-Site", c.site)
			r.Header.Set("Sec-Fetch-Mode", c.mode)
			r.Header.Set("Sec-Fetch-Dest", c.dest)
			if a := w.do(r); a.StatusCode != c.want {
				t.Errorf("%s %+v: %s, want %d", path, c, a.Status, c.want)
			}
		}
	}
}

func TestPassword(t *testing.T) {
	t.Parallel()
	const password = "correct horse"
	w := newWorld(t, func(w *world) { w.settings.Password = config.NewPassword(password) })
	for _, path := range append(pages(), "/api/v1/timers", "/live", "/nothing") {
		a := w.get(path)
		if a.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s without a password: %s", path, a.Status)
		}
		if strings.Contains(a.body, "pending") {
			t.Errorf("%s shows something", path)
		}
	}
	if a := w.post("/actions", url.Values{"do": {"cancel"}}); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("an action without a password: %s", a.Status)
	}
	r := w.request(http.MethodGet, "/", nil)
	r.SetBasicAuth("admin", password)
	if a := w.do(r); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("another user: %s", a.Status)
	}
	w.password = password
	a := w.get("/")
	if a.StatusCode != http.StatusOK || len(a.Cookies()) != 1 || !a.Cookies()[0].HttpOnly ||
		a.Cookies()[0].SameSite != http.SameSiteStrictMode {
		t.Errorf("%s, cookies %v", a.Status, a.Cookies())
	}
	testenv.Lacks(t, w.log.String()+a.body+fmt.Sprint(a.Header), password)
}

// Guessing is slowed, but not for a browser that has signed in before, and the right password gets in.
func TestPasswordGuessingIsSlowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.settings.Password = config.NewPassword("right") })
	w.password = "right"
	known := w.get("/").Cookies()[0]
	w.password = ""
	began := time.Now()
	var mu sync.Mutex
	got := map[int]int{}
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			r := w.request(http.MethodGet, "/", nil)
			r.SetBasicAuth("timerd", "wrong")
			a := w.do(r)
			mu.Lock()
			got[a.StatusCode]++
			mu.Unlock()
		})
	}
	wg.Wait()
	took := time.Since(began)
	most := 8 + int(took/time.Second) // a busy machine may take long, and each second allows a password
	if got[http.StatusTooManyRequests] < 30-most || got[http.StatusUnauthorized] > most || took < 2*time.Second {
		t.Errorf("%v after %v", got, took)
	}
	r := w.request(http.MethodGet, "/", nil)
	r.AddCookie(known)
	r.SetBasicAuth("timerd", "right")
	if a := w.do(r); a.StatusCode != http.StatusOK {
		t.Errorf("a known browser: %s", a.Status)
	}
	r = w.request(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: known.Name, Value: known.Value[:len(known.Value)-2] + "xx"})
	r.SetBasicAuth("timerd", "wrong")
	if a := w.do(r); a.StatusCode == http.StatusOK {
		t.Error("a forged cookie")
	}
	w.password = "right" // from the same address, without a cookie: it has to wait its turn
	if a := w.get("/"); a.StatusCode != http.StatusOK {
		t.Errorf("the right password: %s", a.Status)
	}
}

// guess sends wrong passwords until too many have come from an address. forwarded is a proxy's header, if any.
func (w *world) guess(forwarded string) {
	w.t.Helper()
	for range 100 {
		var wg sync.WaitGroup
		var refused atomic.Bool
		for range 12 {
			wg.Go(func() {
				if w.signIn("wrong", forwarded, nil).StatusCode == http.StatusTooManyRequests {
					refused.Store(true)
				}
			})
		}
		wg.Wait()
		if refused.Load() {
			return
		}
	}
	w.t.Fatal("guesses are not slowed")
}

// signIn asks for a page with a password, perhaps through a proxy, and perhaps with a cookie.
func (w *world) signIn(password, forwarded string, cookie *http.Cookie) answer {
	r := w.request(http.MethodGet, "/", nil)
	r.SetBasicAuth("timerd", password)
	if forwarded != "" {
		r.Header.Set("X-Forwarded-For", forwarded)
	}
	if cookie != nil {
		r.AddCookie(cookie)
	}
	return w.do(r)
}

// Behind a proxy, wrong passwords of one address delay no other. What a client says itself does not count.
func TestPasswordGuessingBehindAProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) {
		w.settings.Password = config.NewPassword("right")
		w.settings.Proxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
			netip.MustParsePrefix("10.0.0.0/8")}
	})
	stop, guessing := make(chan struct{}), make(chan struct{})
	w.guess("192.0.2.1")
	go func() { // and so it goes on
		defer close(guessing)
		for {
			select {
			case <-stop:
				return
			default:
				w.signIn("wrong", "192.0.2.1", nil)
			}
		}
	}()
	for _, from := range []string{"192.0.2.2", "192.0.2.1, 192.0.2.3, 10.0.0.1", "2001:db8::1",
		"[2001:db8:1::1]:4711"} {
		if a := w.signIn("right", from, nil); a.StatusCode != http.StatusOK {
			t.Errorf("the right password from %s: %s", from, a.Status)
		}
	}
	close(stop)
	<-guessing
	w.guess("203.0.113.9, 192.0.2.1")
	has(t, w.log.String(), "from=192.0.2.1")
	testenv.Lacks(t, w.log.String(), "203.0.113.9")
}

// A browser that has signed in is known at another console with the same password, and after a restart: wrong passwords
// of its address do not delay it.
func TestSignedInElsewhere(t *testing.T) {
	t.Parallel()
	settings := func(password string) func(*world) {
		return func(w *world) { w.settings.Password = config.NewPassword(password) }
	}
	known := newWorld(t, settings("right")).signIn("right", "", nil).Cookies()[0]
	w := newWorld(t, settings("right"))
	w.guess("")
	for _, c := range []struct {
		name   string
		cookie string
		isNew  bool
	}{{"of the other console", known.Value, false}, {"forged", known.Value[:len(known.Value)-2] + "xx", true}} {
		a := w.signIn("right", "", &http.Cookie{Name: known.Name, Value: c.cookie})
		if c.isNew != (len(a.Cookies()) > 0 || a.StatusCode == http.StatusTooManyRequests) || !c.isNew &&
			a.StatusCode != http.StatusOK {
			t.Errorf("the cookie %s: %s, cookies %v", c.name, a.Status, a.Cookies())
		}
	}
	if a := w.signIn("wrong", "", known); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("the cookie alone: %s", a.Status)
	}
	other := newWorld(t, settings("another"))
	if a := other.signIn("another", "", known); a.StatusCode != http.StatusOK || len(a.Cookies()) != 1 {
		t.Errorf("the cookie of another password: %s, cookies %v, want a new one", a.Status, a.Cookies())
	}
}

func TestLooksOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.settings.Actions = false })
	w.set("shop:order:timeout:1", "x")
	w.letter("shop:order:timeout:2", "gone")
	for _, path := range append(pages(), "/dead/1", "/timers/shop:order:timeout:1") {
		text := w.page(path)
		has(t, text, "read-only")
		if strings.Contains(text, `method="post"`) || strings.Contains(text, "/actions") {
			t.Errorf("%s has a way to act", path)
		}
	}
	for _, path := range []string{"/actions", "/jobs", "/jobs/x", "/api/v1/jobs", "/api/v1/jobs/x"} {
		a := w.post(path, url.Values{"do": {"cancel"}, "key": {"shop:order:timeout:1"}, "confirm": {"yes"}})
		if a.StatusCode != http.StatusNotFound && a.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %s", path, a.Status)
		}
		if a := w.get(path); a.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s", path, a.Status)
		}
	}
}

// A payload whose indentation would be ten thousand times its size costs no more memory than another one. It runs
// alone.
func TestDeepPayloadIsNotIndented(t *testing.T) {
	w := newWorld(t)
	const deep = 9990
	w.set("shop:order:timeout:1", strings.Repeat("[", deep)+strings.Repeat("1,", deep)+"1"+strings.Repeat("]", deep))
	w.set("shop:order:timeout:2", `{"a":[1,"]\"["]}`)
	w.page("/") // reads the data shared by all pages
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	text := w.page("/timers/shop:order:timeout:1")
	runtime.ReadMemStats(&after)
	has(t, text, "[[[[[")
	if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
		t.Errorf("the page took %d MiB", took>>20)
	}
	has(t, w.page("/timers/shop:order:timeout:2"), "&#34;a&#34;: [\n    1,\n")
}

// Those who send forms slowly, or read answers slowly, keep nobody else from the pages.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.sendBuffer = 4096 }) // or an answer would be gone, though nobody reads it
	w.set("shop:order:timeout:1", strings.Repeat(`"`, 250_000))
	address := strings.TrimPrefix(w.server.URL, "http://")
	for _, request := range []string{
		"POST /actions HTTP/1.1\r\nHost: localhost\r\nContent-Type: " +
			"application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\ndo=",
		"GET /timers/shop:order:timeout:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		for range 9 { // as many as are answered at a time, and one more
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
			if tcp, ok := conn.(*net.TCPConn); !ok || tcp.SetReadBuffer(4096) != nil {
				t.Fatalf("%T", conn)
			}
			if _, err := conn.Write([]byte(request)); err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(request, "GET") { // until it is answered
				if _, err := conn.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 3 {
			w.page("/holds")
		}
	}
}
