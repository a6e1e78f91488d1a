package console

import (
	"cmp"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// EventsView is a part of the streams' past.
type EventsView struct {
	Events     []EventView    `json:"events"`     // newest first
	Deliveries []DeliveryView `json:"deliveries"` // newest first
	Entries    []EntryView    `json:"entries"`    // of one timer: ends without an event, and actions; newest first
	Since      *time.Time     `json:"since"`      // everything stored since then was searched; null: all of the streams
	Next       string         `json:"next"`       // the from= of an earlier page; empty: there is none
	Looked     int64          `json:"looked"`     // messages in this step
	Streams    []ReachView    `json:"streams"`    // how far each was searched
	Away       string         `json:"away,omitempty"`
}

// newEventsView returns an empty view.
func newEventsView() EventsView {
	return EventsView{Events: []EventView{}, Deliveries: []DeliveryView{}, Entries: []EntryView{},
		Streams: []ReachView{}}
}

// ReachView is the extent of a stream's search.
type ReachView struct {
	Stream    string     `json:"stream"`
	Seq       uint64     `json:"seq"` // all messages from this one on
	Since     *time.Time `json:"since"`
	Beginning bool       `json:"beginning"` // the search reached the stream's beginning
	Missing   bool       `json:"missing,omitempty"`
	Away      string     `json:"away,omitempty"` // why it was not searched

	kind string
}

// readEvents searches for events and deliveries. An error is part of the view, because the rest of the page works
// without them.
func (s *shared) readEvents(r *http.Request, q history.Query, place string, limit int) EventsView {
	v := newEventsView()
	found, err := s.sources.History.Search(r.Context(), q, place, limit)
	if err != nil {
		v.Away = err.Error() // records found before the error are complete
	}
	for _, record := range found.Records {
		switch record.Kind {
		case keys.Delivery:
			v.Deliveries = append(v.Deliveries, newDeliveryView(record))
		case keys.History, keys.Operator:
			v.Entries = append(v.Entries, newEntryView(record))
		default:
			v.Events = append(v.Events, newEventView(record, previewBytes))
		}
	}
	v.Next, v.Looked, v.Since = found.Place, int64(found.Looked), timeOrNil(found.Since)
	for _, s := range found.Streams {
		v.Streams = append(v.Streams, ReachView{s.Stream, s.Seq, timeOrNil(s.Since), s.Beginning, s.Missing, s.Away,
			s.Kind})
	}
	v.link()
	return v
}

// NoLog returns the reason why the log of webhooks cannot be read; empty if it can, or if there is none.
func (v *EventsView) NoLog() string { return v.away(keys.Delivery) }

// NoHistory is NoLog for the history.
func (v *EventsView) NoHistory() string { return cmp.Or(v.away(keys.History), v.away(keys.Operator)) }

func (v *EventsView) away(kind string) string {
	for _, s := range v.Streams {
		if s.kind == kind && s.Away != "" {
			return s.Away
		}
	}
	return ""
}

// DeliveryRow is a row of deliveries: one, or several successive postponements for one host, shown by the latest.
type DeliveryRow struct {
	DeliveryView
	Times int
	First time.Time // begin of the first one
}

// Rows returns the deliveries as rows.
func (v *EventsView) Rows() []DeliveryRow {
	var rows []DeliveryRow
	for _, d := range v.Deliveries {
		if n := len(rows) - 1; n >= 0 && rows[n].sameWait(d) {
			rows[n].Times++
			rows[n].First = d.At
			continue
		}
		rows = append(rows, DeliveryRow{d, 1, d.At})
	}
	return rows
}

// link sets for each delivery the place of its event: among these events, further back in the stream, or gone. The
// event was stored before the delivery.
func (v *EventsView) link() {
	at := map[string]uint64{}
	for _, e := range v.Events {
		if e.Kind == keys.Fired && e.Fault == "" {
			at[e.Key+" "+e.ID] = e.Seq // the first of several
		}
	}
	whole := false
	for _, s := range v.Streams {
		whole = whole || s.kind == keys.Fired && s.Beginning
	}
	for i := range v.Deliveries {
		d := &v.Deliveries[i]
		d.Event = at[d.Key+" "+d.ID]
		d.Gone = d.Event == 0 && d.Fault == "" && whole
	}
}
