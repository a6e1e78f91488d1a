package browsertest

import "strings"

// readable fails the test if the page or, on a phone, a part of it can be scrolled sideways, if it has not one heading
// of the first level, or has barely visible parts: axe-core finds none of that.
func (b *tab) readable() {
	b.t.Helper()
	if too := must[int](b,
		"() => document.documentElement.scrollWidth - document.documentElement.clientWidth"); too > 0 {
		b.t.Errorf("the page is %d px wider than the window, by:\n\t%s", too, strings.Join(must[[]string](b, `() => [...document.body.querySelectorAll("*")]
			.filter(e => shown(e) && !e.closest(".scroll") && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
			.slice(0, 8).map(e => e.outerHTML.slice(0, 120))`), "\n\t"))
	}
	if b.look.width == phone {
		for _, part := range must[[]string](b, `() => [...document.body.querySelectorAll("*")]
			.filter(e => shown(e) && e.scrollWidth > e.clientWidth && /auto|scroll/.test(getComputedStyle(e).overflowX))
			.map(e => `+"`${e.scrollWidth} px in ${e.clientWidth}: ${e.innerText.slice(0, 120)}`"+`)`) {
			b.t.Errorf("a part has to be scrolled sideways: %s", part)
		}
	}
	if headings := must[int](b, `() => document.querySelectorAll("h1").length`); headings != 1 {
		b.t.Errorf("%d headings of the first level, want 1", headings)
	}
	if title := must[string](b, "() => document.title"); !strings.HasSuffix(title, "timerd") {
		b.t.Errorf("the title is %q, want it to end with timerd", title)
	}
	for _, text := range must[[]string](b, "faint") {
		b.t.Errorf("a label of a chart can hardly be read: %s", text)
	}
	for _, text := range must[[]string](b, "vague") {
		b.t.Errorf("the edge of a control can hardly be seen: %s", text)
	}
}
