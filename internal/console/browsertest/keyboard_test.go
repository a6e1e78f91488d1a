package browsertest

import (
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
)

// focus is the element that has it.
type focus struct {
	Tag, Type, Name string
	Outline         float64 // px
	InView          bool
	At              int // its place in the document
}

// focused returns it; nil if the page as a whole has the focus.
func (b *tab) focused() *focus {
	b.t.Helper()
	return must[*focus](b, "focused")
}

// mostTabs is more than any page has to be stepped through.
const mostTabs = 400

// The tab key reaches every control, in document order, and the focus is visible.
func TestKeyboardReachesEverything(t *testing.T) {
	t.Parallel()
	s := scene(t)
	for _, l := range []look{{width: wide}, {width: phone, dark: true}} {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			b := openTab(t, s.url, l)
			for _, v := range views() {
				for again := 0; ; again++ {
					v.reach(b)
					b.sees("main", v.shows)
					if b.reachable(v.name) {
						break
					}
					if again == 5 {
						t.Fatalf("%s: its controls keep changing", v.name)
					}
				}
			}
		})
	}
}

// reachable checks that the tab key reaches every control of a page just opened. It returns false, without a verdict,
// if it missed some and the page got other controls meanwhile, as by a fault of a busy machine.
func (b *tab) reachable(name string) bool {
	b.t.Helper()
	controls := func() []string { return must[[]string](b, `() => usable().map(([, text]) => text)`) }
	before := controls()
	reached := b.stepThrough(name)
	missed := must[[]string](b,
		`reached => usable().filter(([at]) => !reached.includes(at)).map(([, text]) => text)`, reached)
	if len(missed) > 0 && !slices.Equal(before, controls()) {
		return false
	}
	for _, text := range missed {
		b.t.Errorf("%s: cannot be reached by keyboard: %s", name, text)
	}
	return true
}

// stepThrough presses the tab key until the page ends, and returns the places of the elements that had the focus.
func (b *tab) stepThrough(name string) (reached []int) {
	b.t.Helper()
	for range mostTabs {
		b.press(kb.Tab)
		f := b.focused()
		if f == nil || len(reached) > 0 && f.At <= reached[len(reached)-1] {
			break
		}
		if len(reached) == 0 && f.Name != "To the content" {
			b.t.Errorf("%s: the first step leads to %+v, not to the content", name, *f)
		}
		if f.Outline < 2 || !f.InView {
			b.t.Errorf("%s: it does not show that it has the focus: %+v", name, *f)
		}
		reached = append(reached, f.At)
	}
	return reached
}

// steps presses the tab key until something has the focus that is called so.
func (b *tab) steps(name string) {
	b.t.Helper()
	for range mostTabs {
		b.press(kb.Tab)
		if must[bool](b, "name => document.activeElement && fits(words(document.activeElement), name)", name) {
			return
		}
	}
	b.t.Fatalf("no steps lead to %s", name)
}

// Whoever has no mouse finds a timer and cancels it, and selects two and fires them.
func TestKeyboardAlone(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := s.setMany("keyboard:m:t", 5, time.Hour)
	b := openTab(t, s.url, look{width: wide})
	b.open("/")
	b.press(kb.Tab)
	b.press(kb.Enter) // to the content
	b.press(kb.Tab)
	if f := b.focused(); f == nil ||
		!must[bool](b, `() => document.querySelector("main").contains(document.activeElement)`) {
		t.Errorf("behind the skip link the focus is at %+v, not in the content", f)
	}
	b.open("/")
	b.steps("Find a timer")
	b.write(all[0])
	b.leave(func() { b.press(kb.Enter) })
	b.sees("h1", all[0])
	b.steps("Cancel…")
	b.leave(func() { b.press(kb.Enter) })
	b.sees("main", "1 timer")
	b.steps("Cancel 1 timer*")
	b.leave(func() { b.press(kb.Enter) })
	b.done("Done. 1 ")
	s.gone(all[0])

	b.open("/timers?q=keyboard")
	b.steps("select " + all[1])
	b.press(" ")
	b.steps("select " + all[2])
	b.press(" ")
	b.sees("main", "2 selected")
	b.steps("Fire now…")
	b.leave(func() { b.press(" ") })
	b.sees("main", "2 timers")
	b.steps("Fire 2 timers*")
	b.leave(func() { b.press(kb.Enter) })
	b.done("Done. 2 ")
	s.collect("keyboard:m:t", 2)

	b.steps("Go back")
	b.leave(func() { b.press(kb.Enter) })
	b.sees("h1", "Timers")
}
