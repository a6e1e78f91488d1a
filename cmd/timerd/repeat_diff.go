package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// planText returns the planned changes as text.
func planText(plan *admin.Plan) string {
	var text strings.Builder
	for i := range plan.Changes {
		if c := &plan.Changes[i]; c.Kind != admin.ToLeave && c.Kind != admin.ToForget {
			writeChange(&text, c, plan.Now)
		}
	}
	return text.String()
}

// writeChange writes a change with its fields.
func writeChange(w io.Writer, c *admin.Change, now time.Time) {
	fmt.Fprintf(w, "%s %s\n", c.Kind, keys.EncodeText(c.Key))
	for _, field := range c.Fields {
		was, is := fieldTexts(c, field)
		text := is
		switch {
		case was != "" && is != "":
			text = was + " → " + is
		case was != "":
			text = was + " → nothing"
		}
		fmt.Fprintf(w, "    %-7s  %s\n", field, text)
	}
	if c.Kind == admin.ToAdd || c.Kind == admin.ToChange {
		fmt.Fprintf(w, "    %-7s  %s (%s)\n", "next", c.Next.In(c.Wanted.Spec.Location()).Format(occurrenceLayout),
			showWait(c.Next.Sub(now)).text)
	}
}

// fieldTexts returns the old and the new value of a changed field; a missing value is an empty text.
func fieldTexts(c *admin.Change, field string) (was, is string) {
	before, after := c.Has.Repetition, c.Wanted
	switch {
	case after == nil: // a removal shows only the rhythm
		return "", before.Text
	case c.Kind == admin.ToRemove:
		return "", showInstant(after.Until) + ", which has passed"
	case before == nil:
		before = &query.Repetition{Payload: []byte{}}
	}
	switch field {
	case "repeat":
		if was = before.Text; !c.Has.Due.IsZero() {
			was = "a single timer, due at " + c.Has.Due.UTC().Format(timeLayout)
		}
		return was, after.Spec.String()
	case "payload":
		return payloadTexts(before.Payload, after.Payload)
	case "from":
		return showInstant(before.From), showInstant(after.From)
	case "until":
		return showInstant(before.Until), showInstant(after.Until)
	case "times":
		show := func(n int64) string { return strconv.FormatInt(n, 10) }
		return unlessZero(before.Times, show), unlessZero(after.Times, show)
	case "unless":
		return keys.EncodeText(before.Guards.Unless), keys.EncodeText(after.Guards.Unless)
	case "if":
		return keys.EncodeText(before.Guards.If), keys.EncodeText(after.Guards.If)
	case "catchup":
		return unlessZero(before.CatchUp, diag.Duration), unlessZero(after.CatchUp, diag.Duration)
	}
	return showLimit(before.Late), showLimit(after.Late)
}

// payloadTexts shows two payloads from a little before their first difference.
func payloadTexts(was, is []byte) (before, after string) {
	const most, shared = 80, 20
	same := 0
	for same < min(len(was), len(is)) && was[same] == is[same] {
		same++
	}
	show := func(payload []byte) string {
		text, begin := showPayload(payload, "none", most), ""
		if from := same - shared; len(payload) > most && from > 0 {
			for from < len(payload) && payload[from]&0xc0 == 0x80 { // in the middle of a character
				from++
			}
			text, begin = showPayload(payload[from:], "", most), "…"
		}
		if len(payload) > most {
			text += fmt.Sprintf(" (%d bytes)", len(payload))
		}
		return begin + text
	}
	if before, after = show(was), show(is); was != nil && len(was) == 0 {
		before = ""
	}
	return before, after
}

// showInstant formats a time. It returns "" for the zero Time, and for the beginning of 1970, the default of from.
func showInstant(t time.Time) string {
	if t.IsZero() || t.UnixMilli() == 0 {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

// unlessZero shows a value; "" for the zero value.
func unlessZero[V comparable](v V, show func(V) string) string {
	var zero V
	if v == zero {
		return ""
	}
	return show(v)
}

func showLimit(l policy.Limit) string {
	text := diag.Duration(l.Most)
	switch {
	case !l.Given:
		return ""
	case l.Most == 0:
		text = "no limit"
	}
	if l.Drop {
		text += ", then dropped"
	}
	return text
}
