package diag

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Duration formats a duration for people: with days, and without zero parts: 40d 51m, 1h 30m, 4.5s, 0s.
func Duration(d time.Duration) string {
	if d < 0 {
		return "-" + Duration(-max(d, -math.MaxInt64))
	}
	var parts []string
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := d / unit.of; n > 0 {
			parts = append(parts, fmt.Sprintf("%d%s", n, unit.name))
			d %= unit.of
		}
	}
	if d > 0 || len(parts) == 0 {
		parts = append(parts, d.String())
	}
	return strings.Join(parts, " ")
}
