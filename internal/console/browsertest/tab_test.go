package browsertest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/remote"
)

// patience bounds every wait of these tests on a slow machine. It says nothing about how long things should take.
const patience = 30 * time.Second

// Widths of a window, in CSS pixels.
const (
	wide  = 1280
	phone = 360
)

// look is how a page is looked at.
type look struct {
	width      int64
	dark       bool
	scriptless bool // without JavaScript
}

// String names the look in the names of tests and pictures.
func (l look) String() string {
	name := "light"
	switch {
	case l.width == phone:
		name = "phone"
	case l.dark:
		name = "dark"
	}
	if l.scriptless {
		name += "-scriptless"
	}
	return name
}

// tab is a tab of the browser that shares nothing with others. Its methods are for the test's goroutine.
type tab struct {
	t    *testing.T
	ctx  context.Context
	look look
	base string // the prefix of paths for open

	mu         sync.Mutex
	requested  []string // URLs
	complaints []string // of the browser, about the pages
}

// openTab opens a tab that is closed when the test ends. The test fails if a page then has asked for anything from
// elsewhere, broken the rules of its Content-Security-Policy, or had an error.
func openTab(t *testing.T, base string, l look) *tab {
	t.Helper()
	allocator, cancel := remote.NewAllocator(t.Context(), os.Getenv(devToolsVariable), remote.NoModifyURL)
	t.Cleanup(cancel)
	b := &tab{t: t, look: l, base: base}
	first, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(first); err != nil {
		t.Fatal(err)
	}
	b.ctx, cancel = chromedp.NewContext(first, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.note))
	t.Cleanup(func() {
		b.quiet()
		cancel()
	})
	if err := chromedp.Do(b.ctx); err != nil { // the tab lasts as long as the context of its first use
		t.Fatal(err)
	}
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	b.size(800)
	b.zone("UTC")
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	// as if each were in front
	command(b, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
	command(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: l.scriptless})
	return b
}

// zone gives the browser a time zone.
func (b *tab) zone(name string) {
	b.t.Helper()
	command(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: name})
}

// size gives the window a height; its width is that of the look.
func (b *tab) size(height int64) {
	b.t.Helper()
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: b.look.width, Height: height, DeviceScaleFactor: 1, Mobile: b.look.width == phone,
	})
}

// note keeps the browser's messages.
func (b *tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requested = append(b.requested, e.Request.URL)
	case *cdplog.EventEntryAdded:
		b.complaints = append(b.complaints, fmt.Sprintf("%s: %s: %s %s", e.Entry.Source, e.Entry.Level, e.Entry.Text,
			e.Entry.URL))
	case *runtime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, "console: "+string(e.Type))
	case *page.EventJavascriptDialogOpening:
		b.complaints = append(b.complaints, "a dialog: "+e.Message)
	case *runtime.EventExceptionThrown:
		b.complaints = append(b.complaints, fmt.Sprintf("%v", e.ExceptionDetails))
	}
}

// quiet fails the test if a page has asked for anything from elsewhere or the browser has complained.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range slices.Compact(slices.Sorted(slices.Values(b.requested))) {
		if !strings.HasPrefix(url, b.base) && url != "about:blank" {
			b.t.Errorf("a page asked for %s, which is elsewhere", url)
		}
	}
	for _, complaint := range b.complaints {
		b.t.Errorf("the browser complains: %s", complaint)
	}
}

// forgive forgets the complaints so far that contain a text: the test has brought them about.
func (b *tab) forgive(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complaints = slices.DeleteFunc(b.complaints, func(c string) bool { return strings.Contains(c, text) })
}

// within returns a context that bounds one command of the browser.
func (b *tab) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, patience)
}

// do runs actions in turn.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := b.within()
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}
