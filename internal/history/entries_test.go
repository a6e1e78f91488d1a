package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// note writes an entry.
func (s *fixture) note(e event.Entry) {
	s.t.Helper()
	e.Time = time.Now()
	if err := streams.WriteHistory(s.t.Context(), s.js, streams.Config{Names: s.names}, e); err != nil {
		s.t.Fatal(err)
	}
}

// words describes the entries among records.
func words(records []history.Record) (all []string) {
	for _, r := range records {
		switch {
		case r.Fault != "":
			all = append(all, r.Kind+" fault")
		case r.Kind == keys.History || r.Kind == keys.Operator:
			all = append(all, history.Words(r.Entry))
		default:
			all = append(all, r.Kind)
		}
	}
	return all
}

// A timer's ends without an event, and the actions on it or on its namespace, are found among its events; the last
// actions of all are found among the ends of many timers, and hostile messages have their faults.
func TestSearchFindsTheHistory(t *testing.T) {
	t.Parallel()
	const key = "shop:order:timeout:\xffA-42"
	names := keys.Names{Prefix: "x.y", Stream: "X"}
	s := newStreams(t, testenv.NATS(t), names)
	r := history.New(s.js, names).WithFirstWindow(100)
	r.Work, r.LogWait = time.Minute, time.Minute // a busy machine needs more than a second
	if p, err := r.Search(t.Context(), history.Query{Kind: keys.Operator}, "", 0); err == nil {
		t.Errorf("without the stream: %+v", p)
	}
	s.fire(key, 1)
	s.await(names.FiredStream(), 1)
	subject := []string{keys.EncodeText(key)}
	s.note(event.Entry{Kind: event.EntryHold, Namespace: "pay"})
	s.note(event.Entry{Kind: event.EntryCancel, Namespace: "shop:*:timeout", Count: 12, Detail: "due before noon"})
	s.note(event.Entry{Kind: event.EntryGuarded, Subjects: subject, GuardUnless: "shop:order:paid:42"})
	text, err := event.Entry{Kind: event.EntryGuarded, Subjects: []string{"shop:order:timeout:B"}}.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	const others = 3000
	for i := range others {
		if i%3 == 0 {
			s.publish("x.y.history.pay.order.timeout", nil, text) // of another subject
			continue
		}
		s.publish("x.y.history.shop.order.timeout", nil, text)
	}
	s.publish("x.y.history.operator.hold", nil, text)
	s.publish("x.y.history.operator.hold", nil, []byte("<b>no entry</b>"))
	s.await(names.HistoryStream(), others+5)
	s.note(event.Entry{Kind: event.EntryMove, Subjects: subject, Count: 1, Detail: "to noon"})
	byKey := []string{"moved shop:order:timeout:%FFA-42, to noon", "did not fire: shop:order:paid:42 was there",
		"cancelled 12 timers of shop:*:timeout, due before noon", "fired"}
	for _, work := range []time.Duration{time.Second, 1} {
		r.Work = work
		if got := words(all(t, r, history.Query{Key: parseKey(t, key)}, 2)); fmt.Sprint(got) != fmt.Sprint(byKey) {
			t.Errorf("by key: %q", got)
		}
		want := []string{byKey[0], "history.operator fault", "history.operator fault", byKey[2], "put pay on hold"}
		if got := words(all(t, r, history.Query{Kind: keys.Operator}, 3)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("actions: %q", got)
		}
	}
	r.Work = time.Minute
	s.note(event.Entry{Kind: event.EntryDropped, Subjects: subject})
	s.note(event.Entry{Kind: event.EntryGuarded, Subjects: subject, GuardIf: "pay:live"})
	for why, want := range map[string]string{
		"PAID:42": "[did not fire: shop:order:paid:42 was there]", "pay:": "[did not fire: pay:live was not there]",
		"<b>": "[]",
	} {
		q := history.Query{Kind: keys.History, Entry: event.EntryGuarded, Why: why}
		if got := words(all(t, r, q, 2)); fmt.Sprint(got) != want {
			t.Errorf("guarded by %s: %q, want %s", why, got, want)
		}
	}
	p, err := r.Search(t.Context(), history.Query{Text: "A-42"}, "", 0)
	if got := words(p.Records); err != nil || fmt.Sprint(got) != "[fired]" {
		t.Errorf("by text: %q, %v", got, err)
	}
}
