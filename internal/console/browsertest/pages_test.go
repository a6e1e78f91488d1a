package browsertest

import (
	"net/url"
	"testing"
)

// view is a way to look at a page.
type view struct {
	name  string // of its pictures; it has none without
	reach func(b *tab)
	shows string // a text on it
}

// views returns every page of the console, in a scene.
func views() []view {
	at := func(path string) func(*tab) { return func(b *tab) { b.open(path) } }
	return []view{
		{"overview", at("/"), "dead letters"},
		{"", at("/timers?q=pay"), "pay:order:callback:"},
		{"timers", at("/timers?q=pay&limit=20"), "Next page"},
		{"timer", at("/timers/" + url.PathEscape(failing)), "Attempt 3 of 16"},
		{"search", func(b *tab) {
			b.open("/")
			b.search("pay:order 88120")
		}, failing},
		{"confirm", func(b *tab) {
			b.open("/timers?q=pay:order:callback")
			b.pick(2)
			b.follow(button, "Cancel…")
		}, "Cancel 2 timers"},
		{"repeating", at("/repeating"), "Europe/Berlin"},
		{"dead", at("/dead"), "attempts used up"},
		{"letter", func(b *tab) {
			b.open("/dead")
			b.follow("tbody td.num a", "*")
		}, "attempts used up"},
		{"holds", at("/holds"), "ticket 4711"},
		{"consumers", at("/consumers"), "Dead letters"},
		{"system", at("/system"), "TIMERS_DEAD"},
		{"", at("/system?q=shop&text=paid"), "shop:order:paid:88259 was there"},
		{"webhooks", at("/webhooks"), "merchant.example:443"},
		{"", func(b *tab) {
			b.open("/webhooks?failed=1")
			b.follow("tbody td.when a", "*")
		}, "no answer within 15s"},
		{"", at("/jobs"), "Cancel: 2 selected timers"},
	}
}

// looks returns how each of them is looked at.
func looks() []look {
	return []look{{width: wide}, {width: wide, dark: true}, {width: phone},
		{width: phone, dark: true, scriptless: true}}
}

// pictured reports whether the documents show the page in this view.
func (l look) pictured() bool { return !l.scriptless }

// Every page can be read in any light, on a phone and without JavaScript, and by those who cannot see: axe-core finds
// no fault.
func TestPages(t *testing.T) {
	t.Parallel()
	s := scene(t)
	script := axe(t)
	for _, l := range looks() {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			b := openTab(t, s.url, l)
			for _, v := range views() {
				t.Log(v.name)
				v.reach(b)
				b.sees("main", v.shows)
				b.readable()
				b.short()
				if script != "" && !l.scriptless { // axe-core is a script
					b.accessible(script)
				}
				if l.pictured() && v.name != "" {
					b.picture(v.name + "-" + l.String())
				}
			}
		})
	}
}

// mostScreens limits the length of a page on a phone.
const mostScreens = 4

// short fails the test if a page is long on a phone.
func (b *tab) short() {
	b.t.Helper()
	if b.look.width != phone {
		return
	}
	if screens := must[float64](b, "() => document.documentElement.scrollHeight / 800"); screens > mostScreens {
		b.t.Errorf("the page is %.1f screens long, want at most %d", screens, mostScreens)
	}
}
