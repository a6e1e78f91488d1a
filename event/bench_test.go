package event_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/event"
)

func BenchmarkAppendJSON(b *testing.B) {
	for _, c := range []struct{ name, payload string }{
		{"JSON", `{"order":42,"customer":"` + strings.Repeat("x", 170) + `"}`},
		{"text", strings.Repeat("x", 200)},
		{"binary", strings.Repeat("\xff", 200)},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := sample()
			e.Data = []byte(c.payload)
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				buf = e.AppendJSON(buf[:0])
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	encoded := sample().AppendJSON(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Parse(encoded); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAttempt(b *testing.B) {
	for _, c := range []struct{ name, payload string }{
		{"none", `{"order":42,"customer":"` + strings.Repeat("x", 170) + `"}`},
		{"last", `{"order":42,"customer":"` + strings.Repeat("x", 170) + `","attempt":2}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			payload := []byte(c.payload)
			b.ReportAllocs()
			for b.Loop() {
				event.Attempt(payload)
			}
		})
	}
}
