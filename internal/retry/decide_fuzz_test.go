package retry

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// FuzzDecide checks that every message becomes either a retry or a dead letter, that a retry matches its event, and
// that a dead letter is an event again and keeps the content.
func FuzzDecide(f *testing.F) {
	k := keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1"}
	good := event.Event{
		ID: keys.EventID(k.String(), 1_763_629_200_000, 1), Type: event.TypeFired, Key: k,
		Due:     time.UnixMilli(1_763_629_200_000),
		Attempt: 1, MaxAttempts: 3, Trigger: "deadline", Data: []byte(`{"order": 42}`),
	}
	text := string(good.AppendJSON(nil))
	const subject = "timers.retry.app1.trans.notice"
	f.Add(subject, []byte(text), "", "")
	f.Add(subject, []byte(text), "90s", "boom")
	f.Add(subject, []byte(text), "-1s", "\x00")
	f.Add(subject, []byte(strings.Replace(text, `"attempt":1`, `"attempt":3`, 1)), "0", "")
	f.Add(subject, []byte(strings.Replace(text, "fired", "dead", 1)), "", "")
	f.Add("timers.retry.a.b", []byte(text), "", "")
	f.Add("timers.retry.a%3A.%FF.c.d", []byte("\xff"), "1h", "\xff")
	f.Add("timers.retry.>.*."+strings.Repeat("a", 300), []byte(nil), "1h", "")
	policies, err := policy.ParseRetries("*=10s,30s~10%")
	if err != nil {
		f.Fatal(err)
	}
	stored := time.UnixMilli(1_763_629_300_000).Add(123 * time.Microsecond)
	f.Fuzz(func(t *testing.T, subject string, data []byte, delay, lastError string) {
		if rest, ok := strings.CutPrefix(subject, "timers.retry."); !ok || rest == "" {
			return // not in the stream
		}
		r := event.Stored{Subject: subject, Header: nats.Header{}, Data: data, Stream: "TIMERS_RETRY", Seq: 7,
			Time: stored}
		if delay != "" {
			r.Header[event.DelayHeader] = []string{delay}
		}
		if lastError != "" {
			r.Header[event.ErrorHeader] = []string{lastError}
		}
		d := decide("timers", policies, schedule.DefaultMaxPayload, r)
		switch {
		case d.letter != nil && d.retry.EventID != "":
			t.Fatal("both a retry and a dead letter")
		case d.letter != nil:
			checkLetter(t, d.letter, data)
		default:
			checkRetry(t, d.retry, data, stored)
		}
	})
}

func checkRetry(t *testing.T, r schedule.Retry, data []byte, stored time.Time) {
	e, err := event.Parse(data)
	if err != nil {
		t.Fatalf("a retry of no event: %v", err)
	}
	if r.Key != e.Key || r.Attempt != e.Attempt+1 || r.Attempt > 3 || r.EventID == "" ||
		!bytes.Equal(r.Payload, e.Data) ||
		(r.Status == schedule.PayloadPresent) != (e.Data != nil) {
		t.Errorf("%+v of %s", r, data)
	}
	if r.Due < schedule.MillisOf(stored) || r.Due > schedule.MillisOf(stored).Add(policy.Longest)+1 {
		t.Errorf("due at %d, stored at %d", r.Due, stored.UnixMilli())
	}
}

func checkLetter(t *testing.T, l *deadLetter, data []byte) {
	if event.MessageID(l.event.ID) != event.MessageID(event.MessageID(l.event.ID)) || l.class == "" {
		t.Errorf("letter %+v", l)
	}
	smaller := -1
	for form := range event.DeadLetter("timers", l.event) {
		e, err := event.Parse(form.Data)
		if err != nil {
			t.Fatalf("%s: %v", form.Data, err)
		}
		if e.ID != event.MessageID(l.event.ID) || form.Header[event.MsgIDHeader][0] != e.ID ||
			form.Subject != l.event.Key.Subject("timers", keys.Dead) ||
			e.Type != event.TypeDead || e.DeadReason == "" || e.Key != l.event.Key {
			t.Errorf("letter %s", form.Data)
		}
		first := smaller < 0
		if first && strings.HasPrefix(e.DeadReason, event.ReasonMalformed) &&
			(e.Data == nil || !bytes.Equal(e.Data, data)) {
			t.Errorf("content %q became %q", data, e.Data)
		}
		smaller = len(form.Data)
	}
	const minMessageBytes = 16 << 10 // of package notify
	if smaller > minMessageBytes {
		t.Errorf("the smallest form has %d bytes", smaller)
	}
}
