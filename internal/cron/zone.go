package cron

import (
	_ "embed" // zones.txt
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// zone is a zone of the IANA database. Its methods take instants in unix seconds, and local times as in calendar.go.
type zone struct{ *time.Location }

// maxOffset is over the difference of any clock on earth from UTC, past ones included.
const maxOffset = 24 * 60 * 60

// always is later than any time, and -always earlier.
const always = 1 << 62

// CheckZone returns an error if neither this machine nor Go's own database has a zone of that name; an empty name is
// UTC.
func CheckZone(name string) error {
	_, err := loadZone(name)
	return err
}

// loadZone returns a zone by its name; an empty name is UTC.
func loadZone(name string) (zone, error) {
	if name == "" {
		name = "UTC"
	}
	if len(name) > maxZone {
		return zone{}, fmt.Errorf("zone of %d bytes: want at most %d", len(name), maxZone)
	}
	// Other names belong to the machine's own files and settings: Local, localtime, posix/…, right/….
	wellFormed := !isField(name) && name[0] >= 'A' && name[0] <= 'Z' && name != "Local" &&
		!strings.ContainsFunc(name, func(r rune) bool {
			return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') &&
				!strings.ContainsRune("_+-/", r)
		})
	if wellFormed {
		if location, err := time.LoadLocation(name); err == nil {
			return zone{location}, nil
		}
		if near := nearestZones(name); near != "" {
			return zone{}, fmt.Errorf("zone %q is not in the time zone database: did you mean %s?", name, near)
		}
	}
	return zone{}, fmt.Errorf("zone %q is not in the time zone database: want a name such as Europe/Berlin or UTC",
		name)
}

// zoneNames are the names of the database, one in each line.
//
//go:embed zones.txt
var zoneNames string

// shortestGuessed is the length from which on a place is guessed: any word of three letters is close to others.
const shortestGuessed = 4

// nearestZones returns the zones most like a name: some of the same place, or of the place with the nearest name; "" if
// none is like it. It guesses only places: PST and EST differ by a letter, and by three hours.
func nearestZones(name string) string {
	if zone := fixedZone(name); zone != "" {
		return zone
	}
	names := strings.Fields(zoneNames)
	of := func(place string) []string {
		elsewhere := func(zone string) bool { return !strings.EqualFold(path.Base(zone), place) }
		return slices.DeleteFunc(slices.Clone(names), elsewhere)
	}
	place := path.Base(name)
	same := of(place)
	if len(same) == 0 && len(place) >= shortestGuessed {
		var places []string
		for _, zone := range names {
			if area, _, isPlace := strings.Cut(zone, "/"); isPlace && area != "Etc" {
				places = append(places, path.Base(zone))
			}
		}
		if near := keys.Nearest(place, places); near != "" {
			same = of(near)
		}
	}
	return strings.Join(same[:min(len(same), 3)], " or ")
}

// fixedZone returns the zone with the fixed offset of a name such as UTC+2, or "".
func fixedZone(name string) string {
	offset, ok := strings.CutPrefix(name, "UTC")
	if !ok {
		offset, ok = strings.CutPrefix(name, "GMT")
	}
	if !ok || offset == "" {
		return ""
	}
	sign := map[byte]string{'+': "-", '-': "+"}[offset[0]] // POSIX's, the other way round
	zone := "Etc/GMT" + sign + strings.TrimPrefix(offset[1:], "0")
	if !slices.Contains(strings.Fields(zoneNames), zone) {
		return ""
	}
	return zone + " (with POSIX's sign)"
}

// isField reports whether the name of a zone is also a field of an expression, of weekdays or months. Beside an
// expression, as in an event, it would be read as a field.
func isField(name string) bool {
	_, notDays := parseWeekdays(name)
	_, notMonths := monthField().list(name)
	return notDays == nil || notMonths == nil
}

// span is a time without a change of a zone's clock.
type span struct {
	start, end int64 // beginning and end
	offset     int64 // the clock's offset from UTC
}

// span returns the span of an instant. A span may end without a change.
func (z zone) span(at int64) span {
	t := time.Unix(at, 0).In(z.Location)
	_, offset := t.Zone()
	s := span{-always, always, int64(offset)}
	start, end := t.ZoneBounds()
	if !start.IsZero() {
		s.start = start.Unix()
	}
	if !end.IsZero() {
		s.end = end.Unix()
	}
	if s.end <= at {
		// If the span ends with the year, Go gives each year 365 days: this is the last day of a leap year.
		day, _ := split(at)
		s.end = (day + 1) * secondsPerDay
	}
	return s
}

// front returns the latest time shown by the clock up to an instant.
func (z zone) front(at int64) int64 {
	s := z.span(at)
	front := at + s.offset
	for start := s.start; start > at-2*maxOffset; start = s.start {
		s = z.span(start - 1)
		front = max(front, start-1+s.offset)
	}
	return front
}

// reach returns the first instant at which the clock shows a time or has passed it.
func (z zone) reach(local int64) int64 {
	at := local - maxOffset
	for {
		s := z.span(at)
		at = max(at, local-s.offset)
		if at < s.end {
			return at
		}
		at = s.end
	}
}
