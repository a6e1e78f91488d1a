package event_test

import (
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Timerds and consumers of every version agree byte for byte on the values in this file: de-duplication depends on
// them.

const firedID = "shop:order:timeout:42@1763629200000.3"

func firedEvent() event.Event {
	due := time.UnixMilli(1763629200000).UTC()
	return event.Event{
		ID: firedID, Type: event.TypeFired, Key: keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "42"},
		Time: due, Due: due, Attempt: 3, Trigger: "deadline", Data: []byte(`{"total":99}`),
	}
}

func storedMessage() event.Stored {
	return event.Stored{
		Subject: "timers.retry.shop.order.timeout", Data: []byte("junk"), Stream: "TIMERS_RETRY", Seq: 7,
		Time: time.UnixMilli(1763629200001).Add(234 * time.Microsecond),
	}
}

func TestMessageID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		firedID:                   firedID,
		"":                        "",
		"two words":               "sha256:a03f1d611645eb53ad16c1af546ca0792dc884505bab57ede80f4dad6b911d3a",
		strings.Repeat("x", 2000): "sha256:5c0e0ea421571c300b5df6aec0a118b5c3dc02e0683a546341d5efc689df2f58",
		"ü":                       "sha256:607474ca475a9724d7360aba71a56d5df77e61350e3f724cfa1f46e857e2d85f",
		"a\r\nb":                  "sha256:18745f36a05e29072709042d6062ce54f1b08ff36c27ba80c39f81fb010c8ce2",
	} {
		if got := event.MessageID(id); got != want {
			t.Errorf("MessageID(%.20q) is %q, want %q", id, got, want)
		}
		if got := event.MessageID(event.MessageID(id)); got != want {
			t.Errorf("MessageID of its result for %.20q is %q, want the same", id, got)
		}
	}
}

func TestRetryAndReplayIDs(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		firedID:     firedID,
		"foreign":   firedID + " foreign",
		"two words": firedID + " sha256:a03f1d611645eb53ad16c1af546ca0792dc884505bab57ede80f4dad6b911d3a",
	} {
		e := firedEvent()
		e.ID = id
		if got := event.RetryID(e); got != want {
			t.Errorf("RetryID of %q is %q, want %q", id, got, want)
		}
		if got := event.ReplayID(e); got != want+".replay" {
			t.Errorf("ReplayID of %q is %q", id, got)
		}
		e.ID = event.MessageID(id) // as its dead letter has it
		if got := event.RetryID(e); got != want {
			t.Errorf("RetryID of the dead letter of %q is %q, want %q", id, got, want)
		}
	}
}

// form has the compared parts of a message.
type form struct{ id, contentType, lastError, delay, data string }

func formsOf(t *testing.T, subject string, messages iter.Seq[event.Message]) []form {
	t.Helper()
	var all []form
	for m := range messages {
		if m.Subject != subject {
			t.Errorf("on %s, want %s", m.Subject, subject)
		}
		h := maps.Clone(m.Header)
		one := func(name string) string {
			values, ok := h[name]
			delete(h, name)
			if !ok {
				return "-"
			}
			return strings.Join(values, "|")
		}
		all = append(all, form{
			one("Nats-Msg-Id"), one("Content-Type"), one("Timer-Error"), one("Timer-Delay"),
			strings.ReplaceAll(string(m.Data), strings.Repeat("e", 1277), "<1277 e>"),
		})
		if len(h) > 0 {
			t.Errorf("further headers %v", h)
		}
	}
	return all
}

func compareForms(t *testing.T, got, want []form) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", formLines(got), formLines(want))
	}
}

func formLines(forms []form) string {
	var b strings.Builder
	for _, f := range forms {
		b.WriteString(strings.Join([]string{f.id, f.contentType, f.lastError, f.delay, f.data}, "  ") + "\n")
	}
	return b.String()
}

const cloudEvent = "application/cloudevents+json"

func TestRetryRequest(t *testing.T) {
	t.Parallel()
	const subject = "timers.retry.shop.order.timeout"
	compareForms(t, formsOf(t, subject, event.RetryRequest("timers", firedEvent(), []byte("as it came"),
		event.Again{Error: "boom"})), []form{
		{"-", cloudEvent, "boom", "-", "as it came"},
		{"-", "-", "-", "-", "as it came"},
	})
	delay := 90 * time.Second
	compareForms(t, formsOf(t, subject, event.RetryRequest("timers", firedEvent(), []byte("as it came"),
		event.Again{Delay: &delay})), []form{
		{"-", cloudEvent, "", "1m30s", "as it came"},
		{"-", "-", "-", "1m30s", "as it came"},
	})
	for m := range event.RetryRequest("timers", firedEvent(), nil, event.Again{Delay: &delay, Postpone: true}) {
		if got := m.Header[event.PostponeHeader]; len(got) != 1 || got[0] != "1" ||
			m.Header[event.DelayHeader][0] != "1m30s" {
			t.Errorf("a postponement has the headers %v", m.Header)
		}
	}
}

const (
	deadSubject = "timers.dead.shop.order.timeout"
	deadHead    = `{"specversion":"1.0","id":"` + firedID +
		`","source":"/timerd","type":"timerd.timer.dead","subject":"shop:order:timeout:42","time":"2025-11-20T09:00:00.000Z",`
	deadJSON   = deadHead + `"datacontenttype":"application/json",`
	deadKey    = `"app":"shop","module":"order","timertype":"timeout","timerid":"42","dueat":"2025-11-20T09:00:00.000Z","attempt":3,`
	deadOrigin = `"origin":"` + firedID + `",`
)

func TestDeadLetter(t *testing.T) {
	t.Parallel()
	e := firedEvent()
	e.MaxAttempts, e.DeadReason, e.LastError = 3, event.ReasonExhausted, strings.Repeat("e", 1277)+"eee!"
	reason := deadKey + `"maxattempts":3,` + deadOrigin + `"trigger":"deadline","deadreason":"attempts used up"`
	bare := strings.Replace(reason, deadOrigin, "", 1)
	compareForms(t, formsOf(t, deadSubject, event.DeadLetter("timers", e)), []form{
		{firedID, cloudEvent, "-", "-", deadJSON + reason + `,"lasterror":"<1277 e>eee!","data":{"total":99}}`},
		{firedID, cloudEvent, "-", "-", deadJSON + reason + `,"lasterror":"<1277 e>…","data":{"total":99}}`},
		{firedID, "-", "-", "-", deadJSON + bare + `,"data":{"total":99}}`},
		{firedID, cloudEvent, "-", "-", deadHead + deadKey + `"maxattempts":3,` + deadOrigin +
			`"datastatus":"toolarge","deadreason":"attempts used up"}`},
	})
}

// A letter has its payload in the form of the firing, and its fresh ids do not depend on that.
func TestDeadLetterKeepsTheForm(t *testing.T) {
	t.Parallel()
	e := firedEvent()
	e.DeadReason = event.ReasonExhausted
	fresh := event.FreshLetterID(e, 1)
	for contentType, data := range map[string]string{
		"":               `"data":{"total":99}`,
		event.DataJSON:   `"data":{"total":99}`,
		event.DataText:   `"data":"{\"total\":99}"`,
		event.DataBinary: `"data_base64":"eyJ0b3RhbCI6OTl9"`,
	} {
		e.ContentType = contentType
		next, stop := iter.Pull(event.DeadLetter("timers", e))
		m, _ := next()
		stop()
		if !strings.HasSuffix(string(m.Data), ","+data+"}") {
			t.Errorf("of a payload in %q the letter is %s", contentType, m.Data)
		}
		if parsed, err := event.Parse(m.Data); err != nil || string(parsed.Data) != `{"total":99}` {
			t.Errorf("of a payload in %q the letter holds %q, %v", contentType, parsed.Data, err)
		}
		if got := event.FreshLetterID(e, 1); got != fresh {
			t.Errorf("of a payload in %q the fresh id is %s, want %s", contentType, got, fresh)
		}
	}
}

// A consumer's letter has the same id as timerd's, so that JetStream keeps one of them.
func TestDeadLetterOfAConsumer(t *testing.T) {
	t.Parallel()
	e := firedEvent()
	e.DeadReason, e.LastError = event.ReasonGivenUp, "boom"
	bare := deadKey + `"trigger":"deadline","deadreason":"given up by the consumer"`
	reason := strings.Replace(bare, `"trigger"`, deadOrigin+`"trigger"`, 1)
	compareForms(t, formsOf(t, deadSubject, event.DeadLetter("timers", e)), []form{
		{firedID, cloudEvent, "-", "-", deadJSON + reason + `,"lasterror":"boom","data":{"total":99}}`},
		{firedID, "-", "-", "-", deadJSON + bare + `,"data":{"total":99}}`},
		{firedID, cloudEvent, "-", "-", deadHead + deadKey + deadOrigin +
			`"datastatus":"toolarge","deadreason":"given up by the consumer"}`},
	})
}

func TestDeadLetterOfAMessageWithoutEvent(t *testing.T) {
	t.Parallel()
	e := storedMessage().StandIn("timers", keys.Retry)
	e.DeadReason, e.LastError = event.ReasonMalformed+"no event", "boom"
	const id = "shop:order:timeout:TIMERS_RETRY/7@1763629200001.1"
	const head = `{"specversion":"1.0","id":"` + id +
		`","source":"/timerd","type":"timerd.timer.dead","subject":"shop:order:timeout:TIMERS_RETRY/7",` +
		`"time":"2025-11-20T09:00:00.001Z","datacontenttype":"text/plain","app":"shop","module":"order","timertype":"timeout",` +
		`"timerid":"TIMERS_RETRY/7","dueat":"2025-11-20T09:00:00.001Z","attempt":1,"deadreason":"malformed: no event`
	compareForms(t, formsOf(t, deadSubject, event.DeadLetter("timers", e)), []form{
		{id, cloudEvent, "-", "-", head + `","lasterror":"boom","data":"junk"}`},
		{id, "-", "-", "-", head + `","data":"junk"}`},
		{id, cloudEvent, "-", "-", head + ` (cut to 2 of 4 bytes)","data":"ju"}`},
		{id, cloudEvent, "-", "-", head + ` (cut to 1 of 4 bytes)","data":"j"}`},
	})
}

func TestStandInKeys(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"timers.retry.a.b.c":                                     "a:b:c",
		"timers.retry.a%2Eb.b.c":                                 "a.b:b:c",
		"timers.retry.a.b":                                       "a:b:-",
		"timers.retry.a.b.c.d":                                   "a:b:c.d",
		"timers.retry.a%.b.c":                                    "a%:b:c",
		"timers.retry.a.b%3Ac.d":                                 "a:b%3Ac:d",
		"timers.retry." + strings.Repeat("a", 200) + ".b.c":      strings.Repeat("a", 128) + ":b:c",
		"timers.retry.a.b." + strings.Repeat("c.", 100) + "tail": "a:b:" + strings.Repeat("c.", 64),
	} {
		s := storedMessage()
		s.Subject = subject
		if got := s.StandIn("timers", keys.Retry).Key.String(); got != want+":TIMERS_RETRY/7" {
			t.Errorf("the stand-in for a message on %s has the key %q, want that of %q", subject, got, want)
		}
	}
}

func TestStoredValues(t *testing.T) {
	t.Parallel()
	s := storedMessage()
	s.Header = map[string][]string{"timer-error": {"a", "b"}, "Timer-Delay": {"1s"}}
	if got := s.Values(event.ErrorHeader); !reflect.DeepEqual(got, []string{"a", "b"}) {
		t.Errorf("values %q", got)
	}
	if got := s.Values("None"); got != nil {
		t.Errorf("values %q of a header that is not there", got)
	}
	if got := s.String(); got != "timers.retry.shop.order.timeout TIMERS_RETRY/7" {
		t.Errorf("it is at %q", got)
	}
}

func TestErrorText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"boom":                    "boom",
		"two\r\nlines\t":          "two  lines",
		strings.Repeat("e", 1280): strings.Repeat("e", 1280),
		strings.Repeat("e", 1281): strings.Repeat("e", 1277) + "…",
		strings.Repeat("ä", 5000): strings.Repeat("ä", 638) + "…",
	} {
		if got := event.ErrorText(in); got != want {
			t.Errorf("%.20q became %q, want %q", in, got, want)
		}
	}
}

func TestParseFired(t *testing.T) {
	t.Parallel()
	e := firedEvent()
	if got, err := event.ParseFired(e.AppendJSON(nil)); err != nil || got.ID != e.ID {
		t.Errorf("got %+v, %v", got, err)
	}
	e.Type, e.DeadReason = event.TypeDead, event.ReasonExhausted
	if _, err := event.ParseFired(e.AppendJSON(nil)); err == nil ||
		err.Error() != `event: type "timerd.timer.dead", want "timerd.timer.fired"` {
		t.Errorf("a dead letter: %v", err)
	}
}
