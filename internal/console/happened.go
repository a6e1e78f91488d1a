package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

const (
	// happenedShown limits the actions and incidents on the system's page, and happenedWithin the time to read them.
	happenedShown  = 50
	happenedWithin = 2 * time.Second
	// happenedFirst is the number of these that the page shows at first, for the reason of guardedRows. It shows the
	// others on request.
	happenedFirst = 4
	// guardBytes limits the bytes of an encoded guard.
	guardBytes = 3 * keys.MaxKeyBytes
)

// EntryView is an entry of the history: a timer's end without an event, or an operator's action, or an incident.
type EntryView struct {
	At    time.Time `json:"at"`
	Kind  string    `json:"kind"`
	By    string    `json:"by,omitempty"`  // user@host, of the console user@address, or the timerd's id
	Via   string    `json:"via,omitempty"` // command line, console or timerd; empty of a timer's end
	What  string    `json:"what"`
	Count int64     `json:"count,omitempty"` // timers, letters, events or losses changed
	Key   string    `json:"key,omitempty"`   // of its only timer
	Ref   string    `json:"ref,omitempty"`
	Seq   uint64    `json:"seq"`
	Fault string    `json:"fault,omitempty"` // why it is no entry

	// The guard that ended the timer: the key that was there, or the one that was not.
	GuardUnless string `json:"guardunless,omitempty"`
	GuardIf     string `json:"guardif,omitempty"`

	Name  keyText `json:"-"`
	entry event.Entry
}

func newEntryView(r history.Record) EntryView {
	e := r.Entry
	v := EntryView{At: r.Stored.UTC(), Kind: clip(string(e.Kind), 50), By: clip(e.By, 300), Via: clip(e.Via, 50),
		Count: e.Count, Seq: r.Seq, Fault: r.Fault, entry: e}
	if r.Fault != "" {
		return v
	}
	v.What = clip(history.Words(e), 3000)
	v.GuardUnless, v.GuardIf = clip(e.GuardUnless, guardBytes), clip(e.GuardIf, guardBytes)
	if all := e.Keys(); len(all) == 1 {
		name := all[0].String()
		v.Key, v.Ref, v.Name = keys.EncodeText(name), encodeRef(name), newKeyText(all[0])
	}
	return v
}

// IsEnd reports whether it is a timer's end without an event.
func (v EntryView) IsEnd() bool { return v.entry.IsEnd() }

// isOf reports whether an action names this timer alone.
func (v EntryView) isOf(key string) bool { return slices.Equal(v.entry.Subjects, []string{key}) }

// happened has the last actions of operators, and incidents.
type happened struct {
	entries []EntryView // newest first
	away    string      // why they cannot be read now
}

// readHappened reads them.
func (s *shared) readHappened(ctx context.Context) (h happened) {
	ctx, cancel := context.WithTimeout(ctx, happenedWithin)
	defer cancel()
	found, err := s.sources.History.Search(ctx, history.Query{Kind: keys.Operator}, "", happenedShown)
	if err != nil && !errors.Is(err, history.ErrNoStream) { // the first action makes the stream
		h.away = err.Error()
	}
	for _, r := range found.Records {
		h.entries = append(h.entries, newEntryView(r))
	}
	return h
}

// entryLine returns the line of an entry in a timer's life. key is the timer's, encoded.
func entryLine(v EntryView, key string) LifeView {
	line := LifeView{Kind: "done", At: &v.At, Why: v.What}
	switch {
	case v.Fault != "":
		line.Kind, line.Text, line.Why = "bad", "A message in the history that is not an entry", v.Fault
	case v.Kind == string(event.EntryGuarded):
		line.Text = "Ended by its guard"
	case v.Kind == string(event.EntryDropped):
		line.Kind, line.Text = "bad", "Too late to fire"
	default:
		line.Text = "An operator acted"
		if v.Kind == string(event.EntryCancel) {
			if line.Text = "Cancelled by an operator"; !v.isOf(key) {
				line.Text = "Perhaps cancelled by an operator"
			}
		}
		line.Why = history.Who(v.entry) + " " + v.What
	}
	return line
}

// endLine returns the last line of the life of a key without a timer: how its last timer ended. It returns false if
// nothing found tells.
func endLine(v *TimerPage) (LifeView, bool) {
	at, text := time.Time{}, ""
	for _, e := range v.Events.Events {
		if e.Fault != "" {
			continue
		}
		at, text = e.Stored, "it fired last"
		if e.IsDead() {
			text = "it became a dead letter"
		}
		break
	}
	for _, e := range v.Events.Entries {
		ends := e.Fault == "" && (e.IsEnd() || e.Kind == string(event.EntryCancel))
		if !ends || e.At.Before(at) {
			continue
		}
		at = e.At
		switch {
		case e.Kind == string(event.EntryGuarded):
			text = "its guard ended it"
		case e.Kind == string(event.EntryDropped):
			text = "it was dropped as too late"
		case e.isOf(v.Key):
			text = "an operator cancelled it"
		default:
			text = "an operator cancelled timers, perhaps also this one"
		}
		break
	}
	return LifeView{Kind: "now", In: "now", Text: "Nothing waits: " + text + " (" + Moment{at, v.At}.Relative() + ")",
		Note: "A cancellation by a program leaves no trace."}, text != ""
}

// pastOf returns the lines of the events and entries found, oldest first.
func pastOf(v *TimerPage) (life []LifeView) {
	events, entries := v.Events.Events, v.Events.Entries
	for len(events)+len(entries) > 0 {
		if len(entries) == 0 || len(events) > 0 && cmp.Compare(events[0].Stored.UnixNano(),
			entries[0].At.UnixNano()) >= 0 {
			life, events = append(life, pastLine(events[0])), events[1:]
		} else {
			life, entries = append(life, entryLine(entries[0], v.Key)), entries[1:]
		}
	}
	slices.Reverse(life)
	return life
}
