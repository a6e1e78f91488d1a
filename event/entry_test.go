package event_test

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// An entry comes back as it was written, its texts in one line, and is found by its timers.
func TestEntry(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1795176847361).UTC()
	e := event.Entry{Kind: event.EntryCancel, Time: at.Add(time.Microsecond), By: "ops\n@\xffhost",
		Via: event.ViaCommand, Namespace: "shop:*:timeout", Count: 7, Detail: strings.Repeat("x", 5000)}
	for range 300 {
		e.Subjects = append(e.Subjects, keys.EncodeText("pay:m:t:%\x00\xff"+strings.Repeat("i", 100)))
	}
	data, err := e.AppendJSON(nil)
	if err != nil || len(data) > 64<<10 {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	got, err := event.ParseEntry(data)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Time.Equal(at) || got.Count != 7 || len(got.Subjects) != event.MaxEntrySubjects ||
		got.Subjects[0] != e.Subjects[0] || strings.Contains(got.By, "\n") || len(got.Detail) > 1300 {
		t.Errorf("%+v", got)
	}
	for name, concerned := range map[string]bool{
		"shop:order:timeout:1": true, "shop:order:other:1": false, "pay:m:t:1": false,
		"pay:m:t:%\x00\xff" + strings.Repeat("i", 100): true,
	} {
		k, err := keys.Parse(name)
		if err != nil || got.Concerns(k) != concerned {
			t.Errorf("%q: concerned %t, %v", name, got.Concerns(k), err)
		}
	}
}

// Anything else on the subjects of the history is no entry.
func TestNoEntries(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                                      "not an entry",
		`[]`:                                    "not an entry",
		`{}`:                                    "kind is missing",
		`{"kind":"guarded"}`:                    "0 subjects, want 1",
		`{"kind":"hold","namespace":"a:b:c:d"}`: "namespace",
		`{"kind":"hold","subjects":["a"]}`:      "subject",
		`{"kind":"hold","time":"x"}`:            "not an entry",
		`{"kind":"cancel","subjects":["a:b:c:d"` + strings.Repeat(`,"a:b:c:d"`, 100) + `]}`: "101 subjects",
	} {
		if e, err := event.ParseEntry([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %+v, %v", text, e, err)
		}
	}
}
