package browsertest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client/admin"
)

// clicked is the number of pages of a long list opened by clicks; the browser fetches the others by the same links,
// without drawing them.
const clicked = 15

// listed is a page of the list of timers.
type listed struct {
	Keys []string
	Next string // the address of the next page; empty at the end
}

// readList reads the page at an address without opening it; the open one without an address.
const readList = `async at => {
	const text = at && await (await fetch(at)).text();
	const page = at ? new DOMParser().parseFromString(text, "text/html") : document;
	const next = [...page.querySelectorAll("a")].find(e => e.textContent === "Next page");
	const keys = [...page.querySelectorAll("tbody td.key a")].map(e => e.textContent);
	return { Keys: keys, Next: next ? next.getAttribute("href") : "" };
}`

// Paging through the list shows each of 10,000 timers once, by due time.
func TestTenThousandTimers(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	want := s.setMany("list:many:t", 10_000, time.Hour)
	b := openTab(t, s.url, look{width: wide})
	b.open("/timers")
	b.sees("main", "10,000")
	var got []string
	for range clicked {
		got = append(got, must[listed](b, readList, "").Keys...)
		b.follow(link, "Next page")
	}
	page := must[listed](b, readList, "")
	for got = append(got, page.Keys...); page.Next != "" && len(got) <= len(want); got = append(got, page.Keys...) {
		page = must[listed](b, readList, page.Next)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d timers from %.3v to %.3v, want %d, each once and in order", len(got), got[:1], got[len(got)-1:],
			len(want))
	}
}

// One search shows the fate of an order: a timer that is pending, one that has fired, a dead letter.
func TestSearch(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.set("shop:order:timeout:42", `{"order":42}`, time.Hour)
	s.set("shop:order:timeout:1042-7", `{"order":1042}`, time.Hour)
	s.set("shop:order:remind:42", `{"order":42}`, 20*time.Millisecond)
	s.set("shop:cart:remind:42", `{"cart":42}`, time.Hour)
	s.bury("shop:order:ship:42", `{"order":42}`, "503 Service Unavailable")
	s.collect("shop:order:remind", 1)
	for _, l := range []look{{width: wide}, {width: phone, scriptless: true}} {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			b := openTab(t, s.url, l)
			b.open("/")
			b.search("shop:order:timeout:42")
			b.sees("h1", "shop:order:timeout:42")
			b.sees("main", "pending")

			b.search("shop:order 42")
			for _, key := range []string{"shop:order:timeout:42", "shop:order:timeout:1042-7", "shop:order:remind:42",
				"shop:order:ship:42"} {
				b.sees("main", key)
			}
			if text := b.text("main"); strings.Contains(text, "shop:cart") {
				t.Errorf("it shows more than asked for:\n%s", text)
			}
			b.follow("main a", "shop:order:remind:42*")
			b.sees("h1", "shop:order:remind:42")
			b.sees("main", "Fired")

			b.search("shop:order nothing-like-it")
			b.sees("main", "nothing-like-it")
			if text := b.text("main"); strings.Contains(text, "shop:order:timeout") {
				t.Errorf("it shows more than asked for:\n%s", text)
			}
		})
	}
}

// An empty page explains how to get content.
func TestEmptyPages(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	b := openTab(t, s.url, look{width: phone})
	for path, want := range map[string]string{
		"/": "redis-cli", "/timers": "redis-cli", "/repeating": "timerd repeat", "/dead": "dead letter",
		"/consumers": "No program has a durable consumer", "/system": "TIMERS_RETRY",
		"/webhooks":                           "timerd deliver",
		"/holds":                              "No namespace is on hold",
		"/timers/shop%3Aorder%3Atimeout%3A42": "shop:order:timeout:42", "/timers/nokey": "Not a timer's key",
	} {
		b.open(path)
		b.sees("main", want)
		b.readable()
	}
	b.forgive("404 (Not Found)") // for the timers that are not there
}

// Where actions are off there are none, and the pages say so.
func TestLooksOnly(t *testing.T) {
	t.Parallel()
	s := newSystem(t, "TIMERD_CONSOLE_ACTIONS=off")
	s.set("shop:order:timeout:42", "{}", time.Hour)
	s.bury("shop:order:timeout:43", "{}", "no answer")
	if _, err := s.operator.Hold(t.Context(), "shop:cart", admin.Reason("down")); err != nil {
		t.Fatal(err)
	}
	b := openTab(t, s.url, look{width: wide})
	for _, path := range []string{"/", "/timers", "/timers/shop%3Aorder%3Atimeout%3A42", "/repeating", "/dead",
		"/holds", "/consumers", "/system", "/webhooks"} {
		b.open(path)
		b.sees("header", "read-only")
		if forms := must[[]string](b,
			`() => [...document.forms].filter(f => f.method !== "get").map(f => f.outerHTML.slice(0, 200))`); len(
			forms) > 0 {
			t.Errorf("%s: has forms that change something: %s", path, forms)
		}
		if boxes := must[int](b, `() => document.querySelectorAll("input[type=checkbox]").length`); boxes > 0 {
			t.Errorf("%s: lets one select", path)
		}
	}
}
