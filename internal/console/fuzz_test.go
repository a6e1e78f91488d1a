package console_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// Every request gets an answer: never a panic, a fault of the server, or a stranger's markup.
func FuzzHandlers(f *testing.F) {
	w := newWorld(f)
	w.set("shop:order:timeout:42", `{"a":1}`)
	for _, seed := range []string{"/timers?q=%FF<script>", "/timers/a:b:c:%2F..%2F", "/dead?place=1.2",
		"/search?q=a+b&from=1.1&place=x", "/dead/-1", "/repeating?after=%00", "/jobs/x", "/timers?place=AAAA",
		"/.?\xf1"} {
		f.Add(seed, "do=cancel&all=1&q=%FF&t=1.1.0.a:b:c:d")
	}
	f.Fuzz(func(t *testing.T, path, form string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || strings.HasSuffix(u.Path, "/live") {
			return
		}
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			for _, prefix := range []string{"", "/api/v1"} {
				r := httptest.NewRequestWithContext(t.Context(), method, "/", strings.NewReader(form))
				r.URL, r.Host = &url.URL{Path: prefix + u.Path, RawPath: prefix + u.EscapedPath(),
					RawQuery: u.RawQuery}, "localhost"
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				answer := httptest.NewRecorder()
				w.server.Config.Handler.ServeHTTP(answer, r)
				body := answer.Body.String()
				switch kind := answer.Header().Get("Content-Type"); {
				case answer.Code >= 500 && answer.Code != http.StatusServiceUnavailable:
					t.Fatalf("%s %s: %d\n%s", method, r.URL, answer.Code, body)
				case strings.Contains(kind, "json") && !json.Valid(answer.Body.Bytes()):
					t.Fatalf("%s %s: no JSON: %q", method, r.URL, body)
				case strings.HasPrefix(kind, "text/html") &&
					(!utf8.ValidString(body) || strings.Contains(strings.ReplaceAll(body, "&lt;", ""), "<script>")):
					t.Fatalf("%s %s: %q", method, r.URL, body)
				}
			}
		}
	})
}
