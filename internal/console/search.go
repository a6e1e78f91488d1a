package console

import (
	"net/http"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// Search is the result of a search: among waiting timers, and in the streams.
type Search struct {
	At    time.Time `json:"at"`
	Query string    `json:"query"`
	// The meaning of the query.
	Namespace string `json:"namespace,omitempty"`
	ID        string `json:"id,omitempty"`

	Waiting Waiting    `json:"waiting"`
	Past    EventsView `json:"past"`
	Next    string     `json:"-"` // the address that continues both
}

// Waiting is the result among waiting timers.
type Waiting struct {
	Rows   []TimerView `json:"timers"`
	Looked int64       `json:"looked"`
	Total  int64       `json:"total"`
	Next   string      `json:"next"` // the place= of the next page
	Done   bool        `json:"done"` // an earlier page has searched all of it
	Away   string      `json:"away,omitempty"`
	// Missing are the silent masters of a cluster; their timers are left out.
	Missing []string `json:"missing,omitempty"`
	// LeftOut says why other timers are left out: too many are owed or firing, or slots of a cluster are moving.
	LeftOut []string `json:"leftout,omitempty"`
}

// searchPage searches waiting timers and the streams.
type searchPage struct {
	*shared
	render *renderer
}

// search runs a search. A whole key leads to its page.
func (pg *searchPage) search(w http.ResponseWriter, r *http.Request) {
	text := typed(r.URL.Query(), "q")
	if key, ok := wholeKey(text); ok {
		//nolint:gosec // a path here: the key is one segment of it
		http.Redirect(w, r, "/timers/"+encodeRef(key.String()), http.StatusSeeOther)
		return
	}
	pg.render.html(pg.readSearch)(w, r)
}

// wholeKey returns the key of a text, written byte for byte or as on pages; ok is false for anything else.
func wholeKey(text string) (keys.Key, bool) {
	if decoded, err := keys.DecodeText(text); err == nil {
		text = decoded
	}
	key, err := keys.Parse(text)
	if err != nil || key.App == "*" || key.Module == "*" || key.Type == "*" {
		return keys.Key{}, false
	}
	return key, true
}

// parseSearch reads "shop:order 42", "shop:order … 42", "42", "shop:*:timeout:42".
func parseSearch(text string) (n keys.Namespace, id string, err error) {
	for _, mark := range []string{"…", "...", " "} {
		if before, after, ok := strings.Cut(text, mark); ok {
			n, err = parseNamespaceQuery(strings.TrimSpace(before))
			return n, decoded(strings.TrimSpace(after)), err
		}
	}
	parts := strings.SplitN(text, ":", 4)
	switch len(parts) {
	case 1:
		return n, decoded(text), nil
	case 4:
		n, err = parseNamespaceQuery(strings.Join(parts[:3], ":"))
		return n, decoded(parts[3]), err
	}
	n, err = parseNamespaceQuery(text)
	return n, "", err
}

func decoded(text string) string {
	if bytes, err := keys.DecodeText(text); err == nil {
		return bytes
	}
	return text
}

func (pg *searchPage) readSearch(r *http.Request) (*page, error) {
	values := r.URL.Query()
	v := &Search{At: pg.now(r.Context()), Query: typed(values, "q")}
	p := &page{Template: "search", Title: "Search", Nav: "/search", View: v}
	v.Waiting.Rows, v.Waiting.Missing, v.Past = []TimerView{}, pg.missing(), newEventsView()
	if v.Query == "" {
		v.Waiting.Done = true
		return p, nil
	}
	n, id, err := parseSearch(v.Query)
	if err != nil {
		return nil, err
	}
	if n != (keys.Namespace{}) {
		v.Namespace = n.String()
	}
	v.ID = keys.EncodeText(id)
	place, err := query.ParsePlace(values.Get("place"))
	if err != nil {
		return nil, badRequest("place= is no place in the list: "+err.Error(), "Search again.")
	}
	if v.Waiting.Done = values.Get("waiting") == "done"; !v.Waiting.Done {
		pg.searchWaiting(r, v, query.Query{Namespace: n, ID: id}, place)
	}
	if values.Get("past") != "done" {
		v.Past = pg.readEvents(r, history.Query{Namespace: n, Text: id}, values.Get("from"), 0)
	}
	v.Next = v.more(values.Get("past") == "done")
	return p, nil
}

func (pg *searchPage) searchWaiting(r *http.Request, v *Search, q query.Query, place query.Place) {
	found, err := query.Find(r.Context(), pg.sources.Index, q, place,
		query.Most{Timers: timerRows, Payload: rowPayload})
	if err != nil {
		v.Waiting.Away = err.Error()
		return
	}
	for _, t := range found.Timers {
		v.Waiting.Rows = append(v.Waiting.Rows, pg.newTimerView(t, previewBytes))
	}
	v.Waiting.Looked, v.Waiting.Total, v.Waiting.Next = found.Looked, found.Total, found.Next.String()
	v.Waiting.Done, v.Waiting.LeftOut = found.Next.IsZero(), leftOut(found)
}

// more returns the address that continues where this one ended; empty if both searches are complete.
func (v *Search) more(pastDone bool) string {
	pastDone = pastDone || v.Past.Next == ""
	waiting, place, past, from := "", v.Waiting.Next, "", v.Past.Next
	if v.Waiting.Done {
		waiting, place = "done", ""
	}
	if pastDone {
		past, from = "done", ""
	}
	if v.Waiting.Done && pastDone {
		return ""
	}
	return address("/search", "q", v.Query, "waiting", waiting, "place", place, "past", past, "from", from)
}
