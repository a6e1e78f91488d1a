package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/repeat"
)

// changeKind is what is to be done about a key.
type changeKind string

// The kinds are printed before the keys.
const (
	toAdd    changeKind = "+"
	toChange changeKind = "~"
	toRemove changeKind = "-"
	toLeave  changeKind = "="
	toForget changeKind = "over" // its until has passed, and it does not repeat
)

// repetitionChange is what makes a key repeat as a file says.
type repetitionChange struct {
	kind   changeKind
	key    string
	fields []fieldChange
	next   time.Time         // when it is due first then
	wanted *wantedRepetition // nil for what is to be removed
	grid   time.Time         // where the interval counts from as it did before; the zero Time where the file says that, or it begins anew
}

// fieldChange is a field that is to change. A text is empty for what is not there.
type fieldChange struct{ name, was, is string }

// changeOf compares what the file says of a key with what the index has, at a time of Redis. It returns an error if the
// repetition cannot be set then.
func changeOf(w *wantedRepetition, has query.KeyState, now time.Time) (repetitionChange, error) {
	c := repetitionChange{kind: toAdd, key: w.key, wanted: w}
	was := has.Repetition
	if was != nil && w.from.IsZero() && was.Text == w.spec.String() && !was.From.After(now) {
		c.grid = was.From
	}
	if w.from.Sub(now) > repeat.MaxInterval {
		return c, errors.New("from: is over 10 years ahead")
	}
	next, over, err := w.next(c.grid, now)
	if err != nil {
		return c, err
	}
	c.next = next
	switch {
	case was != nil:
		c.kind, c.fields = toChange, differences(w, was, now)
		if len(c.fields) == 0 {
			c.kind = toLeave
		} else if over {
			c.kind, c.fields = toRemove, []fieldChange{{"until", "", showInstant(w.until) + ", which has passed"}}
		}
	case over:
		c.kind = toForget
	default:
		c.fields = differences(w, &query.Repetition{Payload: []byte{}}, now)
		if !has.Due.IsZero() {
			c.kind = toChange
			c.fields[0].was = "a single timer, due at " + has.Due.UTC().Format(timeLayout)
		}
	}
	return c, nil
}

// next returns the first occurrence after a time, or that there is none until its end. Without a from of its own it counts from
// the grid that it had, or else from now on.
func (w *wantedRepetition) next(grid, now time.Time) (next time.Time, over bool, err error) {
	r := repeat.Repetition{Spec: w.spec, From: w.from}
	if w.from.IsZero() {
		r.From = grid
	}
	if r.From.IsZero() {
		r.From = now
	}
	if _, ok := r.Next(now); !ok {
		return next, false, fmt.Errorf("cron: no such time in the eight years after %s", now.UTC().Format(timeLayout))
	}
	r.Until = w.until
	next, ok := r.Next(now)
	return next, !ok, nil
}

// differences returns what is to change of a repetition, the repetition itself first.
func differences(w *wantedRepetition, was *query.Repetition, now time.Time) []fieldChange {
	var fields []fieldChange
	add := func(name, before, after string) {
		if before != after {
			fields = append(fields, fieldChange{name, before, after})
		}
	}
	add("repeat", was.Text, w.spec.String())
	if was.Payload == nil || !bytes.Equal(was.Payload, w.payload) {
		fields = append(fields, payloadChange(was.Payload, w.payload))
	}
	if !w.from.IsZero() || was.From.After(now) {
		add("from", showInstant(was.From), showInstant(w.from))
	}
	add("until", showInstant(was.Until), showInstant(w.until))
	add("times", showTimes(was.Times), showTimes(w.times))
	add("catchup", showSpan(was.CatchUp), showSpan(w.catchUp))
	add("late", showLimit(was.Late), showLimit(w.late))
	return fields
}

// payloadChange shows two payloads from a little before where they begin to differ.
func payloadChange(was, is []byte) fieldChange {
	const most, before = 80, 20
	same := 0
	for same < min(len(was), len(is)) && was[same] == is[same] {
		same++
	}
	show := func(payload []byte) string {
		text, begin := showPayload(payload, "none", most), ""
		if from := same - before; len(payload) > most && from > 0 {
			for from < len(payload) && payload[from]&0xc0 == 0x80 { // within a character
				from++
			}
			text, begin = showPayload(payload[from:], "", most), "…"
		}
		if len(payload) > most {
			text += fmt.Sprintf(" (%d bytes)", len(payload))
		}
		return begin + text
	}
	c := fieldChange{"payload", show(was), show(is)}
	if was != nil && len(was) == 0 {
		c.was = ""
	}
	return c
}

// write writes the change for a person to read.
func (c *repetitionChange) write(w io.Writer, now time.Time) {
	fmt.Fprintf(w, "%s %s\n", c.kind, keys.EncodeText(c.key))
	for _, f := range c.fields {
		text := f.is
		switch {
		case f.was != "" && f.is != "":
			text = f.was + " → " + f.is
		case f.was != "":
			text = f.was + " → nothing"
		}
		fmt.Fprintf(w, "    %-7s  %s\n", f.name, text)
	}
	if c.kind == toAdd || c.kind == toChange {
		fmt.Fprintf(w, "    %-7s  %s (%s)\n", "next", c.next.In(c.wanted.spec.Location()).Format(occurrenceLayout), showWait(c.next.Sub(now)).text)
	}
}

// options are those that set the repetition.
func (c *repetitionChange) options() []client.SetOption {
	w, options := c.wanted, []client.SetOption(nil)
	if from := w.from; !from.IsZero() {
		options = append(options, client.From(from))
	} else if !c.grid.IsZero() {
		options = append(options, client.From(c.grid))
	}
	if !w.until.IsZero() {
		options = append(options, client.Until(w.until))
	}
	if w.times > 0 {
		options = append(options, client.Times(int(w.times)))
	}
	if w.catchUp > 0 {
		options = append(options, client.CatchUp(w.catchUp))
	}
	switch {
	case w.late.Drop:
		options = append(options, client.DropLate(w.late.Most))
	case w.late.Given:
		options = append(options, client.Late(w.late.Most))
	}
	return options
}

// showInstant writes a time, and nothing for the zero Time and for the beginning of 1970, from which all counts that has no from.
func showInstant(t time.Time) string {
	if t.IsZero() || t.UnixMilli() == 0 {
		return ""
	}
	return t.UTC().Format(timeLayout)
}

func showTimes(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func showSpan(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return showDuration(d)
}

func showLimit(l policy.Limit) string {
	text := showDuration(l.Most)
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

// changes are all that a file asks for.
type changes struct {
	list []repetitionChange // in the order of the file, then what is to be removed
	now  time.Time
}

// count returns how many there are of a kind.
func (c *changes) count(kind changeKind) (n int) {
	for i := range c.list {
		if c.list[i].kind == kind {
			n++
		}
	}
	return n
}

// diff returns what is to change.
func (c *changes) diff() string {
	var text strings.Builder
	for i := range c.list {
		if kind := c.list[i].kind; kind != toLeave && kind != toForget {
			c.list[i].write(&text, c.now)
		}
	}
	return text.String()
}

// rest says how many are not to change.
func (c *changes) rest() string {
	text := fmt.Sprintf("%d unchanged", c.count(toLeave))
	if n := c.count(toForget); n > 0 {
		text += fmt.Sprintf(", %d over", n)
	}
	return text
}
