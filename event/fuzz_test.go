package event_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

func FuzzRoundTrip(f *testing.F) {
	for _, c := range payloads {
		f.Add("app1:trans:notice:1", []byte(c.payload), int64(1763629200000), 1, 16)
	}
	for _, k := range hostileKeys {
		f.Add(k, []byte(k), int64(0), 2, 0)
	}
	f.Fuzz(func(t *testing.T, key string, payload []byte, due int64, attempt, maxAttempts int) {
		k, err := keys.Parse(key)
		if err != nil {
			return
		}
		due &= 1<<47 - 1
		e := event.Event{
			ID:          keys.EventID(key, due, attempt),
			Type:        event.TypeFired,
			Key:         k,
			Time:        time.UnixMilli(due + 1).UTC(),
			Due:         time.UnixMilli(due).UTC(),
			Attempt:     attempt&0x3fffffff + 1,
			MaxAttempts: maxAttempts & 0x3fffffff,
			Trigger:     "sweep",
			Data:        append([]byte{}, payload...),
			ContentType: event.DataContentType(payload),
		}
		checkContentTypeOfShallow(t, payload)
		checkRoundTrip(t, e)
		for _, form := range []string{event.DataText, event.DataBinary} {
			e.ContentType = form
			if got := reparse(t, e); !bytes.Equal(got.Data, payload) || got.Data == nil {
				t.Fatalf("%q came back as %q when asked for as %s", payload, got.Data, form)
			}
		}
		e.Data, e.ContentType, e.Status = nil, "", event.StatusMissing
		checkRoundTrip(t, e)
	})
}

// checkContentTypeOfShallow compares with encoding/json, except for a payload that could nest as deep as its limit.
func checkContentTypeOfShallow(t *testing.T, payload []byte) {
	if strings.Count(string(payload), "[")+strings.Count(string(payload), "{") < 9999 {
		checkContentType(t, payload)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample().AppendJSON(nil))
	f.Add([]byte(`{"specversion":"1.0"}`))
	f.Add([]byte(`{"a":[{"b":"\ud800\udc00"},1e5,null]} `))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := event.Parse(b)
		if err != nil {
			return
		}
		if !json.Valid(b) {
			t.Fatalf("accepted %q, which is not JSON", b)
		}
		again, err := event.Parse(e.AppendJSON(nil))
		if err != nil {
			t.Fatalf("%q became %+v, which does not parse: %v", b, e, err)
		}
		if again.ID != e.ID || again.Key != e.Key || again.Attempt != e.Attempt || !bytes.Equal(again.Data, e.Data) {
			t.Fatalf("%+v came back as %+v", e, again)
		}
	})
}

func FuzzAttempt(f *testing.F) {
	f.Add([]byte(`{"attempt":3}`))
	f.Add([]byte(`{"\u0061ttempt":3,"x":[{}]}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		got := event.Attempt(payload)
		var object map[string]json.RawMessage
		want := 1
		if event.DataContentType(payload) == event.DataJSON && json.Unmarshal(payload, &object) == nil {
			var n float64
			if json.Unmarshal(object["attempt"], &n) == nil && n >= 1 && n <= math.MaxInt32 && n == math.Trunc(n) {
				want = int(n)
			}
		}
		if got != want {
			t.Fatalf("Attempt(%q) = %d, want %d", payload, got, want)
		}
	})
}
