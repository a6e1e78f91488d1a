package event_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

func TestParseDelivery(t *testing.T) {
	t.Parallel()
	key := "pay:order:callback:\xff\u202e<b>%"
	d := event.Delivery{
		ID: "a@1.1", Origin: "a@1.1", Subject: keys.EncodeText(key), Attempt: 2, Host: "merchant.example:443",
		Status: 502, Result: event.ResultRetry,
		Duration: 41, Time: time.Date(2026, 11, 22, 4, 11, 41, 652e6, time.UTC), Error: "502 Bad Gateway",
	}
	data, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := event.ParseDelivery(data)
	if err != nil || got != d {
		t.Errorf("%+v, %v; want %+v", got, err, d)
	}
	if k, err := got.Key(); err != nil || k.String() != key {
		t.Errorf("of the key %q, %v", k, err)
	}
}

// Anybody may publish to the log: a parsed record can be written as JSON again, and an error quotes little of a long
// message.
func TestParseForgedDelivery(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{
		"":                  "unexpected end",
		"[]":                "array",
		`{"id":"x"}`:        "id or result is missing",
		`{"result":"dead"}`: "id or result is missing",
		`{"id":"x","result":"dead","status":` + strings.Repeat("9", 100_000) + `}`:           "cannot unmarshal number",
		`{"id":"x","result":"dead","time":"` + strings.Repeat("9", 100_000) + `"}`:           "time",
		`{"id":"x","result":"dead","time":"9999-12-31T23:59:59-23:59"}`:                      "no year",
		`{"id":"x","result":"dead","time":"0000-01-01T00:00:00+23:59"}`:                      "no year",
		`{"id":"x","result":"dead","duration_ms":"` + strings.Repeat("\xff", 100_000) + `"}`: "cannot unmarshal string",
	} {
		if d, err := event.ParseDelivery([]byte(data)); err == nil || !strings.Contains(err.Error(), want) ||
			len(err.Error()) > 2000 {
			t.Errorf("%.100q: %+v, %.2000v; want %q", data, d, err, want)
		}
	}
	d, err := event.ParseDelivery(
		[]byte("{\"id\":\"x\",\"subject\":\"no key\",\"result\":\"\xff\u202e\",\"host\":\"<b>\xc0\"}"))
	if err != nil || d.Result != "\ufffd\u202e" || d.Host != "<b>\ufffd" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := d.Key(); err == nil {
		t.Error("no error for what names no key")
	}
}
