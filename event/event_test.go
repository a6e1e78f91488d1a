package event_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// sample is the event of the contract's example.
func sample() event.Event {
	return event.Event{
		ID:          "app1:trans:notice:1615283234@1763629200000.1",
		Type:        event.TypeFired,
		Key:         keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1615283234"},
		Time:        time.UnixMilli(1795165200003).UTC(),
		Due:         time.UnixMilli(1795165200000).UTC(),
		Attempt:     1,
		MaxAttempts: 16,
		Trigger:     "deadline",
		Data:        []byte(`{"order":42}`),
		ContentType: event.DataJSON,
	}
}

func TestAppendJSONWritesTheDocumentedForm(t *testing.T) {
	t.Parallel()
	const want = `{"specversion":"1.0","id":"app1:trans:notice:1615283234@1763629200000.1","source":"/timerd","type":"timerd.timer.fired",` +
		`"subject":"app1:trans:notice:1615283234","time":"2026-11-20T09:00:00.003Z","datacontenttype":"application/json",` +
		`"app":"app1","module":"trans","timertype":"notice","timerid":"1615283234",` +
		`"dueat":"2026-11-20T09:00:00.000Z","attempt":1,"maxattempts":16,"trigger":"deadline","data":{"order":42}}`
	if got := string(sample().AppendJSON(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestGuardsTravel(t *testing.T) {
	t.Parallel()
	for members, want := range map[string]policy.Guards{
		`"guardunless":"shop:order:paid:42"`:   {Unless: "shop:order:paid:42"},
		`"guardif":"%25\"é","guardunless":"a"`: {Unless: "a", If: `%"é`},
		`"guardunless":null`:                   {},
		`"guardif":"%FF%0A;"`:                  {If: "\xff\n;"},
	} {
		e := sample()
		text := strings.Replace(string(e.AppendJSON(nil)), `"maxattempts":16,`, `"maxattempts":16,`+members+`,`, 1)
		got, err := event.Parse([]byte(text))
		if err != nil || got.Guards != want {
			t.Errorf("%s: %+v, %v; want %+v", members, got.Guards, err, want)
		}
		e.Guards = want
		if again, err := event.Parse(e.AppendJSON(nil)); err != nil || again.Guards != want {
			t.Errorf("%s: written as %s", members, e.AppendJSON(nil))
		}
	}
	for members, want := range map[string]string{
		`"guardunless":""`: "want a key of 1 to 1,024 bytes", `"guardif":1`: "want a string",
		`"guardif":"%"`: "guardif: ", `"guardunless":"` + strings.Repeat("x", 1025) + `"`: "want a key",
	} {
		text := strings.Replace(string(sample().AppendJSON(nil)), `"maxattempts":16,`, members+`,`, 1)
		if _, err := event.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", members, err, want)
		}
	}
}

func TestLimitTravels(t *testing.T) {
	t.Parallel()
	for members, want := range map[string]policy.Limit{
		`"late":300000`:                     {Given: true, Most: 5 * time.Minute},
		`"late":300000,"latedrop":true`:     {Given: true, Most: 5 * time.Minute, Drop: true},
		`"late":0`:                          {Given: true},
		`"late":315360000000`:               {Given: true, Most: policy.Longest},
		`"latedrop":true`:                   {},
		`"late":3e5,"latedrop":false`:       {Given: true, Most: 5 * time.Minute},
		`"latedrop":true,"late":1.0`:        {Given: true, Most: time.Millisecond, Drop: true},
		`"late":null,"latedrop":null,"x":1`: {},
	} {
		e := sample()
		text := strings.Replace(string(e.AppendJSON(nil)), `"maxattempts":16,`, `"maxattempts":16,`+members+`,`, 1)
		got, err := event.Parse([]byte(text))
		if err != nil || got.Late != want {
			t.Errorf("%s: %+v, %v; want %+v", members, got.Late, err, want)
		}
		e.Late = want
		if again, err := event.Parse(e.AppendJSON(nil)); err != nil || again.Late != want {
			t.Errorf("%s: written as %s", members, e.AppendJSON(nil))
		}
	}
	e := sample()
	e.Late = policy.Limit{Given: true, Most: 1500 * time.Millisecond, Drop: true}
	if got, want := string(e.AppendJSON(nil)),
		`"attempt":1,"maxattempts":16,"late":1500,"latedrop":true,"trigger":"deadline"`; !strings.Contains(got, want) {
		t.Errorf("got %s, want %s in it", got, want)
	}
	for members, want := range map[string]string{
		`"late":-1`: "late: ", `"late":1.5`: "late: ", `"late":"5m"`: "late: ",
		`"late":315360000001`: "want an integer from 0 to 315360000000",
		`"late":true`:         "late: ", `"late":1,"latedrop":1`: "latedrop: ",
		`"late":1,"latedrop":"true"`: "want true or false", `"late":1,"late":2`: "given twice",
	} {
		text := strings.Replace(string(sample().AppendJSON(nil)), `"maxattempts":16,`, `"maxattempts":16,`+members+`,`,
			1)
		if _, err := event.Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", members, err, want)
		}
	}
}

func TestOccurrenceTravels(t *testing.T) {
	t.Parallel()
	e := sample()
	e.Repeat, e.Occurrence = "cron 0 9 * * 1-5 Europe/Berlin", 1<<40
	text := string(e.AppendJSON(nil))
	if want := `,"repeat":"cron 0 9 * * 1-5 Europe/Berlin","occurrence":1099511627776,"trigger":`; !strings.Contains(
		text, want) {
		t.Errorf("got %s, want %s in it", text, want)
	}
	if got, err := event.Parse([]byte(text)); err != nil || got.Repeat != e.Repeat || got.Occurrence != e.Occurrence {
		t.Errorf("got %+v, %v", got, err)
	}
	for members, want := range map[string]string{
		`"repeat":"every 5m0s","occurrence":0`:   "occurrence: ",
		`"repeat":"every 5m0s","occurrence":1.5`: "occurrence: ", `"occurrence":"1"`: "occurrence: ",
		`"repeat":"every:5m0s"`: "repeat: ", `"repeat":"every 5m;R=1"`: "repeat: ", `"repeat":"every\n"`: "repeat: ",
		`"repeat":5`: "want a string",
		`"repeat":"` + strings.Repeat("x", 401) + `"`: "repeat: ", `"repeat":"every 5m0s"`: "", `"occurrence":1`: "",
		`"repeat":null`: "",
	} {
		text := strings.Replace(string(sample().AppendJSON(nil)), `"maxattempts":16,`, `"maxattempts":16,`+members+`,`,
			1)
		got, err := event.Parse([]byte(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || got.Repeat != "" ||
			got.Occurrence != 0 {
			t.Errorf("%s: %+v, %v; want %q", members, got, err, want)
		}
	}
}

func TestLateReasons(t *testing.T) {
	t.Parallel()
	if got, want := event.LateReason(432300*time.Millisecond, 5*time.Minute, false),
		"late: 7m12.3s after its due time, at most 5m0s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := event.LateReason(2*time.Millisecond, time.Millisecond, true),
		"late: 2ms after its due time, at most 1ms; may have been published"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestAppendJSONKeepsTheBuffer(t *testing.T) {
	t.Parallel()
	got := string(sample().AppendJSON([]byte("before")))
	if want := "before" + string(sample().AppendJSON(nil)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// payloads are payloads with the members by which they travel.
var payloads = []struct {
	name, payload, contentType, members string
}{
	{"object", `{"order":42}`, event.DataJSON, `"data":{"order":42}`},
	{"white space around", " \n\t{\"a\" : 1}\r\n ", event.DataJSON, "\"data\": \n\t{\"a\" : 1}\r\n "},
	{"number", `42`, event.DataJSON, `"data":42`},
	{"number with exponent", `-0.5e+10`, event.DataJSON, `"data":-0.5e+10`},
	{"null", `null`, event.DataJSON, `"data":null`},
	{"JSON string", `"hi \u00e9"`, event.DataJSON, `"data":"hi \u00e9"`},
	{"duplicate names", `{"a":1,"a":2}`, event.DataJSON, `"data":{"a":1,"a":2}`},
	{"lone surrogate", `"\ud800"`, event.DataJSON, `"data":"\ud800"`},
	{"HTML characters", `{"a":"<b>&"}`, event.DataJSON, `"data":{"a":"<b>&"}`},
	{"text", `pay order 42`, event.DataText, `"data":"pay order 42"`},
	{"almost JSON", `{"a":1,}`, event.DataText, `"data":"{\"a\":1,}"`},
	{"leading zero", `042`, event.DataText, `"data":"042"`},
	{"control characters", "a\x00b\x1f\n\r\t\x7f", event.DataText, `"data":"a\u0000b\u001f\n\r\t` + "\x7f" + `"`},
	{"quotes", `say "hi\"`, event.DataText, `"data":"say \"hi\\\""`},
	{"line separators", "a\u2028b\u2029", event.DataText, "\"data\":\"a\u2028b\u2029\""},
	{"byte order mark", "\ufeff{}", event.DataText, "\"data\":\"\ufeff{}\""},
	{"noncharacter", "\ufffe", event.DataText, "\"data\":\"\ufffe\""},
	{"empty", "", event.DataText, `"data":""`},
	{"white space only", " \n", event.DataText, `"data":" \n"`},
	{"binary", "\xff\x00\x01", event.DataBinary, `"data_base64":"/wAB"`},
	{"JSON that is not UTF-8", "{\"a\":\"\xff\"}", event.DataBinary, `"data_base64":"eyJhIjoi/yJ9"`},
	{"UTF-8 surrogate", "\xed\xa0\x80", event.DataBinary, `"data_base64":"7aCA"`},
}

func TestPayloadsTravelByteForByte(t *testing.T) {
	t.Parallel()
	for _, c := range payloads {
		t.Run(c.name, func(t *testing.T) {
			e := sample()
			e.Data, e.ContentType = []byte(c.payload), c.contentType
			encoded := e.AppendJSON(nil)
			if !strings.HasSuffix(string(encoded), `,"trigger":"deadline",`+c.members+`}`) {
				t.Errorf("event is %s, want it to end with %s", encoded, c.members)
			}
			if !strings.Contains(string(encoded), `"datacontenttype":"`+c.contentType+`"`) {
				t.Errorf("event is %s, want datacontenttype %s", encoded, c.contentType)
			}
			checkRoundTrip(t, e)
		})
	}
}

// However a payload travels, the same bytes come back, and travel in the same way again.
func TestPayloadsTravelAsAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ asked, payload, contentType, members string }{
		{event.DataText, `12345678901234567890`, event.DataText, `"data":"12345678901234567890"`},
		{event.DataText, `1.10`, event.DataText, `"data":"1.10"`},
		{event.DataText, `007`, event.DataText, `"data":"007"`},
		{event.DataText, `"a"`, event.DataText, `"data":"\"a\""`},
		{event.DataText, "{\n}", event.DataText, `"data":"{\n}"`},
		{event.DataText, ``, event.DataText, `"data":""`},
		{event.DataText, "{\"a\":\"\xff\"}", event.DataBinary, `"data_base64":"eyJhIjoi/yJ9"`},
		{event.DataBinary, `1.10`, event.DataBinary, `"data_base64":"MS4xMA=="`},
		{event.DataBinary, ``, event.DataBinary, `"data_base64":""`},
		{"application/xml", `1.10`, event.DataJSON, `"data":1.10`},
		{event.DataJSON, `1.10`, event.DataJSON, `"data":1.10`},
		{event.DataJSON, `a`, event.DataText, `"data":"a"`},
	} {
		e := sample()
		e.Data, e.ContentType = []byte(c.payload), c.asked
		encoded := e.AppendJSON(nil)
		if !strings.HasSuffix(string(encoded), `,"trigger":"deadline",`+c.members+`}`) ||
			!strings.Contains(string(encoded), `"datacontenttype":"`+c.contentType+`"`) {
			t.Errorf("%q as %q is %s, want %s, and %s at its end", c.payload, c.asked, encoded, c.contentType,
				c.members)
		}
		parsed := reparse(t, e)
		if string(parsed.Data) != c.payload || parsed.Data == nil || parsed.ContentType != c.contentType {
			t.Errorf("%q as %q came back as %q of %q", c.payload, c.asked, parsed.Data, parsed.ContentType)
		}
		checkRoundTrip(t, parsed)
	}
}

func TestNoPayload(t *testing.T) {
	t.Parallel()
	for _, status := range []string{event.StatusMissing, event.StatusTooLarge} {
		e := sample()
		e.Data, e.ContentType, e.Status = nil, "", status
		got := string(e.AppendJSON(nil))
		if strings.Contains(got, `"data"`) || strings.Contains(got, "datacontenttype") ||
			!strings.Contains(got, `"datastatus":"`+status+`"`) {
			t.Errorf("status %s: got %s", status, got)
		}
		checkRoundTrip(t, e)

		e.Data = []byte("not to be sent")
		if with := string(e.AppendJSON(nil)); with != got {
			t.Errorf("status %s with data: got %s, want %s", status, with, got)
		}
	}
}

func TestDeeplyNestedPayload(t *testing.T) {
	t.Parallel()
	for depth, want := range map[int]string{9999: event.DataJSON, 10000: event.DataText, 100000: event.DataText} {
		e := sample()
		e.Data = []byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))
		e.ContentType = want
		checkRoundTrip(t, e)
		if !json.Valid(e.AppendJSON(nil)) {
			t.Errorf("depth %d: encoding/json cannot read the event", depth)
		}
	}
}

func TestDeadLetterText(t *testing.T) {
	t.Parallel()
	e := sample()
	e.Type = event.TypeDead
	e.DeadReason = "attempts used up"
	e.LastError = "POST \"https://x\\y\": 500\r\nbody \xff\u0085\ufdd0 é 100%"
	e = reparse(t, e)
	if want := "POST \"https://x\\y\": 500  body \ufffd \ufffd é 100%"; e.LastError != want {
		t.Errorf("lasterror is %q, want %q", e.LastError, want)
	}
	if e.Type != event.TypeDead || e.DeadReason != "attempts used up" {
		t.Errorf("got type %q, deadreason %q", e.Type, e.DeadReason)
	}
	checkRoundTrip(t, e)
}

func TestHostileKeys(t *testing.T) {
	t.Parallel()
	for _, s := range hostileKeys {
		k, err := keys.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		e := sample()
		e.Key = k
		e.ID = keys.EventID(s, e.Due.UnixMilli(), e.Attempt)
		checkRoundTrip(t, e)
	}
}

var hostileKeys = []string{
	"a.b:*:>:c d",
	"a:b:c::",
	"a:b:c:d:e",
	"a:b:c:\r\nNats-Msg-Id: x",
	"a\x00:b:c:\x7f\u0085",
	"a%41:b:c:%",
	"\xff:\xfe:\xc3:\x28\xed\xa0\x80",
	`a":b\:{"c"}:` + "\u2028",
	"日本:ü:\ufffe:\U0010ffff",
	strings.Repeat("\x01", 128) + ":" + strings.Repeat("\xff", 128) + ":" + strings.Repeat("%", 128) + ":" +
		strings.Repeat("\n", 1024-3*128-3),
}

func checkRoundTrip(t *testing.T, e event.Event) {
	t.Helper()
	if got := reparse(t, e); !reflect.DeepEqual(got, e) {
		t.Errorf("came back as %+v, was %+v", got, e)
	}
}

// reparse returns Parse of e's encoding, and first checks that against the CloudEvents SDK.
func reparse(t *testing.T, e event.Event) event.Event {
	t.Helper()
	encoded := e.AppendJSON(nil)
	checkConformance(t, e, encoded)
	got, err := event.Parse(encoded)
	if err != nil {
		t.Fatalf("Parse(%s): %v", encoded, err)
	}
	return got
}

// checkConformance reads an encoded event with the official SDK.
func checkConformance(t *testing.T, e event.Event, encoded []byte) {
	t.Helper()
	var official cloudevents.Event
	if err := json.Unmarshal(encoded, &official); err != nil {
		t.Fatalf("the CloudEvents SDK refuses %s: %v", encoded, err)
	}
	if err := official.Validate(); err != nil {
		t.Fatalf("the CloudEvents SDK finds %s invalid: %v", encoded, err)
	}
	if official.ID() != e.ID || official.Type() != e.Type || official.Source() != event.Source ||
		!official.Time().Equal(e.Time) {
		t.Errorf("the CloudEvents SDK reads %s as %v", encoded, official)
	}
	for name, want := range map[string]string{"app": e.Key.App, "module": e.Key.Module, "timertype": e.Key.Type,
		"timerid": e.Key.ID} {
		text, ok := official.Extensions()[name].(string)
		if got, err := keys.DecodeText(text); !ok || err != nil || got != want {
			t.Errorf("the CloudEvents SDK reads %s as %q (%v), want %q", name, got, err, want)
		}
	}
	if e.Data == nil || e.Status != "" {
		return
	}
	got, want := string(official.Data()), string(e.Data)
	if official.DataContentType() == event.DataJSON {
		got, want = strings.Trim(got, " \n\r\t"), strings.Trim(want, " \n\r\t")
	}
	if got != want {
		t.Errorf("the CloudEvents SDK reads the data as %q, want %q", got, want)
	}
}

func TestAttempt(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]int{
		`{"attempt":3}`:                        3,
		` {"a":{"attempt":9},"attempt" : 2 } `: 2,
		`{"attempt":2147483647}`:               math.MaxInt32,
		`{"attempt":2147483648}`:               1,
		`{"attempt":2e1}`:                      20,
		`{"attempt":2.0}`:                      2,
		`{"attempt":2.5}`:                      1,
		`{"attempt":1e400}`:                    1,
		`{"attempt":0x2}`:                      1,
		`{"attempt":NaN}`:                      1,
		`{"attempt":0}`:                        1,
		`{"attempt":-2}`:                       1,
		`{"attempt":"2"}`:                      1,
		`{"attempt":null}`:                     1,
		`{"attempt":{"attempt":2}}`:            1,
		`{"Attempt":2}`:                        1,
		`{"\u0061ttempt":2}`:                   2,
		`{"attempt":2,"attempt":5}`:            5,
		`{"attempt":2,"attempt":"x"}`:          1,
		`{"x":{"attempt":2}}`:                  1,
		`[{"attempt":2}]`:                      1,
		`"attempt"`:                            1,
		`{"attempt":2`:                         1,
		`{"attempt":2} {}`:                     1,
		`{"attempt":2,}`:                       1,
		"{\"attempt\":2,\"x\":\"\xff\"}":       1,
		``:                                     1,
		`{}`:                                   1,
		`{"text":"the \"attempt\" was","attempt":  7  }`: 7,
	} {
		if got := event.Attempt([]byte(payload)); got != want {
			t.Errorf("Attempt(%s) = %d, want %d", payload, got, want)
		}
	}
	if got := event.Attempt(nil); got != 1 {
		t.Errorf("Attempt(nil) = %d, want 1", got)
	}
}

func TestDataContentTypeAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, c := range payloads {
		checkContentType(t, []byte(c.payload))
	}
	for _, s := range []string{`-`, `-a`, `1.`, `1.e1`, `1e`, `1e+`, `.5`, `+1`, `00`, `-0`, `1 2`, `nul`, `nulll`,
		`tru`, `[`, `[1`, `[1,`, `[,]`, `[1 2]`,
		`{`, `{"a"`, `{"a":`, `{"a":1`, `{"a" 1}`, `{a:1}`, `{"a":1,}`, `{"a":1 "b":2}`, `"`, `"\`, `"\x"`, `"\u12`,
		`"\u12G4"`, `"\u`, "\"\n\"", `[] x`, `{} {}`, "\v1", "1\x00"} {
		checkContentType(t, []byte(s))
	}
}

func checkContentType(t *testing.T, payload []byte) {
	t.Helper()
	want := event.DataText
	switch {
	case !utf8.Valid(payload):
		want = event.DataBinary
	case json.Valid(payload):
		want = event.DataJSON
	}
	if got := event.DataContentType(payload); got != want {
		t.Errorf("DataContentType(%q) = %s, want %s", payload, got, want)
	}
}
