package browsertest

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
)

const (
	markup = `<script>alert(1)</script><img src=x onerror=alert(2)>"'&amp;</title></textarea>{{.}}`
	// turned has marks that turn the direction of text, and some that nobody sees.
	turned = "\u202egpj.\u2066exe\u200b\ufeff\u0627\u0644\u0639"
	broken = "\xff\xfe\x80\x00\x1b[31m\r\n\t"
)

// hostileKeys returns keys that somebody has chosen to do harm.
func hostileKeys() []string {
	return []string{
		"hostile:" + `"><img src=x onerror=alert(3)>` + ":t:" + markup,
		"hostile:<svg/onload=alert(4)>:</table>:<!--",
		"hostile:m:t:" + turned,
		"hostile:" + turned + ":" + turned + ":1",
		"hostile:m:t:" + broken,
		"hostile:\xc0\xaf:t:\xed\xa0\x80",
		"hostile:m:t:../../holds?q=1#x;y=%2F%00&amp;+ \\",
		"hostile:m:t:..",
		"hostile:m:t:/",
		"hostile:..:.:%",
		"hostile:m:t:javascript:alert(5)",
		"hostile:m:long:" + strings.Repeat("x", 1024-len("hostile:m:long:")),
		"hostile:m:long:" + strings.Repeat("\u202e", (1024-len("hostile:m:long:"))/3),
		"hostile:m:long:" + strings.Repeat("\xff", 1024-len("hostile:m:long:")),
		"hostile:" + strings.Repeat("<", 128) + ":" + strings.Repeat("\xff", 128) + ":1",
	}
}

// hostilePayloads returns payloads of the same kind.
func hostilePayloads() []string {
	return []string{
		markup, `{"html":"` + strings.ReplaceAll(markup, `"`, `\"`) + `"}`, turned, broken,
		strings.Repeat("w", 100_000), `{"a":` + strings.Repeat("[", 5000),
	}
}

// Keys, payloads, error texts, reasons and namespaces stay text with any content: they do not become markup, reverse
// the text around them, or break the page, and each one's links and actions reach just that timer.
func TestHostileText(t *testing.T) {
	t.Parallel()
	for _, l := range []look{{width: phone}, {width: wide, scriptless: true}} {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			b := openTab(t, s.url, l)
			all := hostileKeys()
			for i, key := range all {
				s.set(key, hostilePayloads()[i%len(hostilePayloads())], time.Hour+time.Duration(i)*time.Second)
			}
			s.set("hostile:m:fired:"+turned+markup, turned+markup, 20*time.Millisecond)
			s.bury("hostile:m:t:"+turned+markup, turned+markup, turned+markup+broken)
			s.hold("hostile:"+strings.NewReplacer(":", "%3A", "*", "%2A").Replace(url.PathEscape("<b>"+turned)),
				turned+markup)
			for _, e := range []event.Entry{
				{Kind: event.EntryGuarded, Subjects: []string{"hostile:m:t:ended"}, GuardUnless: turned + markup},
				{Kind: event.EntryCancel, Namespace: "hostile:m", Count: 1, By: markup + broken, Via: turned,
					Detail: strings.Repeat(turned, 50)},
			} {
				if err := streams.WriteHistory(t.Context(), s.js, streams.Config{}, e); err != nil {
					t.Fatal(err)
				}
			}

			for _, path := range []string{"/", "/timers", "/timers?q=hostile", "/dead", "/holds", "/repeating",
				"/system", "/timers/hostile:m:t:ended",
				"/timers?q=" + url.QueryEscape(markup), "/search?q=" + url.QueryEscape(markup), "/search?q=" +
					url.QueryEscape("hostile "+turned),
				"/search?q=hostile+alert", "/dead?q=" + url.QueryEscape(markup), "/timers/" + url.PathEscape(markup),
				"/" + url.PathEscape(markup)} {
				b.open(path)
				b.harmless(path)
			}
			b.forgive("404 (Not Found)")
			b.forgive("400 (Bad Request)")
			b.open("/dead")
			b.follow("tbody td.num a", "*")
			b.harmless("a dead letter")

			for i, key := range all {
				b.open("/timers?q=hostile")
				b.follow("tbody td.key a", "*") // the first
				b.harmless(key)
				b.follow(button, "Cancel…")
				b.harmless("cancelling " + key)
				b.confirm("Cancel", "1 timer")
				b.done("Done. 1 ")
				s.gone(key)
				if left := s.pending(); left != int64(len(all)-i-1) {
					t.Fatalf("%d timers are left after %q, want %d", left, key, len(all)-i-1)
				}
			}
			b.open("/system") // with these actions
			b.harmless("/system")
		})
	}
}

// harmless fails the test if anything of a hostile text has become part of the page.
func (b *tab) harmless(what string) {
	b.t.Helper()
	b.eventually(func() error { _, err := ask[string](b, "() => document.title"); return err }, "a page")
	for _, found := range must[[]string](b, `() => [...document.querySelectorAll("img, iframe, object, embed, base, body script, [onerror], [onload], [style], style, meta[http-equiv]:not(noscript *)")]
		.map(e => e.outerHTML.slice(0, 200))`) {
		b.t.Errorf("%.200q: has become markup: %s", what, found)
	}
	for _, found := range must[[]string](b, `() => [...document.querySelectorAll("a[href], form[action]")]
		.map(e => e.href ?? e.action).filter(u => new URL(u, location).origin !== location.origin
			&& u !== "https://github.com/timerd-io/timerd/blob/main/docs/inside/gaps.md")`) { // the page's own
		b.t.Errorf("%.200q: leads elsewhere: %s", what, found)
	}
	if marks := must[string](b,
		`() => (document.body.innerText.match(/[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g) ?? []).map(c => c.codePointAt(0).toString(16)).join(" ")`); marks != "" {
		b.t.Errorf("%.200q: marks that nobody sees are shown as they are: %s", what, marks)
	}
	b.readable()
}
