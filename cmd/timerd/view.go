package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// timeLayout is how times are shown: as in the events.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// timerView is a timer as --json shows it. The key is written as in the subject
// of an event, the payload as in its data.
type timerView struct {
	Key             string          `json:"key"`
	State           string          `json:"state,omitempty"`  // of one that was looked for
	Beside          bool            `json:"beside,omitempty"` // a retry that waits beside a newer timer
	Due             int64           `json:"due"`              // unix ms
	DueAt           string          `json:"dueat"`
	Attempt         int             `json:"attempt,omitempty"`
	Late            int64           `json:"late,omitempty"` // ms, of one that was looked for and has a limit of its own
	Repeat          string          `json:"repeat,omitempty"`
	Occurrence      int64           `json:"occurrence,omitempty"`
	TraceParent     string          `json:"traceparent,omitempty"` // of one that was looked for
	DataContentType string          `json:"datacontenttype,omitempty"`
	Data            json.RawMessage `json:"data,omitempty"`
	DataBase64      []byte          `json:"data_base64,omitempty"`
	DataStatus      string          `json:"datastatus,omitempty"`
	SetAside        string          `json:"setaside,omitempty"` // why, if it is
}

func newTimerView(key string, due time.Time, attempt int) timerView {
	return timerView{Key: keys.EncodeText(key), Due: due.UnixMilli(), DueAt: due.UTC().Format(timeLayout), Attempt: attempt}
}

// withPayload adds a payload; nil means that there is none.
func (v timerView) withPayload(payload []byte, status string) timerView {
	if payload == nil {
		v.DataStatus = status
		return v
	}
	switch v.DataContentType = event.DataContentType(payload); v.DataContentType {
	case event.DataJSON:
		v.Data = payload
	case event.DataText:
		v.Data, _ = json.Marshal(string(payload)) // a string always works
	default:
		v.DataBase64 = payload
	}
	return v
}

func writeJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// writeLines writes each of some values in a line of JSON.
func writeLines[L ~[]V, V any](w io.Writer, values L) error {
	for _, v := range values {
		if err := writeJSON(w, v); err != nil {
			return err
		}
	}
	return nil
}

// showPayload returns a payload in one line that is safe for a terminal, cut to about so many bytes.
func showPayload(payload []byte, status string, most int) string {
	if payload == nil {
		return "(" + status + ")"
	}
	text, cut := string(payload), ""
	if len(text) > most {
		for most > 0 && !utf8.RuneStart(text[most]) {
			most--
		}
		text, cut = text[:most], "…"
	}
	notPrintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, notPrintable) {
		text = strconv.Quote(text)
	}
	return text + cut
}

// showText returns a text in one cell of a table.
func showText(s string, most int) string {
	if s == "" {
		return ""
	}
	return showPayload([]byte(s), "", most)
}

// whyMissing returns what stands in place of the payloads that are missing of some keys: what type these are of, if that is
// why. Where Redis does not say, it is only that they are missing.
func whyMissing(ctx context.Context, rdb redis.UniversalClient, names ...string) []string {
	types := make([]*redis.StatusCmd, len(names))
	_, _ = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error { // each reply has its own error
		for i, name := range names {
			types[i] = pipe.Type(ctx, name)
		}
		return nil
	})
	texts := make([]string, len(names))
	for i, reply := range types {
		texts[i] = event.StatusMissing
		switch kind := reply.Val(); kind {
		case "", "none", "string", "hash": // a string or a hash that timerd may not read, or that came later
		case "list", "set", "stream":
			texts[i] += ": a " + kind + " has no payload"
		case "zset":
			texts[i] += ": a sorted set has no payload"
		default:
			texts[i] += ": a value of type " + kind + " has no payload"
		}
	}
	return texts
}

// lateAfter is from when on something counts as late: a sweep finds within a second what was missed.
const lateAfter = time.Second

// showWait returns how long it is until a due time, or how late it is.
func showWait(d time.Duration) cell {
	switch {
	case d <= -lateAfter:
		return cell{"late " + showAbout(-d), toneBad}
	case d < 0:
		return cell{text: "due"}
	}
	return cell{text: showAbout(d)}
}

// waitFrom returns how long it is until due by the clock of Redis, in brackets, or "" if Redis does not say what time it
// is.
func waitFrom(ctx context.Context, rdb redis.UniversalClient, due time.Time) string {
	now, err := clockOf(ctx, rdb)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", showWait(due.Sub(now)).text)
}

// showAttempt returns which attempt it is, of how many if that is known.
func showAttempt(attempt, of int) string {
	if of == 0 {
		return strconv.Itoa(attempt)
	}
	return fmt.Sprintf("%d/%d", attempt, of)
}

// attemptCell is showAttempt, with a mark at what is not the first one.
func attemptCell(attempt, of int) cell {
	if attempt > 1 {
		return cell{showAttempt(attempt, of) + " retry", toneOdd}
	}
	return cell{text: showAttempt(attempt, of)}
}

// counted says how many there are of something.
func counted(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// showKnown returns a number, or a question mark for one that is not known.
func showKnown(n *int64) string {
	if n == nil {
		return "?"
	}
	return fmt.Sprint(*n)
}

// occurrenceLayout is how the time of an occurrence is shown in its zone.
const occurrenceLayout = "Mon 2006-01-02 15:04:05 -07:00"
