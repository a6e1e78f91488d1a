package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/timerd-io/timerd/keys"
)

// EntryKind is the kind of an entry of the history.
type EntryKind string

// The kinds of ends without an event. Such an entry has one subject.
const (
	EntryGuarded EntryKind = "guarded" // its guard did not let it fire
	EntryDropped EntryKind = "dropped" // it was too late to fire
)

// The kinds of operators' actions.
const (
	EntryHold        EntryKind = "hold"
	EntryResume      EntryKind = "resume"
	EntryCancel      EntryKind = "cancel"
	EntryMove        EntryKind = "move" // to another due time
	EntryFire        EntryKind = "fire" // due now
	EntryRepeat      EntryKind = "repeat"
	EntryResend      EntryKind = "resend" // an event, as a new one
	EntryReplay      EntryKind = "replay" // of dead letters
	EntryPurge       EntryKind = "purge"  // of dead letters
	EntryAudit       EntryKind = "audit"
	EntryAcknowledge EntryKind = "acknowledge" // of lost data
	EntryReconcile   EntryKind = "reconcile"   // of a restored Redis
)

// The kinds of incidents that a timerd notices.
const (
	EntryClock EntryKind = "clock" // the clock of a Redis server was stepped
	EntryGone  EntryKind = "gone"  // a timerd fell silent without ending in order
)

const (
	// MaxEntrySubjects limits the subjects of an entry.
	MaxEntrySubjects = 100
	// maxEntryBytes limits the keys in an entry, in bytes, so that NATS takes it.
	maxEntryBytes = 32 << 10
)

// Entry is a message of the history: a timer that ended without an event, an operator's action, or an incident.
type Entry struct {
	Kind EntryKind `json:"kind"`
	Time time.Time `json:"time"`
	// Subjects are the keys of the timers, encoded like attributes of events. An action on more than MaxEntrySubjects
	// timers has the first ones.
	Subjects []string `json:"subjects,omitempty"`

	// Of a timer's end.
	Due     time.Time `json:"dueat,omitzero"`
	Attempt int       `json:"attempt,omitempty"`
	// GuardUnless is the key that was there, and GuardIf the key that was not. At most one is set: it kept the timer
	// from firing. Both are encoded like Subjects.
	GuardUnless string `json:"guardunless,omitempty"`
	GuardIf     string `json:"guardif,omitempty"`

	// Of an action or an incident.
	By        string `json:"by,omitempty"`        // user@host, of the console user@address, or the timerd's id
	Via       string `json:"via,omitempty"`       // ViaCommand, ViaConsole or ViaTimerd
	Namespace string `json:"namespace,omitempty"` // of the timers or letters, if they were not chosen one by one
	Count     int64  `json:"count,omitempty"`     // timers, letters, events or losses changed
	// Detail has the parameters in words; for people.
	Detail string `json:"detail,omitempty"`
}

// The values of Via.
const (
	ViaCommand = "command line"
	ViaConsole = "console"
	ViaTimerd  = "timerd"
)

// ParseEntry reads a message of the history. Time and Due are in UTC.
func ParseEntry(data []byte) (Entry, error) {
	var e Entry
	if err := json.Unmarshal(data, &e); err != nil {
		return Entry{}, fmt.Errorf("not an entry: %s", ClipText(err.Error()))
	}
	e.Time, e.Due = e.Time.UTC(), e.Due.UTC()
	switch {
	case e.Kind == "":
		return Entry{}, errors.New("not an entry: kind is missing")
	case !isWritable(e.Time), !isWritable(e.Due):
		return Entry{}, errors.New("not an entry: a time is in no year from 0 to 9999")
	case e.IsEnd() && len(e.Subjects) != 1:
		return Entry{}, fmt.Errorf("not an entry: %s with %d subjects, want 1", e.Kind, len(e.Subjects))
	case len(e.Subjects) > MaxEntrySubjects:
		return Entry{}, fmt.Errorf("not an entry: %d subjects, at most %d are allowed", len(e.Subjects),
			MaxEntrySubjects)
	}
	if _, err := e.keys(); err != nil {
		return Entry{}, err
	}
	if _, _, err := e.Within(); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// IsEnd reports whether the entry is a timer's end, and not an action or an incident.
func (e Entry) IsEnd() bool { return e.Kind == EntryGuarded || e.Kind == EntryDropped }

// Keys returns the timers' keys, up to the first subject that is none; [ParseEntry] allows no such subject.
func (e Entry) Keys() []keys.Key {
	all, _ := e.keys()
	return all
}

// keys returns the timers' keys up to the first subject that is none, which is the error.
func (e Entry) keys() ([]keys.Key, error) {
	all := make([]keys.Key, 0, len(e.Subjects))
	for _, subject := range e.Subjects {
		var k keys.Key
		name, err := keys.DecodeText(subject)
		if err == nil {
			k, err = keys.Parse(name)
		}
		if err != nil {
			return all, fmt.Errorf("subject: %s", ClipText(err.Error()))
		}
		all = append(all, k)
	}
	return all, nil
}

// Within returns the namespace, or false if the entry has none.
func (e Entry) Within() (keys.Namespace, bool, error) {
	if e.Namespace == "" {
		return keys.Namespace{}, false, nil
	}
	n, err := keys.ParseNamespace(e.Namespace)
	if err != nil {
		return n, false, fmt.Errorf("namespace: %s", ClipText(err.Error()))
	}
	return n, true, nil
}

// Concerns reports whether the entry may be about a timer: it names its key, or its namespace.
func (e Entry) Concerns(k keys.Key) bool {
	n, is, err := e.Within()
	return slices.Contains(e.Subjects, keys.EncodeText(k.String())) || is && err == nil && n.Match(k)
}

// AppendJSON appends the entry as a message. It leaves out subjects beyond the limits, and shortens texts.
func (e Entry) AppendJSON(b []byte) ([]byte, error) {
	bytes := 0
	for i, subject := range e.Subjects {
		if bytes += len(subject); i == MaxEntrySubjects || bytes > maxEntryBytes && i > 0 {
			e.Subjects = e.Subjects[:i]
			break
		}
	}
	e.By, e.Detail = entryText(e.By), entryText(e.Detail)
	e.Time = e.Time.UTC().Truncate(time.Millisecond)
	text, err := json.Marshal(e)
	return append(b, text...), err
}

// entryText makes a text one line of valid UTF-8 of at most 1,280 bytes.
func entryText(s string) string {
	if utf8.ValidString(s) {
		return ErrorText(s)
	}
	return ErrorText(keys.EncodeText(s))
}
