package browsertest

import (
	"testing"
	"time"
)

// The overview follows what happens without being loaded again, through a restart of timerd too.
func TestOverviewIsLive(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	b := openTab(t, s.url, look{width: wide})
	b.open("/")
	b.sees("main", "Nothing has fired yet")
	must[any](b, "() => { window.same = true }")
	same := func() {
		t.Helper()
		if !must[bool](b, "() => window.same === true") {
			t.Error("the page was loaded again")
		}
	}
	b.sees("main", "0 pending")
	s.setMany("live:m:t", 7, time.Hour)
	b.sees("main", "7 pending")
	s.set("live:m:fires:42", `{"order":42}`, 20*time.Millisecond)
	b.sees("main", "live:m:fires:42")
	s.bury("live:m:t:dead", "{}", "no answer")
	b.sees("main", "1 dead letters")
	s.hold("live:held", "the provider is down")
	b.sees("main", "the provider is down")
	same()

	s.stop()
	s.start()
	s.set("live:m:fires:43", `{"order":43}`, 20*time.Millisecond)
	b.sees("main", "live:m:fires:43")
	b.forgive("net::ERR_") // while it was away
}

// Without JavaScript the overview is as fresh as its loading.
func TestOverviewWithoutScript(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	b := openTab(t, s.url, look{width: wide, scriptless: true})
	s.setMany("live:m:t", 7, time.Hour)
	b.open("/")
	b.sees("main", "7 pending")
	s.set("live:m:fires:42", `{"order":42}`, 20*time.Millisecond)
	s.collect("live:m:fires", 1)
	s.until(func() error {
		b.open("/")
		return b.shows("main", "live:m:fires:42")
	}, "the firing")
}
