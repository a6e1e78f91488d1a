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
	Due             int64           `json:"due"` // unix ms
	DueAt           string          `json:"dueat"`
	Attempt         int             `json:"attempt,omitempty"`
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

// showPayload returns a payload in one line that is safe for a terminal, cut to about limit bytes.
func showPayload(payload []byte, status string, limit int) string {
	if payload == nil {
		return "(" + status + ")"
	}
	text, cut := string(payload), ""
	if len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text, cut = text[:limit], fmt.Sprintf("… (%d bytes)", len(payload))
	}
	notPrintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if text == "" || !utf8.ValidString(text) || strings.ContainsFunc(text, notPrintable) {
		text = strconv.Quote(text)
	}
	return text + cut
}

// showWait returns how long it is until a due time, to a sensible precision.
func showWait(d time.Duration) string {
	switch {
	case d < 0:
		return "due"
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// waitFrom returns how long it is until due by the clock of Redis, in brackets, or "" if Redis does not say what time it
// is.
func waitFrom(ctx context.Context, rdb redis.UniversalClient, due time.Time) string {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (%s)", showWait(due.Sub(now)))
}

// showAttempt returns which attempt it was, of how many if that is known.
func showAttempt(e event.Event) string {
	if e.MaxAttempts == 0 {
		return fmt.Sprint(e.Attempt)
	}
	return fmt.Sprintf("%d/%d", e.Attempt, e.MaxAttempts)
}
