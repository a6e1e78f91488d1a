package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

const (
	// nextShown is the number of next occurrences shown.
	nextShown = 5
	// repeatingRows is the number of rows on a page.
	repeatingRows = 50
	// repeatingLooked limits, about, the keys that a page reads and sorts.
	repeatingLooked = 20_000
)

// Repeating is the page of repeating timers.
type Repeating struct {
	At    time.Time       `json:"at"`
	Query string          `json:"query"`
	Rows  []RepeatingView `json:"timers"` // by key, among the keys read
	Found int             `json:"found"`  // matching keys among the keys read
	// Looked is the number of keys read. If there are more, their pages follow after the pages of these.
	Looked int    `json:"looked"`
	Cut    bool   `json:"cut"`  // not all keys were read
	Begins bool   `json:"-"`    // it is the first page
	Next   string `json:"next"` // the after= of the next page; empty at the end
	// Missing are the silent masters of a cluster; their timers are left out.
	Missing []string `json:"missing,omitempty"`
	// LeftOut says why other timers are left out: slots of a cluster are moving.
	LeftOut []string `json:"leftout,omitempty"`
}

// RepeatingView is a repeating timer.
type RepeatingView struct {
	Key        string      `json:"key"`
	Ref        string      `json:"ref"`
	Repeat     string      `json:"repeat"`     // every 5m0s; cron 0 9 * * 1-5 Europe/Berlin
	Occurrence int64       `json:"occurrence"` // of the pending or firing one
	Next       []time.Time `json:"next"`       // the next five
	Zone       string      `json:"zone"`       // of a cron expression; UTC for an interval; empty if unknown
	Until      *time.Time  `json:"until"`
	Times      int64       `json:"times,omitempty"` // occurrences in all; 0: no end
	Payload    Payload     `json:"payload"`
	IsHeld     bool        `json:"held"`
	Unknown    bool        `json:"unknown,omitempty"` // too many of its timers are owed or firing to read the rest now

	Name keyText `json:"-"`

	location *time.Location // of Zone; nil if unknown
}

// zoneLayout is the format of an occurrence in its zone.
const zoneLayout = "Mon 2006-01-02 15:04:05 -07:00"

// InZone returns a time in the zone of the expression; empty if that is UTC or unknown.
func (v *RepeatingView) InZone(t time.Time) string {
	if v == nil || v.location == nil || v.location.String() == time.UTC.String() {
		return ""
	}
	return t.In(v.location).Format(zoneLayout)
}

// repeatingPage reads the page.
type repeatingPage struct{ *shared }

// repeating reads the repeating timers.
func (pg *repeatingPage) repeating(r *http.Request) (*page, error) {
	text := typed(r.URL.Query(), "q")
	v := &Repeating{At: pg.now(r.Context()), Query: text, Rows: []RepeatingView{}, Missing: pg.missing()}
	n, err := parseNamespaceQuery(text)
	if err != nil {
		return nil, err
	}
	from, err := parseRepeatingPlace(r.URL.Query().Get("after"))
	if err != nil {
		return nil, badRequest("after= is no place in the list: "+err.Error(), "Begin at the first page.")
	}
	v.Begins = from == repeatingPlace{}
	p := &page{Template: "repeating", Title: "Repeating", Nav: "/repeating", View: v}
	if err := pg.readRepeating(r.Context(), v, n, from); err != nil {
		p.Trouble = asFault(err)
	}
	return p, nil
}

// repeatingPlace is the beginning of a page: after a key, among the keys read from a place of the index on.
type repeatingPlace struct {
	scan  query.RepeatingPlace
	after string
}

// String returns the place for after=: the key, after the place of the index unless that is its beginning.
func (p repeatingPlace) String() string {
	if p.scan == (query.RepeatingPlace{}) {
		return encodeRef(p.after)
	}
	return fmt.Sprintf("@%s.%d@%s", p.scan.Partition, p.scan.Serial, encodeRef(p.after))
}

// parseRepeatingPlace reads a text that String has returned. An empty text is the beginning.
func parseRepeatingPlace(text string) (p repeatingPlace, err error) {
	rest, ok := strings.CutPrefix(text, "@")
	if place, ref, found := strings.Cut(rest, "@"); ok && found {
		partition, serial, _ := strings.Cut(place, ".")
		if p.scan.Serial, err = strconv.ParseInt(serial, 10, 64); err != nil || partition == "" {
			return p, fmt.Errorf("%s: want the next of the page before it", event.ClipText(text))
		}
		p.scan.Partition, text = keys.Partition(partition), ref
	}
	if text == "" {
		return p, nil
	}
	key, err := decodeRef(text)
	if err != nil {
		return p, err
	}
	p.after = key.String()
	return p, nil
}

func (pg *repeatingPage) readRepeating(ctx context.Context, v *Repeating, n keys.Namespace, from repeatingPlace) error {
	found, next, looked, err := query.RepeatingFrom(ctx, pg.sources.Index, n, from.scan, repeatingLooked)
	if moving, is := errors.AsType[*query.MovingError](err); is {
		v.LeftOut = append(v.LeftOut, moving.Error())
	} else if err != nil {
		return err
	}
	names := make([]string, len(found))
	for i, key := range found {
		names[i] = key.String()
	}
	slices.Sort(names)
	names = slices.Compact(names)
	v.Found, v.Looked, v.Cut = len(names), looked, next != (query.RepeatingPlace{})
	first, exact := slices.BinarySearch(names, from.after)
	if exact {
		first++
	}
	names = names[first:]
	switch {
	case len(names) > repeatingRows:
		names = names[:repeatingRows]
		v.Next = repeatingPlace{from.scan, names[len(names)-1]}.String()
	case v.Cut:
		v.Next = repeatingPlace{scan: next}.String()
	}
	states, err := query.Repetitions(ctx, pg.sources.Index, names)
	if err != nil {
		return err
	}
	held := pg.state.get(ctx)
	for i, state := range states {
		key, err := keys.Parse(names[i])
		if err != nil || state.Repetition == nil && state.Err == nil {
			continue // it has ended since
		}
		row := newRepeatingView(key, state.Repetition, v.At)
		row.IsHeld = held.HeldBy(key) != nil
		v.Rows = append(v.Rows, row)
	}
	return nil
}

// newRepeatingView returns the view of a key's repetition, with Unknown set if r is nil.
func newRepeatingView(key keys.Key, r *query.Repetition, now time.Time) RepeatingView {
	name := key.String()
	v := RepeatingView{Key: keys.EncodeText(name), Ref: encodeRef(name), Name: newKeyText(key), Next: []time.Time{}}
	if r == nil {
		v.Unknown, v.Payload = true, newPayload(nil, event.StatusMissing, previewBytes)
		return v
	}
	v.Repeat, v.Occurrence, v.Times, v.Until = r.Text, r.Occurrence, r.Times, timeOrNil(r.Until)
	if spec, err := cron.Parse(r.Text); err == nil { // another version may know more
		v.location, v.Zone, v.Next = spec.Location(), spec.Location().String(), nextOccurrences(r, spec, now)
	}
	v.Payload = newPayload(r.Payload, event.StatusMissing, previewBytes)
	return v
}

// nextOccurrences returns the next due times of a timer.
func nextOccurrences(r *query.Repetition, spec cron.Spec, now time.Time) []time.Time {
	next := []time.Time{}
	most := int64(nextShown)
	if r.Times > 0 {
		most = min(most, r.Times-r.Occurrence+1)
	}
	rule := cron.Repetition{Spec: spec, From: r.From, Until: r.Until, Times: r.Times}
	at, ok := rule.Next(now)
	for ; ok && int64(len(next)) < most; at, ok = rule.Next(at) {
		next = append(next, at.UTC())
	}
	return next
}
