package system

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Collect follows the fired events.
func (s *System) Collect() *testenv.Collector {
	s.T.Helper()
	return testenv.Collect(s.T, s.JS, "TIMERS")
}

// LastEvent returns the number of the last event in TIMERS.
func (s *System) LastEvent() uint64 {
	s.T.Helper()
	stream, err := s.JS.Stream(s.T.Context(), "TIMERS")
	if err != nil {
		s.T.Fatal(err)
	}
	return stream.CachedInfo().State.LastSeq
}

// ShortestWindow gives TIMERS the shortest duplicate window that timerd takes, and returns it.
func (s *System) ShortestWindow() time.Duration {
	s.T.Helper()
	stream, err := s.JS.Stream(s.T.Context(), "TIMERS")
	if err != nil {
		s.T.Fatal(err)
	}
	config := stream.CachedInfo().Config
	config.Duplicates = 30 * time.Second
	if _, err := s.JS.UpdateStream(s.T.Context(), config); err != nil {
		s.T.Fatal(err)
	}
	return config.Duplicates
}

// perEvent is added to Patience for each event of a long wait.
const perEvent = 20 * time.Millisecond

// Events waits for n events and returns them decoded, after checking the rules for every event: its id is its message's
// id and unique, its subject its key's, and it was not published before it was due.
func (s *System) Events(c *testenv.Collector, n int) []event.Event {
	s.T.Helper()
	var all []event.Event
	for _, m := range c.Wait(n, Patience+time.Duration(n)*perEvent) {
		e, err := event.Parse(m.Data)
		if err != nil {
			s.T.Fatalf("message %q: %v", m.Data, err)
		}
		if e.ID != m.ID() {
			s.T.Errorf("event %s in message %s", e.ID, m.ID())
		}
		if want := e.Key.Subject("timers", keys.Fired); m.Subject != want {
			s.T.Errorf("event %s on %s, want %s", e.ID, m.Subject, want)
		}
		if e.Time.Before(e.Due) {
			s.T.Errorf("event %s was published %s before it was due", e.ID, e.Due.Sub(e.Time))
		}
		if want := keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt); e.ID != want {
			s.T.Errorf("event %s, want id %s", e.ID, want)
		}
		all = append(all, e)
	}
	if d := c.DuplicateIDs(); len(d) > 0 {
		s.T.Errorf("in the stream more than once: %q", d)
	}
	return all
}

// Payloads returns "key=payload" of events, sorted; a missing payload is its
// status in angle brackets.
func Payloads(all []event.Event) []string {
	var out []string
	for _, e := range all {
		data := string(e.Data)
		if e.Status != "" {
			data = "<" + e.Status + ">"
		}
		out = append(out, e.Key.String()+"="+data)
	}
	slices.Sort(out)
	return out
}

// Expect waits for exactly these events, given as payloads does.
func (s *System) Expect(c *testenv.Collector, want ...string) []event.Event {
	s.T.Helper()
	all := s.Events(c, len(want))
	slices.Sort(want)
	if got := Payloads(all); !slices.Equal(got, want) {
		s.T.Fatalf("fired\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	return all
}

// Settled waits until the index holds nothing but tombstones, and what tells which server's data they are.
func (s *System) Settled() {
	s.T.Helper()
	p := keys.Single
	testenv.Eventually(s.T, Patience, func() error {
		for _, field := range s.RDB.HKeys(s.T.Context(), p.Data()).Val() {
			if field != ":i:" && field != ":s:" && field != ":w:" {
				return fmt.Errorf("%s has %s", p.Data(), field)
			}
		}
		for _, name := range []string{p.Due(), p.Firing(), p.FiringData()} {
			if n := s.RDB.Exists(s.T.Context(), name).Val(); n != 0 {
				text, _ := json.Marshal(s.RDB.ZRange(s.T.Context(), p.Due(), 0, 9).Val())
				return fmt.Errorf("%s is not empty; due: %s", name, text)
			}
		}
		return nil
	}, "the index to be empty")
}

// Balances waits until timerd account finds no difference.
func (s *System) Balances() {
	s.T.Helper()
	testenv.Eventually(s.T, Patience, func() error {
		if code, out, errs := s.Run("", "account"); code != 0 {
			return fmt.Errorf("%s%s", out, errs)
		}
		return nil
	}, "an account without a difference")
}

// AtLeast waits for some messages, with more to come.
func AtLeast(n int) func([]testenv.Message) error {
	return func(all []testenv.Message) error {
		if len(all) < n {
			return fmt.Errorf("%d messages so far, want %d", len(all), n)
		}
		return nil
	}
}

// Letters waits for exactly n dead letters.
func (s *System) Letters(n int) []event.Event {
	s.T.Helper()
	var all []event.Event
	for _, m := range testenv.Collect(s.T, s.JS, "TIMERS_DEAD").Wait(n, Patience+time.Duration(n)*perEvent) {
		e, err := event.Parse(m.Data)
		if err != nil || e.Type != event.TypeDead || m.ID() != e.ID || m.Subject != e.Key.Subject("timers", keys.Dead) {
			s.T.Fatalf("dead letter %s on %s: %v", m.Data, m.Subject, err)
		}
		all = append(all, e)
	}
	return all
}

// OnTime checks that the timers of an app, set since the start of watch, fired in time, and logs their lateness. The
// bound is a loose one, and does not count stalls of the machine: the point is that they did not wait for others.
func (s *System) OnTime(watch testenv.Stopwatch, all []event.Event, app string) {
	s.T.Helper()
	var late []time.Duration
	for _, e := range all {
		if e.Key.App == app {
			late = append(late, e.Time.Sub(e.Due))
		}
	}
	slices.Sort(late)
	s.T.Logf("%d timers of %s: p50 %v, p99 %v late", len(late), app, late[len(late)/2], late[len(late)*99/100])
	watch.Late(s.T, late[len(late)-1], 4*time.Second, "the latest timer of "+app)
}

// Late waits for exactly n dead letters of timers that were too late, and returns them by the ids of the timers.
func (s *System) Late(n int) map[string]event.Event {
	s.T.Helper()
	all := map[string]event.Event{}
	for _, e := range s.Letters(n) {
		if !strings.HasPrefix(e.DeadReason, event.ReasonLate) {
			s.T.Errorf("the reason of %s is %q", e.Key, e.DeadReason)
		}
		all[e.Key.ID] = e
	}
	return all
}
