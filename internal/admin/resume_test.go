package admin_test

import (
	"math"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/admin"
)

func TestParseRate(t *testing.T) {
	for text, want := range map[string]float64{"200/s": 200, "0.5/s": 0.5, "90/m": 1.5, "1/m": 1. / 60, "60/h": 1. / 60,
		"1000000/s": 1e6, "3600000000/h": 1e6} {
		if got, err := admin.ParseRate(text); err != nil || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "3", "/s", "x/s", "3/d", "0/s", "-1/s", "0.001/s", "1/h", "1e-300/s", "1000001/s",
		"1e300/s", "NaN/s", "Inf/s"} {
		if got, err := admin.ParseRate(text); err == nil || !strings.Contains(err.Error(), "from 1/m to 1000000/s") {
			t.Errorf("%s: %v, %v; want an error with the allowed values", text, got, err)
		}
	}
}
