package query_test

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// A text that is no place is refused, or does no harm.
func FuzzParsePlace(f *testing.F) {
	for _, text := range []string{"", "AA", "gICA", base64.RawURLEncoding.EncodeToString(
		append([]byte{1}, make([]byte, 2000)...)), "%", "////"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		place, err := query.ParsePlace(text)
		if err != nil {
			return
		}
		if again, err := query.ParsePlace(place.String()); err != nil || again != place {
			t.Errorf("%q becomes %q, %v", text, place, err)
		}
	})
}

func TestParseQuery(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]query.Query{
		"":                      {},
		"*":                     {},
		"pay":                   {Namespace: keys.Namespace{App: "pay"}},
		"pay:order":             {Namespace: keys.Namespace{App: "pay", Module: "order"}},
		"*:order":               {Namespace: keys.Namespace{Module: "order"}},
		"pay:order:callback":    {Namespace: keys.Namespace{App: "pay", Module: "order", Type: "callback"}},
		"pay:ord*":              {Prefix: "pay:ord"},
		"pay:":                  {Prefix: "pay:"},
		"pay:order:callback:":   {Prefix: "pay:order:callback:"},
		"pay:order:callback:88": {Prefix: "pay:order:callback:88"},
		"pay:order:callback:8*": {Prefix: "pay:order:callback:8*"},
		"a:b:c:d:e":             {Prefix: "a:b:c:d:e"},
		"*:*:*:88":              {ID: "88"},
		"pay:*:callback:8:8":    {Namespace: keys.Namespace{App: "pay", Type: "callback"}, ID: "8:8"},
	} {
		if got, err := query.ParseQuery(text); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q is %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"a**:b", "a::b", "%zz", "a*b:c"} {
		if got, err := query.ParseQuery(text); err == nil {
			t.Errorf("%q is %+v, want an error", text, got)
		}
	}
}
