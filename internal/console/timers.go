package console

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// timerRows is the number of timers on a page.
	timerRows = 50
	// mostRows limits the number that a program may request.
	mostRows = 200
	// rowPayload is the number of bytes of each payload read for a row.
	rowPayload = 2 * previewBytes
)

// Timers is a page of a list of timers.
type Timers struct {
	At     time.Time   `json:"at"`
	Query  string      `json:"query"`
	State  string      `json:"state"`
	Due    string      `json:"due"`
	Rows   []TimerView `json:"timers"` // by due time
	Next   string      `json:"next"`   // the place= of the next page; empty at the end
	Full   bool        `json:"full"`   // the page is full; if not, and Next is set, the limit of one search was reached
	Looked int64       `json:"looked"` // timers searched so far, of every namespace
	Total  int64       `json:"total"`  // timers to search in all
	Cut    bool        `json:"cut"`    // too many are owed or firing to search all
	Until  time.Time   `json:"until,omitzero"`
	Took   string      `json:"-"`
	// Missing are the silent masters of a cluster; their timers are left out.
	Missing []string `json:"missing,omitempty"`
	// LeftOut says why other timers are left out: too many are owed or firing, or slots of a cluster are moving.
	LeftOut []string `json:"leftout,omitempty"`

	Filter bool `json:"-"` // a filter is set
	First  bool `json:"-"`
}

// TimerView is a timer that waits or is firing.
type TimerView struct {
	Key        string    `json:"key"` // bytes that are not UTF-8 are written %XX
	Ref        string    `json:"ref"` // the exact bytes, percent-encoded: a segment of a path
	Due        time.Time `json:"due"`
	State      string    `json:"state"`
	Attempt    int       `json:"attempt,omitempty"` // 0: unknown, since a large payload was not read whole
	Of         int       `json:"maxattempts,omitempty"`
	Beside     bool      `json:"beside,omitempty"` // a retry that waits beside a newer timer of its key
	Parked     string    `json:"setaside,omitempty"`
	Repeat     string    `json:"repeat,omitempty"`
	Occurrence int64     `json:"occurrence,omitempty"`
	LateMS     int64     `json:"late,omitempty"` // its own limit
	LateDrop   bool      `json:"latedrop,omitempty"`
	Unless     string    `json:"unless,omitempty"` // its own guards, as Key is written
	If         string    `json:"if,omitempty"`
	Payload    Payload   `json:"payload"`
	Which      string    `json:"which"` // identifies this timer in an action: the value of t=

	Name keyText `json:"-"`
}

func (s *shared) newTimerView(t query.Timer, most int) TimerView {
	name := t.Key.String()
	v := TimerView{
		Key: keys.EncodeText(name), Ref: encodeRef(name), Due: t.Due.UTC(), State: string(t.State), Attempt: t.Attempt,
		Beside: t.Beside,
		Parked: string(t.Parked), Repeat: t.Repeat, Occurrence: t.Occurrence, Which: encodeWhich(t.Which()),
		Name: newKeyText(t.Key),
		Of:   s.sources.Policies.For(t.Key).MaxAttempts(),
	}
	if t.Late.Given {
		v.LateMS, v.LateDrop = t.Late.Most.Milliseconds(), t.Late.Drop
	}
	v.Unless, v.If = keys.EncodeText(t.Guards.Unless), keys.EncodeText(t.Guards.If)
	status := event.StatusMissing
	if t.Status == schedule.PayloadTooLarge {
		status = event.StatusTooLarge
	}
	v.Payload = newPayload(t.Payload, status, most)
	v.Payload.whole(t.Size)
	if v.Attempt == 0 && !v.Payload.Cut {
		v.Attempt = event.Attempt(t.Payload)
	}
	return v
}

// AttemptText returns the number of the attempt, and the most attempts.
func (t TimerView) AttemptText() string { return attemptText(t.Attempt, t.Of) }

// IsGuarded reports whether the timer has a guard of its own.
func (t TimerView) IsGuarded() bool { return t.Unless != "" || t.If != "" }

// encodeWhich encodes the identity of a timer, so that a form returns it byte for byte.
func encodeWhich(w schedule.Which) string {
	beside := "0"
	if w.Beside {
		beside = "1"
	}
	return strings.Join([]string{strconv.FormatInt(w.Due.UnixMilli(), 10), strconv.Itoa(w.Attempt), beside,
		encodeRef(w.Key.String())}, ".")
}

// decodeWhich is the inverse of encodeWhich.
func decodeWhich(text string) (schedule.Which, error) {
	parts := strings.SplitN(text, ".", 4)
	if len(parts) == 4 {
		due, err1 := strconv.ParseInt(parts[0], 10, 64)
		attempt, err2 := strconv.Atoi(parts[1])
		key, err3 := decodeRef(parts[3])
		if err1 == nil && err2 == nil && err3 == nil && due >= 0 && due < 1<<52 && attempt >= 0 &&
			(parts[2] == "0" || parts[2] == "1") {
			return schedule.Which{Key: key, Due: time.UnixMilli(due).UTC(), Attempt: attempt, Beside: parts[2] == "1"},
				nil
		}
	}
	return schedule.Which{}, badRequest("“"+clip(text, 100)+"” names no timer.",
		"Take a which from the list of timers.")
}

// timersPage reads lists of timers.
type timersPage struct{ *shared }

func (pg *timersPage) timers(r *http.Request) (*page, error) {
	values := r.URL.Query()
	f := filterOf(values)
	now := pg.now(r.Context())
	q, err := f.query(now)
	if err != nil {
		return nil, err
	}
	place, err := query.ParsePlace(values.Get("place"))
	if err != nil {
		return nil, badRequest("place= is no place in the list: "+err.Error(), "Begin at the first page.")
	}
	most := query.Most{Timers: timerRows, Payload: rowPayload}
	if text := values.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > mostRows {
			return nil, badRequest("limit="+clip(text, 50), "Want a number from 1 to "+strconv.Itoa(mostRows)+".")
		}
		most.Timers = n
	}
	v := &Timers{At: now, Query: f.Query, State: f.State, Due: f.Due, Rows: []TimerView{}, Filter: f != filter{},
		First: place.IsZero(), Missing: pg.missing()}
	p := &page{Template: "timers", Title: "Timers", Nav: "/timers", View: v}
	began := time.Now()
	found, err := query.Find(r.Context(), pg.sources.Index, q, place, most)
	if err != nil {
		p.Trouble = asFault(err)
		return p, nil
	}
	for _, t := range found.Timers {
		v.Rows = append(v.Rows, pg.newTimerView(t, previewBytes))
	}
	v.At, v.Next, v.Full, v.Looked, v.Total, v.Cut, v.Until = found.Now.UTC(), found.Next.String(), found.Full,
		found.Looked, found.Total, found.Cut, found.Until.UTC()
	v.LeftOut = leftOut(found)
	v.Took = about(time.Since(began).Round(time.Millisecond))
	return p, nil
}

// leftOut returns the reasons why timers are left out of a result.
func leftOut(found query.Found) (why []string) {
	if found.Cut {
		why = append(why, query.ErrCut.Error())
	}
	if found.Moving != nil {
		why = append(why, found.Moving.Error())
	}
	return why
}

// More returns the address of the next page.
func (v *Timers) More() string {
	return address("/timers", "q", v.Query, "state", v.State, "due", v.Due, "place", v.Next)
}

// Beginning returns the address of the first page.
func (v *Timers) Beginning() string { return filter{v.Query, v.State, v.Due}.address() }

// States returns the states for a list's filter.
func (v *Timers) States() []string { return []string{"pending", "owed", "firing", "held"} }
