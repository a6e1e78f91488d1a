package event_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

func TestOriginTravels(t *testing.T) {
	t.Parallel()
	due := time.UnixMilli(1763629200000).UTC()
	for _, id := range []string{"1615283234", "a@b.2@7.3", "ü \x00\xff%", strings.Repeat("x", 600)} {
		e := sample()
		e.Key.ID, e.Attempt = id, 3
		e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
		if e.FirstID() != e.ID {
			t.Errorf("%q: the first id is %s, want its own", id, e.FirstID())
		}
		if at, attempt := e.First(); at != e.Due || attempt != 3 {
			t.Errorf("%q: first at %v, %d; want its own", id, at, attempt)
		}
		e.SetOrigin(due, 2)
		want := keys.EventID(e.Key.String(), due.UnixMilli(), 2)
		got := reparse(t, e)
		if got.Origin != want || got.FirstID() != want {
			t.Errorf("%q: origin %s, want %s", id, got.Origin, want)
		}
		if at, attempt := got.First(); !at.Equal(due) || attempt != 2 {
			t.Errorf("%q: first at %v, %d; want %v, 2", id, at, attempt, due)
		}
		if hashed := strings.HasPrefix(want, "sha256:"); hashed != (got.OriginAt != "") {
			t.Errorf("%q: originat %q beside %s", id, got.OriginAt, want)
		}
	}
	e := sample()
	e.SetOrigin(due, 1)
	if got, want := string(e.AppendJSON(nil)),
		`"maxattempts":16,"origin":"app1:trans:notice:1615283234@1763629200000.1","trigger":`; !strings.Contains(got,
		want) {
		t.Errorf("got %s, want %s in it", got, want)
	}
}

// Whoever may publish a retry of one timer cannot give it the id of another one: receivers may do nothing for an id
// that they know.
func TestOriginOfAnotherTimer(t *testing.T) {
	t.Parallel()
	long := sample()
	long.Key.ID = strings.Repeat("x", 600)
	long.ID = keys.EventID(long.Key.String(), long.Due.UnixMilli(), 1)
	other := long
	other.Key.ID += "x"
	other.SetOrigin(other.Due, 1)
	for _, c := range []struct {
		e       event.Event
		members string
		fault   string // "" for none
	}{
		{sample(), `"origin":"app1:trans:notice:1615283234@5.1"`, ""},
		{sample(), `"origin":"app1:trans:notice:1615283234@5.1","originat":"odd"`, ""},
		{sample(), `"origin":""`, ""},
		{sample(), `"origin":null`, ""},
		{sample(), `"originat":"5.1"`, ""},
		{sample(), `"origin":5`, "want a string"},
		{sample(), `"origin":"app1:trans:notice:2@5.1"`, "origin: "},
		{sample(), `"origin":"app1:trans:notice:1615283234@5"`, "origin: "},
		{sample(), `"origin":"app1:trans:notice:1615283234@5.0"`, "origin: "},
		{sample(), `"origin":"app1:trans:notice:1615283234@5.01"`, "origin: "},
		{sample(), `"origin":"app1:trans:notice:1615283234@+5.1"`, "origin: "},
		{sample(), `"origin":"app1:trans:notice:1615283234@5.4294967297"`, "origin: "},
		{sample(), `"origin":"app1:trans:notice:1615283234@99999999999999999999.1"`, "origin: "},
		{sample(), `"origin":"x"`, "origin: "},
		{sample(), `"origin":"` + strings.Repeat("x", 10_000) + `"`, "origin: "},
		{sample(), fmt.Sprintf(`"origin":%q,"originat":%q`, other.Origin, other.OriginAt), "origin: "},
		{long, fmt.Sprintf(`"origin":%q,"originat":%q`, other.Origin, other.OriginAt), "origin: "},
		{long, fmt.Sprintf(`"origin":%q`, long.ID), "origin: "},
		{long, fmt.Sprintf(`"origin":%q,"originat":"%d.1"`, long.ID, long.Due.UnixMilli()), ""},
	} {
		text := strings.Replace(string(c.e.AppendJSON(nil)), `"maxattempts":16,`, `"maxattempts":16,`+c.members+`,`, 1)
		e, err := event.Parse([]byte(text))
		if (err == nil) != (c.fault == "") || err != nil && (!strings.Contains(err.Error(), c.fault) ||
			len(err.Error()) > 400) {
			t.Errorf("%.100s: %v, want %q", c.members, err, c.fault)
		}
		if e.Origin == "" && e.OriginAt != "" || strings.Contains(e.Origin, "@") && e.OriginAt != "" {
			t.Errorf("%.100s: originat %q beside %q", c.members, e.OriginAt, e.Origin)
		}
	}
}

// A dead letter tells the first event of its timer, also where that is its own; one of a message that holds no event
// has none.
func TestDeadLettersHaveAnOrigin(t *testing.T) {
	t.Parallel()
	e := sample()
	e.ID = keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
	e.DeadReason = event.ReasonExhausted
	retried := e
	retried.SetOrigin(time.UnixMilli(5), 1)
	refused := e
	refused.ID = "sha256:of the request"
	malformed := e
	malformed.DeadReason = event.ReasonMalformed + "no event"
	for name, c := range map[string]struct {
		letter event.Event
		want   string
	}{
		"first": {e, e.ID}, "retried": {retried, "app1:trans:notice:1615283234@5.1"}, "refused": {refused, e.ID},
		"malformed": {malformed, ""},
	} {
		for m := range event.DeadLetter("timers", c.letter) {
			if m.Header[event.ContentTypeHeader] == nil {
				continue // as large as the firing: it may leave out parts implied by the rest
			}
			if got, err := event.Parse(m.Data); err != nil || got.Origin != c.want {
				t.Errorf("%s: the letter's origin is %q, %v; want %q", name, got.Origin, err, c.want)
			}
		}
	}
	if event.FreshLetterID(e, 1) != event.FreshLetterID(retried, 1) {
		t.Error("the fresh id of a letter depends on its origin, which those of earlier versions do not have")
	}
}
