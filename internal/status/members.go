// Package status reports the state of an installation: the timerds that serve the schedule, the timers in it, and the
// problems, as far as Redis and NATS answer. It changes nothing.
package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// timeLayout is the format of times in texts: that of events.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// Shared is a value with the living timerds that have it.
type Shared struct {
	Value     string   `json:"value"`
	Instances []string `json:"instances"` // in order
}

// Difference is a setting that differs among the living timerds.
type Difference struct {
	Setting string   `json:"setting"` // the variable
	Values  []Shared `json:"values"`  // in order
}

func (d Difference) String() string {
	texts := make([]string, len(d.Values))
	for i, v := range d.Values {
		texts[i] = fmt.Sprintf("%.300q on %s", v.Value, names(v.Instances))
	}
	return clean(d.Setting) + " is " + strings.Join(texts, ", ")
}

// Differences returns the settings that the living timerds must share and do not, in order. It leaves out settings that
// some do not report, because their versions differ.
func Differences(members []query.Member) []Difference {
	settings := map[string]map[string][]string{}
	for _, m := range members {
		if !m.Alive {
			continue
		}
		for name, value := range m.Settings {
			if settings[name] == nil {
				settings[name] = map[string][]string{}
			}
			settings[name][value] = append(settings[name][value], m.Instance)
		}
	}
	var all []Difference
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if values := settings[name]; len(values) > 1 {
			all = append(all, Difference{name, inOrder(values)})
		}
	}
	return all
}

// Versions returns the versions of the living timerds, in order, except ones without a description. During a rolling
// update there are several.
func Versions(members []query.Member) []Shared {
	versions := map[string][]string{}
	for _, m := range members {
		if m.Alive && m.Version != "" {
			versions[clean(m.Version)] = append(versions[clean(m.Version)], m.Instance)
		}
	}
	return inOrder(versions)
}

// clean returns a text that is safe to show: a producer of timers can write into the timerds' descriptions.
func clean(text string) string { return cleanUpTo(100, text) }

// cleanUpTo is clean for a text of another length, in bytes.
func cleanUpTo(most int, text string) string {
	if len(text) > most {
		text = text[:most] + "…"
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) {
		return keys.EncodeText(text)
	}
	return text
}

// inOrder returns values with the instances that have them, in the order of the values.
func inOrder(values map[string][]string) []Shared {
	var all []Shared
	for _, value := range slices.Sorted(maps.Keys(values)) {
		all = append(all, Shared{value, values[value]})
	}
	return all
}

// names lists instances. If there are many, it names only the first ones and counts the others.
func names(instances []string) string {
	const most = 3
	var some []string
	for _, instance := range instances[:min(len(instances), most)] {
		some = append(some, clean(instance))
	}
	text := strings.Join(some, ", ")
	if n := len(instances) - most; n > 0 {
		text += fmt.Sprintf(" and %d others", n)
	}
	return text
}

// Unattended returns a sentence that says so if no timerd is alive, and otherwise an empty text.
func Unattended(members []query.Member) string {
	var last query.Member
	for _, m := range members {
		if m.Alive {
			return ""
		}
		if m.Seen.After(last.Seen) {
			last = m
		}
	}
	text := "no timerd is alive: nothing fires until one runs"
	if last.Seen.After(time.Time{}) {
		text += fmt.Sprintf("; the last one, %s, was seen at %s", clean(last.Instance),
			last.Seen.UTC().Format(timeLayout))
	}
	return text
}

// hears reports whether a living timerd receives keyspace events, or none is alive.
func hears(members []query.Member) bool {
	off := func(m query.Member) bool { return m.Alive && m.Settings["TIMERD_KEYSPACE_EVENTS"] == "off" }
	return !slices.ContainsFunc(members, off)
}

// checkMembers judges whether the living timerds agree.
func checkMembers(f *facts, p *diag.Findings) {
	if f.membersErr != nil && !f.impaired() {
		p.Fail(askFix(f.membersErr), "cannot find the living timerds: %v", f.membersErr)
	}
	for _, d := range Differences(f.members) {
		p.Warn("give all timerds of this Redis the same "+d.Setting+", and restart those with another value", "%s", d)
	}
	if versions := Versions(f.members); len(versions) > 1 {
		var who []string
		for _, v := range versions {
			who = append(who, v.Value+" on "+names(v.Instances))
		}
		p.Warn("finish the update: run the same version everywhere",
			"timerds of different versions serve this Redis, as in a rolling update: %s", strings.Join(who, "; "))
	}
	if r := f.redis; len(*p) == 0 && r != nil && len(r.Timerds) > 0 {
		p.OK("%d alive, of version %s, with the same settings", len(r.Timerds), r.Timerds[0].Version)
	}
}

// checkAttended reports that no timerd serves the schedule. Before the first timer and the first timerd that is no
// failure.
func checkAttended(f *facts, p *diag.Findings) {
	text := Unattended(f.members)
	r := f.redis
	if text == "" || r == nil {
		return
	}
	if r.Owed > 0 {
		text += "; " + count(r.Owed, "timer is", "timers are") + " owed"
	}
	found := diag.Finding{Level: diag.Fail, Text: text,
		Fix: "start timerd; if Redis has just come back, the timerds need some seconds to notice"}
	if r.Held != nil && r.Pending+r.Owed+r.Firing+*r.Held == 0 && len(f.members) == 0 && !f.Brief {
		found.Level = diag.Warn
	}
	p.Add(found)
}

// lookAtTimerd is the fix for a failure that a timerd reports about itself.
const lookAtTimerd = "look at /readyz and the log of that timerd, which have the fix; if it does not heal, restart it"

// Limits of the failing checks in a heartbeat, and of the bytes of each reason.
const (
	mostWrong    = 20
	longestWrong = 500
)

// ofTimerds returns the check that reports, at a level, failures of some readiness checks of living timerds.
func ofTimerds(level diag.Level, names ...string) func(*facts, *diag.Findings) {
	return func(f *facts, p *diag.Findings) {
		for _, m := range f.members {
			if !m.Alive || m.Counts == nil || len(m.Counts.Wrong) > mostWrong {
				continue
			}
			for _, w := range m.Counts.Wrong {
				if slices.Contains(names, w.Check) {
					p.Add(diag.Finding{Level: level, Text: clean(m.Instance) + ": " + cleanUpTo(longestWrong, w.Text)})
				}
			}
		}
	}
}
