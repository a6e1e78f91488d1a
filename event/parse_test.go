package event_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

func TestParseTakesEventsWrittenAnew(t *testing.T) {
	t.Parallel()
	for _, c := range payloads {
		e := sample()
		e.Data, e.ContentType = []byte(c.payload), c.contentType
		encoded := e.AppendJSON(nil)

		var indented bytes.Buffer
		if err := json.Indent(&indented, encoded, "", "  "); err != nil {
			t.Fatal(err)
		}
		var anew map[string]json.RawMessage
		if err := json.Unmarshal(encoded, &anew); err != nil {
			t.Fatal(err)
		}
		anew["traceparent"] = json.RawMessage(`"00-abc"`)
		anew["dataschema"] = json.RawMessage(`null`)
		sorted := bytes.NewBufferString("\n ")
		encoder := json.NewEncoder(sorted)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(anew); err != nil {
			t.Fatal(err)
		}
		for _, variant := range [][]byte{indented.Bytes(), sorted.Bytes(), bytes.TrimSpace(sorted.Bytes())} {
			got, err := event.Parse(variant)
			if err != nil {
				t.Errorf("%s: Parse(%s): %v", c.name, variant, err)
				continue
			}
			if c.contentType == event.DataJSON && !bytes.Equal(got.Data, e.Data) {
				var was, is bytes.Buffer
				if err := errors.Join(json.Compact(&was, e.Data), json.Compact(&is, got.Data)); err != nil {
					t.Fatal(err)
				}
				if is.String() == was.String() && string(got.Data) == strings.TrimSpace(string(got.Data)) {
					got.Data = e.Data
				}
			}
			if !reflect.DeepEqual(got, e) {
				t.Errorf("%s: %s came back as %+v, was %+v", c.name, variant, got, e)
			}
		}
	}
}

func TestParseDecodesEscapes(t *testing.T) {
	t.Parallel()
	got, err := event.Parse([]byte(strings.NewReplacer(
		`"data":{"order":42}`, `"data":"\ud83d\ude00 \ud83d \ud83dx \u00e9\/\b\f\n\r\t\\\""`,
		`application/json`, `text/plain; charset=utf-8`,
		`"id":"app1`, `"\u0069d":"\u0061pp1`,
	).Replace(string(sample().AppendJSON(nil)))))
	if err != nil {
		t.Fatal(err)
	}
	if want := "😀 \ufffd \ufffdx é/\b\f\n\r\t\\\""; string(got.Data) != want {
		t.Errorf("data is %q, want %q", got.Data, want)
	}
	if got.ID != sample().ID {
		t.Errorf("id is %q, want %q", got.ID, sample().ID)
	}
}

func TestParseDoesNotShareMemory(t *testing.T) {
	t.Parallel()
	encoded := sample().AppendJSON(nil)
	got, err := event.Parse(encoded)
	if err != nil {
		t.Fatal(err)
	}
	for i := range encoded {
		encoded[i] = 'x'
	}
	if !reflect.DeepEqual(got, sample()) {
		t.Errorf("the event changed with its source to %+v", got)
	}
}

func TestParseNamesTheFault(t *testing.T) {
	t.Parallel()
	whole := string(sample().AppendJSON(nil))
	for _, c := range []struct{ old, new, want string }{
		{`"specversion":"1.0",`, ``, `specversion: missing`},
		{`"specversion":"1.0"`, `"specversion":"0.3"`, `specversion: "0.3", want "1.0"`},
		{`"specversion":"1.0"`, `"SpecVersion":"1.0"`, `specversion: missing`},
		{`"id":"app1:trans:notice:1615283234@1763629200000.1"`, `"id":""`, `id: empty`},
		{`"id":"app1:trans:notice:1615283234@1763629200000.1"`, `"id":7`, `id: "7", want a string`},
		{`timerd.timer.fired`, `com.example.x`,
			`type: "com.example.x", want "timerd.timer.fired" or "timerd.timer.dead"`},
		{`"subject":"app1:trans:notice:1615283234"`, `"subject":"app1"`, `subject: not a timer key`},
		{`"subject":"app1:trans:notice:1615283234"`, `"subject":"app1:trans:notice:%zz"`,
			`subject: "app1:trans:notice:%zz": "%zz" at 18 is not %XX`},
		{`"subject":"app1:trans:notice:1615283234"`, `"subject":null`, `subject: missing`},
		{`"time":"2026-11-20T09:00:00.003Z"`, `"time":"yesterday"`, `time: "yesterday", want a time as in RFC 3339`},
		{`"dueat":"2026-11-20T09:00:00.000Z"`, `"dueat":""`, `dueat: "", want a time as in RFC 3339`},
		{`"time":"2026-11-20T09:00:00.003Z"`, `"time":"9999-12-31T23:59:59-23:59"`,
			`time: "9999-12-31T23:59:59-23:59", want a time as in RFC 3339`},
		{`"dueat":"2026-11-20T09:00:00.000Z"`, `"dueat":"0000-01-01T00:00:00+23:59"`,
			`dueat: "0000-01-01T00:00:00+23:59", want a time as in RFC 3339`},
		{`"attempt":1`, `"attempt":0`, `attempt: "0", want an integer from 1 to 2147483647`},
		{`"attempt":1`, `"attempt":1.5`, `attempt: "1.5", want an integer from 1 to 2147483647`},
		{`"attempt":1`, `"attempt":1,"attempt":2`, `attempt: given twice`},
		{`"attempt":1`, `"attempt":null`, `attempt: missing`},
		{`"maxattempts":16`, `"maxattempts":99999999999`, `maxattempts: "99999999999", want an integer`},
		{`"data":`, `"data_base64":"AA==","data":`, `data: given together with data_base64`},
		{`"data":{"order":42}`, `"data_base64":"A"`, `data_base64: not base64`},
		{`"data":{"order":42}`, `"data":{"order":}`,
			`not a JSON object: '{' at byte 398: want a JSON value for "data"`},
		{`{"specversion"`, `{specversion`, `not a JSON object: 's' at byte 1: want a member name in double quotes`},
		{`"id":`, `"id"`, `want a colon after the member name`},
		{`"trigger":"deadline",`, `"trigger":"deadline" `, `want a comma or a closing brace`},
		{whole, whole + "x", `not a JSON object: 'x' at byte 411: want nothing after the JSON object`},
		{whole, whole[:100], `'"' at byte 99: want a JSON value for "type"`},
		{whole, whole[:98], `cut short after 98 bytes: want a colon`},
		{whole, "", `cut short after 0 bytes: want a JSON object`},
		{whole, "[]", `'[' at byte 0: want a JSON object`},
		{whole, "{}", `specversion: missing; id: missing; type: missing; subject: missing; dueat: missing; attempt: missing`},
		{whole, "{\"id\":\"\xff\"}", `not valid UTF-8`},
	} {
		broken := strings.Replace(whole, c.old, c.new, 1)
		if broken == whole {
			t.Errorf("the event holds no %s", c.old)
		}
		_, err := event.Parse([]byte(broken))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s instead of %s: got error %v, want one line with %s", c.new, c.old, err, c.want)
		}
	}
}

func TestParseErrorsTellTheCause(t *testing.T) {
	t.Parallel()
	_, err := event.Parse([]byte(`{"subject":"app1"}`))
	if !errors.Is(err, keys.ErrNotTimer) {
		t.Errorf("got %v, want it to wrap %v", err, keys.ErrNotTimer)
	}
}

func TestParsePrefersDataToStatus(t *testing.T) {
	t.Parallel()
	got, err := event.Parse([]byte(strings.Replace(string(sample().AppendJSON(nil)), `"data":`,
		`"datastatus":"missing","data":`, 1)))
	if err != nil || got.Status != "" || string(got.Data) != `{"order":42}` {
		t.Errorf("got status %q, data %q, error %v", got.Status, got.Data, err)
	}
}
