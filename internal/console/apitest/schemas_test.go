package apitest

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/timerd-io/timerd/docs/schemas"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// compiled returns the schema of a name, with formats asserted.
func compiled(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	text, ok := schemas.Text(name)
	if !ok {
		t.Fatalf("no schema %q", name)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fits validates a text against a schema.
func fits(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s.Validate(value)
}

// every returns an event with every attribute that a type has.
func every(kind string) event.Event {
	key := keys.Key{App: "shop", Module: "order", Type: "timeout", ID: "42\x00%"}
	due := time.UnixMilli(1795176847361)
	e := event.Event{
		ID: keys.EventID(key.String(), due.UnixMilli(), 3), Type: kind, Key: key, Time: due.Add(time.Second), Due: due,
		Attempt: 3, MaxAttempts: 16,
		Trigger: "deadline", Late: policy.Limit{Given: true, Most: time.Minute, Drop: true}, Repeat: "every 5m0s",
		Occurrence: 7,
		Guards:     policy.Guards{Unless: "shop:order:paid:42", If: "shop:live"},
		Origin:     "sha256:0", OriginAt: "1795176840000.1", Replayed: due,
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		TraceState:  "v=1",
	}
	if kind == event.TypeDead {
		e.DeadReason, e.LastError = event.ReasonExhausted, "502"
	}
	return e
}

// What the code writes fits the schemas, which describe every attribute of it.
func TestSchemasFitTheCode(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]string{"event": event.TypeFired, "dead": event.TypeDead} {
		schema, seen := compiled(t, name), map[string]bool{}
		for _, change := range []func(*event.Event){
			func(e *event.Event) { e.Data = []byte(`{"order":42}`) },
			func(e *event.Event) { e.Data = []byte{} },
			func(e *event.Event) { e.Data = []byte("text") },
			func(e *event.Event) { e.Data = []byte("\xff") },
			func(e *event.Event) { e.Data, e.ContentType = []byte("1.10"), event.DataText },
			func(e *event.Event) { e.Status = event.StatusMissing },
			func(e *event.Event) { e.Status = event.StatusTooLarge },
			func(e *event.Event) {
				*e = event.Event{ID: e.ID, Type: e.Type, Key: e.Key, Due: e.Due, Attempt: 1, DeadReason: e.DeadReason}
			},
		} {
			e := every(kind)
			change(&e)
			text := e.AppendJSON(nil)
			if err := fits(t, schema, string(text)); err != nil {
				t.Errorf("%s does not fit: %v", text, err)
			}
			var attributes map[string]any
			if err := json.Unmarshal(text, &attributes); err != nil {
				t.Fatal(err)
			}
			for a := range attributes {
				seen[a] = true
			}
		}
		described := slices.Sorted(maps.Keys(schema.Properties))
		if written := slices.Sorted(maps.Keys(seen)); !slices.Equal(described, written) {
			t.Errorf("the schema %s describes %v, the code writes %v", name, described, written)
		}
	}
	entry := compiled(t, "history")
	for _, e := range []event.Entry{
		{Kind: event.EntryGuarded, Subjects: []string{"a:b:c:d"}, Due: time.UnixMilli(1), Attempt: 1, GuardIf: "k"},
		{Kind: event.EntryDropped, Subjects: []string{"a:b:c:d"}, GuardUnless: "k"},
		{Kind: event.EntryCancel, By: "ops@host", Via: event.ViaCommand, Namespace: "shop", Count: 3, Detail: "x"},
		{Kind: event.EntryClock, By: "host-a", Via: event.ViaTimerd, Detail: "back by 5s"},
		{Kind: event.EntryGone, By: "host-a", Via: event.ViaTimerd, Detail: "host-b"},
	} {
		text, err := e.AppendJSON(nil)
		if err == nil {
			err = fits(t, entry, string(text))
		}
		if err != nil {
			t.Errorf("%s does not fit: %v", text, err)
		}
	}
	delivery := compiled(t, "delivery")
	for _, result := range event.Results() {
		text, err := json.Marshal(event.Delivery{ID: "a@1.1", Origin: "a@1.1", Subject: "a:b:c:d", Attempt: 1,
			Result: result, Time: time.UnixMilli(1), Error: "502"})
		if err == nil {
			err = fits(t, delivery, string(text))
		}
		if err != nil {
			t.Errorf("%s does not fit: %v", text, err)
		}
	}
}

// The schemas refuse the same messages as the readers, and the conformance suite's firings fit the event's.
func TestSchemasRefuse(t *testing.T) {
	t.Parallel()
	good := `{"specversion":"1.0","id":"a:b:c:d@1.1","source":"/timerd","type":"timerd.timer.fired","subject":"a:b:c:d","app":"a","module":"b",` +
		`"timertype":"c","timerid":"d","dueat":"2026-11-20T12:14:07.361Z","attempt":1,"datacontenttype":"application/json","data":{}}`
	for _, c := range []struct{ schema, text string }{
		{"event", strings.Replace(good, `"1.0"`, `"0.3"`, 1)},
		{"event", strings.Replace(good, "fired", "dead", 1)},
		{"event", strings.Replace(good, `"attempt":1`, `"attempt":0`, 1)},
		{"event", strings.Replace(good, `"attempt":1`, `"attempt":"1"`, 1)},
		{"event", strings.Replace(good, "2026-11-20", "2026-13-20", 1)},
		{"event", strings.Replace(good, `"data":{}`, `"data":{},"data_base64":""`, 1)},
		{"event", strings.Replace(good, `"data":{}`, `"data":{},"datastatus":"missing"`, 1)},
		{"event", strings.Replace(good, `"timerid":"d",`, ``, 1)},
		{"event", strings.Replace(good, `"data":{}`, `"data":{},"deadreason":"held"`, 1)},
		{"dead", strings.Replace(good, "fired", "dead", 1)},
		{"delivery", `{"id":"a@1.1","origin":"","subject":"a:b:c:d","attempt":1,"host":"","status":0,"result":"maybe","duration_ms":0,"time":"2026-11-20T12:14:07Z"}`},
		{"history", `{"kind":"guarded","time":"2026-11-20T12:14:07Z"}`},
		{"history", `{"kind":"guarded","time":"2026-11-20T12:14:07Z","subjects":["a:b:c:d","a:b:c:e"]}`},
		{"history", `{"kind":"hold","time":"2026-11-20T12:14:07Z"}`},
		{"history", `{"kind":"other","time":"2026-11-20T12:14:07Z","by":"a@b","via":"console"}`},
		{"request", `{"Timer-Postpone":"1"}`},
		{"request", `{"Timer-Delay":"soon"}`},
		{"request", `{"Timer-Delay":"-1s"}`},
		{"answer", `{"id":"a@1.1"}`},
		{"answer", `{"result":"ok"}`},
		{"answer", `{"result":"postpone"}`},
		{"answer", `{"result":"retry","delay":"soon"}`},
		{"timer", `{"key":"a:b:c:d"}`},
		{"timer", `{"key":"a:b:c:d","key_base64":"YTpiOmM6ZA==","px":1}`},
		{"timer", `{"key":"a:b:c:d","px":1,"due":1}`},
		{"timer", `{"key":"a:b:c:d","due":1,"nx":true}`},
		{"timer", `{"key":"a:b:c:d","at":1,"origin":"1.1"}`},
		{"timer", `{"key":"a:b:c:d","due":1,"origin":"now"}`},
		{"timer", `{"key":"a:b:c:d","due":1,"repeat":"every 5m0s"}`},
		{"timer", `{"key":"a:b:c:d","px":1,"drop_late":true}`},
		{"timer", `{"key":"a:b:c:d","px":1,"guard":"x"}`},
	} {
		if fits(t, compiled(t, c.schema), c.text) == nil {
			t.Errorf("%s fits the schema %s", c.text, c.schema)
		}
	}
	for _, c := range []struct{ schema, text string }{
		{"event", good},
		{"request", `{"Timer-Delay":"1h30m","Timer-Postpone":"1","Timer-Error":"503"}`},
		{"request", `{"Timer-Delay-Least":"1.5s"}`},
		{"answer", `{"id":"a@1.1","result":"done"}`},
		{"answer", `{"result":"postpone","delay":"10m"}`},
		{"timer", `{"key":"a:b:c:d","payload":{"a":1},"px":1,"nx":true,"attempt":3,"late":0,"drop_late":true}`},
		{"timer", `{"key_base64":"/zpiOmM6ZA==","payload_base64":"/w==","at":0}`},
		{"timer", `{"key":"a:b:c:d","state":"held","payload":"","due":1795723806433,"attempt":2,"late":5000,"origin":"1795723801403.1",` +
			`"replayed":1795723801404,"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=b","expired":true,` +
			`"repeat":"every 500ms","occurrence":1,"repetition":{"serial":1795723805933438,"nominal":1795723806433,"from":1795723805933,` +
			`"times":5,"until":1795723906433,"catchup":1000,"left_out":[1,2,3]}}`},
		{"timer", `{"key":"a:b:c:d","state":"pending","due":1795723806433,"beside":true,"datastatus":"missing"}`},
	} {
		if err := fits(t, compiled(t, c.schema), c.text); err != nil {
			t.Errorf("%s does not fit the schema %s: %v", c.text, c.schema, err)
		}
	}
	suite, err := os.ReadFile("../../../clients/conformance/cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases struct {
		Event    string
		Consumer []struct {
			Type, Members string
			Want          struct{ Event json.RawMessage }
		}
	}
	if err := json.Unmarshal(suite, &cases); err != nil {
		t.Fatal(err)
	}
	checked, schema := 0, compiled(t, "event")
	for _, c := range cases.Consumer {
		if c.Want.Event == nil || c.Type == "untraced" { // which is malformed on purpose
			continue
		}
		text := strings.NewReplacer("{key}", "conf:run:"+c.Type+":1", "{run}", "run", "{type}", c.Type, "{members}",
			c.Members).Replace(cases.Event)
		if err := fits(t, schema, text); err != nil {
			t.Errorf("%s does not fit: %v", text, err)
		}
		checked++
	}
	if checked < 10 {
		t.Errorf("%d events of the conformance suite were checked, want at least 10", checked)
	}
}
