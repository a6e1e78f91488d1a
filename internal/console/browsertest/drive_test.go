package browsertest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/timerd-io/timerd/internal/testenv"
)

//go:embed page.js
var pageScript string

// What can be pressed, as selectors.
const (
	button = "button, input[type=submit], a.button, [role=button], summary"
	link   = "a[href]"
)

// ask calls a JavaScript function with arguments, and returns its result; it can use all of page.js. It fails while the
// page is being left.
func ask[T any](b *tab, function string, args ...any) (T, error) {
	ctx, cancel := b.within()
	defer cancel()
	list, err := json.Marshal(append([]any{}, args...))
	if err != nil {
		var none T
		return none, err
	}
	expression := fmt.Sprintf("(() => {%s\nreturn (%s)(...%s)})()", pageScript, function, list)
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// must is ask of a page that stays.
func must[T any](b *tab, function string, args ...any) T {
	b.t.Helper()
	var result T
	b.eventually(func() (err error) {
		result, err = ask[T](b, function, args...)
		return err
	}, function)
	return result
}

// command runs a command of the DevTools protocol.
func command[P, R any](b *tab, cmd cdp.Command[P, R], params P) R {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	result, err := chromedp.Call(ctx, cmd, params)
	if err != nil {
		b.t.Fatal(err)
	}
	return result
}

// eventually polls until cond returns nil.
func (b *tab) eventually(cond func() error, what string) {
	b.t.Helper()
	testenv.Eventually(b.t, patience, cond, what)
}

// open loads a page of the console.
func (b *tab) open(path string) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if err := chromedp.Do(ctx, chromedp.Navigate(b.base+path)); err != nil {
		b.t.Fatalf("open %s: %v", path, err)
	}
}

// leave does an action that leads to another page, and waits for the page.
func (b *tab) leave(by func()) {
	b.t.Helper()
	must[any](b, "() => { window.left = true }")
	by()
	b.eventually(func() error {
		there, err := ask[bool](b, `() => !window.left && document.readyState === "complete"`)
		if err == nil && !there {
			err = fmt.Errorf("still at %s", must[string](b, "() => location.href"))
		}
		return err
	}, "another page")
}

// click clicks the control with a name, with the mouse.
func (b *tab) click(selector, name string) {
	b.t.Helper()
	at := must[[]float64](b, "place", selector, name)
	b.do(chromedp.MouseClickXY(at[0], at[1]))
}

// follow clicks a control that leads to another page. A page about to reload may not have it yet: it leaves the page
// that has it.
func (b *tab) follow(selector, name string) {
	b.t.Helper()
	must[[]float64](b, "place", selector, name)
	b.leave(func() { b.click(selector, name) })
}

// set gives a field a value.
func (b *tab) set(selector, name, value string) {
	b.t.Helper()
	must[any](b, "set", selector, name, value)
}

// press presses keys.
func (b *tab) press(keys string, modifiers ...chromedp.Modifier) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
}

// write enters a text where the focus is, as a keyboard does that knows all of it.
func (b *tab) write(text string) {
	b.t.Helper()
	command(b, input.InsertText, input.InsertTextParams{Text: text})
}

// text returns the readable text of an element.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return must[string](b, "s => document.querySelector(s)?.innerText ?? ''", selector)
}

// sees waits until an element shows a text.
func (b *tab) sees(selector, text string) {
	b.t.Helper()
	b.eventually(func() error { return b.shows(selector, text) }, fmt.Sprintf("the text %q", text))
}

// squeeze makes one blank of all that separates words.
func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }

// search enters a text where timers are searched for.
func (b *tab) search(text string) {
	b.t.Helper()
	b.set("form[role=search] input[type=search]", "", text)
	b.leave(func() { b.press(kb.Enter) })
}

// pick selects the first n of a list.
func (b *tab) pick(n int) {
	b.t.Helper()
	for i := range n {
		b.click(fmt.Sprintf("tbody tr:nth-child(%d) input[type=checkbox]", i+1), "*")
	}
}

// shows returns an error unless an element shows a text now.
func (b *tab) shows(selector, text string) error {
	got, err := ask[string](b, "s => [...document.querySelectorAll(s)].map(e => e.innerText).join('\\n')", selector)
	if err == nil && !strings.Contains(squeeze(got), text) {
		err = fmt.Errorf("%s shows %.1000q", selector, squeeze(got))
	}
	return err
}
