package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The overview stays current without a reload, through a restart of timerd too.
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
	b.sees("h1", "Firing on time")
	s.limit("TIMERS_DEAD", 1)
	b.sees("main", "TIMERS_DEAD: it is full")
	must[any](b, "() => { navigator.clipboard.writeText = async text => { window.copied = text } }")
	b.click("button", "Copy")
	b.sees(".notices", "Copied")
	if copied := must[string](b, "() => window.copied"); !strings.HasPrefix(copied, "nats -s ") {
		t.Errorf("copied %q, want the command alone", copied)
	}
	s.limit("TIMERS_DEAD", -1)
	s.hold("live:held", "the provider is down")
	b.sees("main", "the provider is down")
	same()

	s.stop()
	s.start()
	s.set("live:m:fires:43", `{"order":43}`, 20*time.Millisecond)
	b.sees("main", "live:m:fires:43")
	b.forgive("net::ERR_") // while it was away
}

// Times are in UTC. A browser elsewhere has them in its own zone too: of a timer beside it, else under the pointer.
func TestTimesOfTheBrowser(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.set("shop:order:timeout:42", "{}", time.Hour)
	b := openTab(t, s.url, look{width: wide})
	b.zone("Asia/Shanghai")
	b.open("/timers/shop%3Aorder%3Atimeout%3A42")
	b.sees("dd time", " GMT+8")
	b.open("/timers")
	b.click("td.when time", "*")
	b.eventually(func() error {
		title, err := ask[string](b, "() => document.querySelector('td.when time').title")
		if err == nil && (!strings.Contains(title, " UTC, ") || !strings.HasSuffix(title, " GMT+8")) {
			err = fmt.Errorf("the title is %q", title)
		}
		return err
	}, "the time in the browser's zone")
}

// limit has a stream take no more than so many messages; -1: any number.
func (s *system) limit(name string, most int64) {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.MaxMsgs, config.Discard = most, jetstream.DiscardNew
	if _, err := s.js.UpdateStream(s.t.Context(), config); err != nil {
		s.t.Fatal(err)
	}
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
