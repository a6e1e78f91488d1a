package console

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// guardedRows is the number of guarded timers on the system's page, which is to fit on four screens of a phone.
const guardedRows = 8

// Guarded are timers that their guards have ended: no event, no dead letter. The latest come first.
type Guarded struct {
	Query string      `json:"query"` // a namespace
	Text  string      `json:"text"`  // a part of the guard's key
	Rows  []EntryView `json:"timers"`
	Next  string      `json:"next"`           // the place= of the next page; empty at the end
	Full  bool        `json:"full"`           // the page is full; if not, and Next is set, a search reached its time limit
	Since *time.Time  `json:"since"`          // entries stored since then were searched; null: all
	Away  string      `json:"away,omitempty"` // why they cannot be shown now
	First bool        `json:"-"`
}

// guarded returns the page of guarded timers for a request. Its error is a bad request. The first page without a
// filter, which is a part of the system's page, may be some seconds old.
func (pg *systemPage) guarded(r *http.Request) (g Guarded, err error) {
	values := r.URL.Query()
	place := values.Get("place")
	g = Guarded{Query: typed(values, "q"), Text: typed(values, "text"), Rows: []EntryView{}, First: place == ""}
	n, err := parseNamespaceQuery(g.Query)
	if err != nil {
		return g, err
	}
	if g.First && !g.Filter() {
		if last := pg.lastGuarded.get(r.Context()); last != nil {
			return *last, nil
		}
		g.Away = "they were not read in time"
		return g, nil
	}
	err = pg.searchGuarded(r.Context(), &g, n, place)
	return g, err
}

// readGuarded reads the last guarded timers.
func (s *shared) readGuarded(ctx context.Context) *Guarded {
	g := &Guarded{Rows: []EntryView{}, First: true}
	_ = s.searchGuarded(ctx, g, keys.Namespace{}, "") // no bad request
	return g
}

// searchGuarded adds the guarded timers of a namespace, from a place on. Its error is a bad request.
func (s *shared) searchGuarded(ctx context.Context, g *Guarded, n keys.Namespace, place string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.sources.History.Work)
	defer cancel()
	found, err := s.sources.History.Search(ctx, history.Query{Kind: keys.History, Entry: event.EntryGuarded,
		Namespace: n, Why: g.Text}, place, guardedRows)
	switch {
	case errors.Is(err, history.ErrPlace):
		return badRequest("place= is no place in the list.", "Begin at the first page.")
	case err != nil && !errors.Is(err, history.ErrNoStream): // the first end makes the stream
		g.Away = err.Error()
	}
	for _, record := range found.Records {
		g.Rows = append(g.Rows, newEntryView(record))
	}
	g.Next, g.Full, g.Since = found.Place, len(found.Records) == guardedRows, timeOrNil(found.Since)
	return nil
}

// Filter reports whether a filter is set.
func (g Guarded) Filter() bool { return g.Query != "" || g.Text != "" }

// Beginning returns the address of the first page.
func (g Guarded) Beginning() string { return guardedAt("q", g.Query, "text", g.Text) }

// More returns the address of the next page.
func (g Guarded) More() string { return guardedAt("q", g.Query, "text", g.Text, "place", g.Next) }

// guardedAt returns the address of the guarded timers with a query.
func guardedAt(pairs ...string) string { return address("/system", pairs...) + "#guards" }

// Guard returns the key of the guard that ended a timer; empty if unknown.
func (v EntryView) Guard() string { return cmp.Or(v.GuardUnless, v.GuardIf) }
