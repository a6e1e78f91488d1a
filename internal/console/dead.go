package console

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// letterRows is the number of dead letters on a page.
const letterRows = 50

// Dead is a page of dead letters, the newest first.
type Dead struct {
	At    time.Time    `json:"at"`
	Query string       `json:"query"`
	Text  string       `json:"text"`
	Rows  []LetterView `json:"letters"`
	Next  string       `json:"next"`  // the place= of the next page; empty at the end
	Total uint64       `json:"total"` // letters in the stream
	Full  bool         `json:"full"`  // the page is full; if not, and Next is set, a search reached its time limit
	Since *time.Time   `json:"since"` // letters stored since then were searched; null: all
	First bool         `json:"-"`
}

// LetterView is a dead letter.
type LetterView struct {
	EventView
	Replay string `json:"replay"` // why it cannot be replayed; empty if it can
}

func newLetterView(l admin.Letter, most int) LetterView {
	_, why := l.Timer(0)
	return LetterView{newEventView(l.Record, most), why}
}

// Reason returns the reason as a row shows it.
func (l LetterView) Reason() string {
	if l.Fault != "" {
		return "not an event: " + l.Fault
	}
	return l.DeadReason
}

// letterPages read dead letters: a list of them, and one in full.
type letterPages struct{ *shared }

// dead reads a page of dead letters.
func (pg *letterPages) dead(r *http.Request) (*page, error) {
	f := letterFilterOf(r.URL.Query())
	sel, err := f.selection()
	if err != nil {
		return nil, err
	}
	place := r.URL.Query().Get("place")
	v := &Dead{At: pg.now(r.Context()), Query: f.Query, Text: f.Text, Rows: []LetterView{}, First: place == ""}
	p := &page{Template: "dead", Title: "Dead letters", Nav: "/dead", View: v}
	found, err := pg.sources.History.Search(r.Context(), sel.Query(), place, letterRows)
	if errors.Is(err, history.ErrPlace) {
		return nil, badRequest("place= is no place in the list.", "Begin at the first page.")
	}
	if err != nil {
		p.Trouble = asFault(err)
		return p, nil
	}
	for _, record := range found.Records {
		v.Rows = append(v.Rows, newLetterView(admin.Letter{Record: record}, previewBytes))
	}
	v.Next, v.Full, v.Since = found.Place, len(found.Records) == letterRows, timeOrNil(found.Since)
	for _, stream := range found.Streams {
		v.Total = stream.Messages
	}
	return p, nil
}

// sequence returns the number of a message in the path.
func sequence(r *http.Request, of, fix string) (uint64, error) {
	seq, err := strconv.ParseUint(r.PathValue("seq"), 10, 64)
	if err != nil {
		return 0, badRequest("“"+clip(r.PathValue("seq"), 50)+"” is no number of "+of+".", fix)
	}
	return seq, nil
}

// Filter reports whether a filter is set.
func (v *Dead) Filter() bool { return v.Query != "" || v.Text != "" }

// Beginning returns the address of the first page.
func (v *Dead) Beginning() string { return letterFilter{v.Query, v.Text}.address() }

// More returns the address of the next page.
func (v *Dead) More() string { return address("/dead", "q", v.Query, "text", v.Text, "place", v.Next) }

// Letter is one dead letter in full.
type Letter struct {
	At time.Time `json:"at"`
	LetterView
	Subject string `json:"natssubject"`
}

// letter reads a dead letter.
func (pg *letterPages) letter(r *http.Request) (*page, error) {
	seq, err := sequence(r, "a dead letter", "The list of dead letters has their numbers.")
	if err != nil {
		return nil, err
	}
	v := &Letter{At: pg.now(r.Context())}
	p := &page{Template: "letter", Title: "Dead letter " + strconv.FormatUint(seq, 10), Nav: "/dead", View: v}
	record, there, err := pg.sources.History.Get(r.Context(), keys.Dead, seq)
	if err != nil {
		p.Trouble = asFault(err)
		return p, nil
	}
	if !there {
		return nil, &fault{Status: http.StatusNotFound, Title: "No such dead letter",
			Detail: "There is no dead letter " + strconv.FormatUint(seq, 10) +
				": it was replayed or purged, or never there.",
			Fix: "See the list of dead letters."}
	}
	v.LetterView, v.Subject = newLetterView(admin.Letter{Record: record}, payloadBytes), keys.EncodeText(record.Subject)
	return p, nil
}
