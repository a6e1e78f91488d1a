package console

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// letterFilter selects dead letters.
type letterFilter struct{ Query, Text string }

func letterFilterOf(values url.Values) letterFilter {
	return letterFilter{typed(values, "q"), typed(values, "text")}
}

func (f letterFilter) selection() (admin.LetterSelection, error) {
	n, err := parseNamespaceQuery(f.Query)
	return admin.LetterSelection{Namespace: n, Text: f.Text}, err
}

func (f letterFilter) address() string { return address("/dead", "q", f.Query, "text", f.Text) }

// filter selects timers, in the words of the form.
type filter struct{ Query, State, Due string }

func filterOf(values url.Values) filter {
	return filter{typed(values, "q"), values.Get("state"), values.Get("due")}
}

// address returns the address of the list with this filter.
func (f filter) address() string {
	return address("/timers", "q", f.Query, "state", f.State, "due", f.Due)
}

// address returns the address of a page with a query of names and their values in turn, without values that are empty.
// A template must have it as a whole: behind a question mark it would encode the query again.
func address(path string, pairs ...string) string {
	values := url.Values{}
	for pair := range slices.Chunk(pairs, 2) {
		if len(pair) == 2 && pair[1] != "" {
			values.Set(pair[0], pair[1])
		}
	}
	if len(values) == 0 {
		return path
	}
	return path + "?" + values.Encode()
}

// query returns the query for the filter at a time.
func (f filter) query(now time.Time) (query.Query, error) {
	text := f.Query
	if decoded, err := keys.DecodeText(text); err == nil && strings.Count(text, ":") >= 3 {
		text = decoded // a key as it is shown; a namespace is decoded by itself
	}
	q, err := query.ParseQuery(text)
	if err != nil {
		return q, badRequest(err.Error(),
			"Give a namespace such as shop:order, or the beginning of a key such as shop:order:timeout:42.")
	}
	states := []query.State{query.StatePending, query.StateOwed, query.StateFiring, query.StateHeld}
	if f.State != "" {
		if !slices.Contains(states, query.State(f.State)) {
			return q, badRequest("There is no state “"+clip(f.State, 50)+"”.",
				"Timers are pending, owed, firing or held.")
		}
		q.States = []query.State{query.State(f.State)}
	}
	switch f.Due {
	case "":
	case "overdue":
		q.Before = now
	case "1m", "1h", "24h":
		d, _ := time.ParseDuration(f.Due) // all three parse
		q.From, q.Before = now, now.Add(d)
	default:
		return q, badRequest("There is no “due="+clip(f.Due, 50)+"”.", "Take overdue, 1m, 1h or 24h.")
	}
	return q, nil
}
