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

// timeLayout is the format of times: that of events.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// timerView is a timer as --json shows it. The key is written as in the subject
// of an event, the payload as in its data.
type timerView struct {
	Key             string          `json:"key"`
	State           string          `json:"state,omitempty"`  // from a search
	Beside          bool            `json:"beside,omitempty"` // a retry that waits beside a newer timer
	Due             int64           `json:"due"`              // unix ms
	DueAt           string          `json:"dueat"`
	Attempt         int             `json:"attempt,omitempty"`
	Late            int64           `json:"late,omitempty"`   // ms, from a search, if it has a limit of its own
	Unless          string          `json:"unless,omitempty"` // its own guards, written as the key
	If              string          `json:"if,omitempty"`
	Repeat          string          `json:"repeat,omitempty"`
	Occurrence      int64           `json:"occurrence,omitempty"`
	TraceParent     string          `json:"traceparent,omitempty"` // from a search
	DataContentType string          `json:"datacontenttype,omitempty"`
	Data            json.RawMessage `json:"data,omitempty"`
	DataBase64      []byte          `json:"data_base64,omitempty"`
	DataStatus      string          `json:"datastatus,omitempty"`
	SetAside        string          `json:"setaside,omitempty"` // the reason, if set aside
}

func newTimerView(key string, due time.Time, attempt int) timerView {
	return timerView{Key: keys.EncodeText(key), Due: due.UnixMilli(), DueAt: due.UTC().Format(timeLayout),
		Attempt: attempt}
}

// withPayload adds a payload; nil means none.
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

// writeLines writes values, a line of JSON each.
func writeLines[L ~[]V, V any](w io.Writer, values L) error {
	for _, v := range values {
		if err := writeJSON(w, v); err != nil {
			return err
		}
	}
	return nil
}

// showPayload returns a payload in one line that is safe for a terminal, cut to about most bytes.
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

// whyMissing returns, for each of the named keys, a text to show in place of its missing payload. If the key's type
// explains the missing payload, the text names the type. If Redis does not answer, no text does.
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
		case "", "none", "string", "hash": // an unreadable string or hash, or a later one
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

// lateAfter is the delay that counts as late: a sweep finds missed timers within a second.
const lateAfter = time.Second

// showWait formats the time until a due time, or since.
func showWait(d time.Duration) cell {
	switch {
	case d <= -lateAfter:
		return cell{"late " + showAbout(-d), toneBad}
	case d < 0:
		return cell{text: "due"}
	}
	return cell{text: showAbout(d)}
}

// waitFrom formats the time until due by the clock of Redis, in brackets; "" if Redis does not answer.
func waitFrom(ctx context.Context, rdb redis.UniversalClient, due time.Time) string {
	now, err := clockOf(ctx, rdb)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", showWait(due.Sub(now)).text)
}

// showAttempt formats an attempt, with the most attempts if known.
func showAttempt(attempt, of int) string {
	if of == 0 {
		return strconv.Itoa(attempt)
	}
	return fmt.Sprintf("%d/%d", attempt, of)
}

// attemptCell is showAttempt, with a mark unless it is the first.
func attemptCell(attempt, of int) cell {
	if attempt > 1 {
		return cell{showAttempt(attempt, of) + " retry", toneOdd}
	}
	return cell{text: showAttempt(attempt, of)}
}

// counted formats a number with its noun.
func counted(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// showKnown formats a number; a question mark for an unknown one.
func showKnown(n *int64) string {
	if n == nil {
		return "?"
	}
	return fmt.Sprint(*n)
}

// occurrenceLayout is the format of an occurrence's time in its zone.
const occurrenceLayout = "Mon 2006-01-02 15:04:05 -07:00"
