package history

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/diag"
)

// Words describes an entry of the history: a timer's end without its key ("did not fire: shop:order:paid:42 was
// there"), an action or incident without its author ("cancelled 12 timers of shop:promo"). It has texts of users.
func Words(e event.Entry) string {
	switch e.Kind {
	case event.EntryGuarded:
		switch {
		case e.GuardUnless != "":
			return "did not fire: " + e.GuardUnless + " was there"
		case e.GuardIf != "":
			return "did not fire: " + e.GuardIf + " was not there"
		}
		return "did not fire: its guard did not let it"
	case event.EntryDropped:
		if !e.Due.IsZero() && e.Time.After(e.Due) {
			return fmt.Sprintf("was dropped: %s late", diag.Duration(e.Time.Sub(e.Due).Truncate(time.Millisecond)))
		}
		return "was dropped: too late"
	}
	what := action(e)
	if e.Detail != "" {
		what += ", " + e.Detail
	}
	return what
}

// action describes an action or incident without its parameters.
func action(e event.Entry) string {
	switch e.Kind {
	case event.EntryHold:
		return "put " + e.Namespace + " on hold"
	case event.EntryResume:
		return "resumed " + e.Namespace
	case event.EntryCancel:
		return "cancelled " + object(e, "timer")
	case event.EntryMove:
		return "moved " + object(e, "timer")
	case event.EntryFire:
		return "had " + object(e, "timer") + " fire at once"
	case event.EntryRepeat:
		return "applied a file of repetitions"
	case event.EntryResend:
		return "sent again " + object(e, "event")
	case event.EntryReplay:
		return "replayed " + object(e, "dead letter")
	case event.EntryPurge:
		return "purged " + object(e, "dead letter")
	case event.EntryAudit:
		return "audited all keys"
	case event.EntryAcknowledge:
		return "acknowledged the loss of data"
	case event.EntryReconcile:
		return "ended " + object(e, "timer") + " of a restored Redis that had fired"
	case event.EntryClock:
		return "saw the clock of Redis stepped"
	case event.EntryGone:
		return "found a timerd gone"
	}
	return strings.TrimSpace(string(e.Kind) + " " + object(e, "timer"))
}

// object names what an action changed.
func object(e event.Entry, noun string) string {
	if e.Count != 1 {
		noun += "s"
	}
	switch n := len(e.Subjects); {
	case n == 1 && e.Count <= 1:
		return e.Subjects[0]
	case n == 1:
		return fmt.Sprintf("%d %s of %s", e.Count, noun, e.Subjects[0])
	case n > 1:
		return fmt.Sprintf("%d %s, among them %s", e.Count, noun, strings.Join(e.Subjects[:min(n, 3)], ", "))
	case e.Namespace != "":
		return fmt.Sprintf("%d %s of %s", e.Count, noun, e.Namespace)
	}
	return fmt.Sprintf("%d %s", e.Count, noun)
}

// Who returns the author of an action or incident, and how it was requested: "ops@db-1 (command line)".
func Who(e event.Entry) string {
	who := cmp.Or(e.By, "somebody")
	if e.Via != "" {
		who += " (" + e.Via + ")"
	}
	return who
}
