package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// all follows the pages of a query to the beginning, and checks that they are in order.
func all(t *testing.T, r *history.Reader, q history.Query, limit int) (records []history.Record, pages int) {
	t.Helper()
	for place := ""; ; pages++ {
		p, err := r.Search(t.Context(), q, place, limit)
		if err != nil {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, record := range p.Records {
			if n := len(records); n > 0 && record.Stored.After(records[n-1].Stored) {
				t.Fatalf("page %d: %s/%d of %v comes after %s/%d of %v", pages, record.Stream, record.Seq, record.Stored,
					records[n-1].Stream, records[n-1].Seq, records[n-1].Stored)
			}
			records = append(records, record)
		}
		if n := len(records); n > 0 && p.Place != "" && records[n-1].Stored.Before(p.Since) {
			t.Fatalf("page %d has a record of %v, and says that it has looked since %v", pages, records[n-1].Stored, p.Since)
		}
		if place = p.Place; place == "" {
			return records, pages + 1
		}
		if pages > 1000 {
			t.Fatalf("after %d pages at %s", pages, place)
		}
	}
}

// summary is what a record is, in a word.
func summary(records []history.Record) (texts []string) {
	for _, r := range records {
		text := r.Kind + " " + r.Event.Key.ID + " " + fmt.Sprint(r.Event.Attempt)
		if r.Fault != "" {
			text = r.Kind + " fault"
		}
		texts = append(texts, text)
	}
	return texts
}

// What happened to a timer is found wherever it is in a large stream, by its key and by a part of its id, with its dead
// letter among its firings, whether the stream allows direct access or not.
func TestSearch(t *testing.T) {
	const total = 120_000
	server := testenv.NATS(t)
	for _, direct := range []bool{true, false} {
		t.Run(fmt.Sprintf("direct %v", direct), func(t *testing.T) {
			names := keys.Names{Prefix: fmt.Sprintf("p%v", direct), Stream: fmt.Sprintf("S%v", direct)}
			s := newStreams(t, server, names, direct)
			const key = "pay:refund:poll:ord-42:a"
			wanted := 0
			for i := range total {
				switch {
				case i%30_000 == 10_000:
					wanted++
					s.fire(key, wanted)
				case i == 75_001:
					s.await(names.FiredStream(), uint64(i))
					s.die(key, "given up by the consumer")
					s.await(names.DeadStream(), 1)
					s.fire("pay:refund:poll:ord-421", 1)
				case i%500 == 0:
					s.fire(fmt.Sprintf("pay:refund:poll:other-%d", i), 1)
				default:
					s.fire(fmt.Sprintf("shop:order:timeout:%d", i), 1)
				}
			}
			s.await(names.FiredStream(), total)
			r := history.New(s.js, names)
			k, err := keys.Parse(key)
			if err != nil {
				t.Fatal(err)
			}
			byKey := fmt.Sprint([]string{"fired ord-42:a 4", "dead ord-42:a 16", "fired ord-42:a 3", "fired ord-42:a 2", "fired ord-42:a 1"})
			byText := fmt.Sprint([]string{"fired ord-42:a 4", "fired ord-421 1", "dead ord-42:a 16", "fired ord-42:a 3", "fired ord-42:a 2", "fired ord-42:a 1"})
			for _, c := range []struct {
				name  string
				query history.Query
				want  string
			}{
				{"key", history.Query{Key: k}, byKey},
				{"type", history.Query{Namespace: keys.Namespace{App: "pay", Module: "refund", Type: "poll"}, Text: "ord-42"}, byText},
				{"app", history.Query{Namespace: keys.Namespace{App: "pay"}, Text: "ord-42"}, byText},
				{"any", history.Query{Text: "d-42"}, byText},
				{"any part", history.Query{Namespace: keys.Namespace{Type: "poll"}, Text: "ord-42"}, byText},
				{"none", history.Query{Text: "no such order"}, "[]"},
				{"no such namespace", history.Query{Namespace: keys.Namespace{App: "shop", Module: "order", Type: "x"}}, "[]"},
				{"dead only", history.Query{Text: "ord-42", Kind: keys.Dead}, "[dead ord-42:a 16]"},
			} {
				for _, work := range []time.Duration{time.Second, 1} { // 1: each page is one window
					r.Work = work
					began := time.Now()
					records, pages := all(t, r, c.query, 2)
					if got := fmt.Sprint(summary(records)); got != c.want {
						t.Errorf("%s, work %v: %s, want %s", c.name, work, got, c.want)
					}
					t.Logf("%s, work %v: %d pages, %v", c.name, work, pages, time.Since(began))
				}
			}
		})
	}
}
