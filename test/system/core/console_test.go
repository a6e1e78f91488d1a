package core_test

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/test/system"
)

// browser is a browser without JavaScript: it follows redirects, and a form carries its site.
type browser struct {
	t    testing.TB
	site string
	at   *url.URL // the page that it shows
	page string
}

// shows gets an answer, which has to have a status, and shows it.
func (b *browser) shows(r *http.Request, status int) string {
	b.t.Helper()
	client := http.Client{Timeout: system.Patience}
	resp, err := client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		b.t.Fatalf("%s %s: %s, want %d, %v\n%s", r.Method, r.URL, resp.Status, status, err, text)
	}
	b.at, b.page = resp.Request.URL, string(text)
	return b.page
}

func (b *browser) opens(path string) string {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, b.site+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.shows(r, http.StatusOK)
}

var (
	formTag  = regexp.MustCompile(`(?s)<form[^>]* method="post" action="([^"]*)">(.*?)</form>`)
	inputTag = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
)

// submits sends the first form of the page that has a button, whose name and value may be empty, from a page of origin.
func (b *browser) submits(origin, button, value string, status int) string {
	b.t.Helper()
	for _, form := range formTag.FindAllStringSubmatch(b.page, -1) {
		tag := "<button"
		fields := url.Values{}
		if button != "" {
			tag = fmt.Sprintf(`name=%q value=%q>`, button, value)
			fields.Set(button, value)
		}
		if !strings.Contains(form[2], tag) {
			continue
		}
		for _, input := range inputTag.FindAllStringSubmatch(form[2], -1) {
			fields.Set(html.UnescapeString(input[1]), html.UnescapeString(input[2]))
		}
		target := b.at.ResolveReference(&url.URL{Path: form[1]})
		r, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, target.String(),
			strings.NewReader(fields.Encode()))
		if err != nil {
			b.t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", origin)
		return b.shows(r, status)
	}
	b.t.Fatalf("%s has no form with %s=%s:\n%s", b.at, button, value, b.page)
	return ""
}

// The console of a running timerd: its pages, their JSON, and an action by its forms.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	addr := testenv.FreeAddr(t)
	p := s.Start("TIMERD_CONSOLE_ADDR="+addr, "TIMERD_CONSOLE_ACTIONS=on")
	c := s.Collect()
	const key, payload = "shop:order:timeout:4/2", "order of <b>42</b>"
	const ref = "shop:order:timeout:4%2F2"
	s.Do("FCALL", "timer_set", 1, "shop:order:timeout:1", "fired", "PX", 1)
	s.Do("FCALL", "timer_set", 1, key, payload, "PX", system.Hour)
	s.Expect(c, "shop:order:timeout:1=fired")

	b := &browser{t: t, site: "http://" + addr}
	has := func(page string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(page, want) {
				t.Errorf("%s has no %q:\n%s", b.at, want, page)
			}
		}
	}
	testenv.Eventually(t, system.Patience, func() bool { // it may show the state of a moment ago
		page := b.opens("/")
		return strings.Contains(page, `href="/timers/shop:order:timeout:1"`) &&
			strings.Contains(page, "<strong>1</strong> <span>pending</span>")
	}, "the overview to show the firing, and the pending timer")
	has(b.opens("/timers"), `href="/timers/`+ref+`"`, "order of &lt;b&gt;42&lt;/b&gt;")
	has(b.opens("/timers/"+ref), key, "order of &lt;b&gt;42&lt;/b&gt;", "Its life")
	var one struct {
		Key    string
		Timers []struct {
			Due     time.Time
			State   string
			Payload struct{ Text string }
		}
	}
	if err := json.Unmarshal([]byte(b.opens("/api/v1/timers/"+ref)), &one); err != nil || one.Key != key ||
		len(one.Timers) != 1 ||
		one.Timers[0].State != "pending" || one.Timers[0].Payload.Text != payload ||
		one.Timers[0].Due.UnixMilli() != s.Due(key) {
		t.Errorf("the timer as JSON: %v\n%s", err, b.page)
	}

	b.opens("/timers/" + ref)
	b.submits("http://elsewhere.example", "do", "fire", http.StatusForbidden)
	b.opens("/timers/" + ref)
	has(b.submits(b.site, "do", "fire", http.StatusOK), "Fire now")
	c.Stays(1, 50*time.Millisecond) // nothing fires before it is confirmed
	b.submits(b.site, "", "", http.StatusOK)
	testenv.Eventually(t, system.Patience, func() bool { return strings.Contains(b.opens(b.at.Path), "Go back</a>") },
		"the action to be done")
	s.Expect(c, "shop:order:timeout:1=fired", key+"="+payload)
	s.Settled()
	p.Stop()
	if log := p.Log.String(); !strings.Contains(log, "do=fire") {
		t.Errorf("the log does not name the request:\n%s", log)
	}
}
