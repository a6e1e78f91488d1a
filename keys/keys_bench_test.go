package keys_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/keys"
)

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct{ name, key string }{
		{"timer", "app1:trans:notice:1615283234"},
		{"longest", "app1:trans:notice:" + strings.Repeat("9", keys.MaxKeyBytes-len("app1:trans:notice:"))},
		{"foreign", "cache:1615283234"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err := keys.Parse(c.key)
				if c.name != "foreign" && err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEventID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		keys.EventID("app1:trans:notice:1615283234", 1_763_629_200_000, 1)
	}
}

func BenchmarkSubject(b *testing.B) {
	k := keys.Key{App: "app1", Module: "trans", Type: "notice", ID: "1615283234"}
	b.ReportAllocs()
	for b.Loop() {
		k.Subject("timers", "fired")
	}
}
