package event

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// FirstID returns the id of the first event of e's timer: Origin, or ID if e is the first. It is the same for all
// attempts of a timer, and no other timer has it.
func (e Event) FirstID() string { return cmp.Or(e.Origin, e.ID) }

// First returns the due time and attempt of the first event of e's timer: those of e if it is the first.
func (e Event) First() (due time.Time, attempt int) {
	if ms, attempt, ok := e.origin(); ok {
		return time.UnixMilli(ms).UTC(), attempt
	}
	return e.Due, e.Attempt
}

// Begun returns the time at which the event's work was first due: the timer's replay, or the due time of its first
// event.
func (e Event) Begun() time.Time {
	if !e.Replayed.IsZero() {
		return e.Replayed
	}
	due, _ := e.First()
	return due
}

// SetOrigin sets Origin to the id of the firing of e's timer with the given due time and attempt, and OriginAt if that
// id is a hash. e.Key must be set.
func (e *Event) SetOrigin(due time.Time, attempt int) {
	e.Origin, e.OriginAt = keys.EventID(e.Key.String(), due.UnixMilli(), attempt), ""
	if isHash(e.Origin) {
		e.OriginAt = fmt.Sprintf("%d.%d", due.UnixMilli(), attempt)
	}
}

// isHash reports whether an event's id is a hash; any other id has an @.
func isHash(id string) bool { return !strings.Contains(id, "@") }

// origin returns the firing in Origin. ok is false if it is not one of e's timer.
func (e Event) origin() (due int64, attempt int, ok bool) {
	at := e.OriginAt
	if !isHash(e.Origin) {
		at = e.Origin[strings.LastIndexByte(e.Origin, '@')+1:]
	}
	first, second, _ := strings.Cut(at, ".")
	due, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	attempt, err = strconv.Atoi(second)
	if err != nil || attempt < 1 || attempt > math.MaxInt32 || keys.EventID(e.Key.String(), due, attempt) != e.Origin {
		return 0, 0, false
	}
	return due, attempt, true
}
