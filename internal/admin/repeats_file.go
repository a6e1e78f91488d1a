package admin

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/yamlfile"
	"github.com/timerd-io/timerd/keys"
)

// repetitionFields returns the names of an entry's fields.
func repetitionFields() []string {
	return []string{"key", "every", "cron", "tz", "payload", "from", "until", "times", "catchup", "late", "drop_late",
		"unless", "if"}
}

// Repetition is an entry of a file.
type Repetition struct {
	Line    int // where the entry begins
	Key     string
	Spec    cron.Spec
	Payload []byte    // never nil
	From    time.Time // the zero Time: not given
	Until   time.Time // the zero Time: not given
	Times   int64     // 0: without end
	CatchUp time.Duration
	Late    policy.Limit
	Guards  policy.Guards

	by client.Repetition // Spec for the client
}

// ParseRepetitions reads a YAML file of repetitions. It returns all faults of the file in the order of their lines, or
// the first one alone if the file is not YAML.
func ParseRepetitions(text []byte) ([]Repetition, yamlfile.Faults) {
	root, fault := yamlfile.Parse(text)
	if fault != nil {
		return nil, yamlfile.Faults{withQuotes(*fault, text)}
	}
	var f repetitionFile
	if root != nil {
		f.read(root)
	}
	f.faults.Sort()
	return f.wanted, f.faults
}

// withQuotes adds to a YAML fault that a value may need quotes.
func withQuotes(f yamlfile.Fault, text []byte) yamlfile.Fault {
	lines := strings.Split(string(text), "\n")
	if n := f.Line - 1; n >= 0 && n < len(lines) {
		name, _, _ := strings.Cut(strings.TrimLeft(lines[n], "- "), ":")
		if slices.Contains([]string{"cron", "from", "until", "tz"}, strings.TrimSpace(name)) {
			f.Text += "; put quotes around a value that begins with * or @"
		}
	}
	return f
}

// repetitionFile is a file that is being read.
type repetitionFile struct {
	wanted []Repetition
	faults yamlfile.Faults
}

// read reads the whole file.
func (f *repetitionFile) read(root *yaml.Node) {
	list := yamlfile.Only(root, "repeat", &f.faults)
	switch {
	case list == nil:
		return
	case list.Kind != yaml.SequenceNode:
		f.faults.Add(list.Line, "repeat: want a list, [] for an empty one, got %s", yamlfile.KindOf(list))
		return
	}
	lines := map[string]int{}
	for _, n := range list.Content {
		entry := yamlfile.Resolved(n)
		if entry.Kind != yaml.MappingNode {
			f.faults.Add(n.Line, "want an entry with some of %s; got %s", strings.Join(repetitionFields(), ", "),
				yamlfile.KindOf(entry))
			continue
		}
		e := repetitionEntry{file: f, Repetition: Repetition{Line: n.Line, Payload: []byte{}}}
		e.readAll(entry)
		if before, ok := lines[e.Key]; ok && e.Key != "" {
			f.faults.Add(e.lines["key"], "key %q: line %d has it too", keys.Abbreviate(e.Key), before)
		} else if e.Key != "" {
			lines[e.Key] = e.lines["key"]
		}
		f.wanted = append(f.wanted, e.Repetition)
	}
}

// repetitionEntry is an entry that is being read.
type repetitionEntry struct {
	Repetition

	file  *repetitionFile
	lines map[string]int // of the fields that are there
	cron  string
	zone  string
	every time.Duration
	wrong bool // every, cron or tz has a fault
}

func (e *repetitionEntry) readAll(entry *yaml.Node) {
	e.lines = yamlfile.Fields(entry, repetitionFields(), &e.file.faults, func(name string, value *yaml.Node) []error {
		err := e.read(name, value)
		if err == nil {
			return nil
		}
		e.wrong = e.wrong || name == "every" || name == "cron" || name == "tz"
		return []error{err}
	})
	e.check()
}

// read reads a field.
func (e *repetitionEntry) read(name string, value *yaml.Node) error {
	switch {
	case name == "payload":
		payload, err := payloadOf(value)
		e.Payload = payload
		return err
	case value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null":
		return fmt.Errorf("want one value, got %s", yamlfile.KindOf(value))
	}
	return e.set(name, value.Value)
}

// set sets a field that has one value.
func (e *repetitionEntry) set(name, text string) (err error) {
	switch name {
	case "key":
		if _, err = keys.Parse(text); err != nil {
			err = fmt.Errorf("%q: %w", keys.Abbreviate(text), err)
		}
		e.Key = text
	case "every":
		if e.every, err = ParseDuration(text); err == nil {
			e.Spec, err = cron.Every(e.every)
		} else {
			err = fmt.Errorf("%.40q: %w", text, err)
		}
	case "cron":
		e.cron = text
		_, err = cron.At(text, "")
	case "tz":
		e.zone = text
		_, err = cron.At("@daily", text)
	case "from":
		e.From, err = parseInstant(text)
	case "until":
		e.Until, err = parseInstant(text)
	case "times":
		if e.Times, err = strconv.ParseInt(text, 10, 64); err != nil || e.Times < 1 || e.Times > math.MaxInt32 {
			err = fmt.Errorf("%.40q: want a number from 1 to %d, or no times for no end", text, math.MaxInt32)
		}
	case "catchup":
		e.CatchUp, err = parseSpan(text, "0, for nothing,", cron.MaxInterval)
	case "late":
		e.Late.Given = true
		e.Late.Most, err = parseSpan(text, "0, for no limit,", policy.Longest)
	case "unless":
		e.Guards.Unless, err = text, policy.CheckGuard(text)
	case "if":
		e.Guards.If, err = text, policy.CheckGuard(text)
	case "drop_late":
		if text != "true" && text != "false" {
			err = fmt.Errorf("%.40q: want true or false", text)
		}
		e.Late.Drop = text == "true"
	}
	return err
}

// check compares the fields with each other.
func (e *repetitionEntry) check() {
	has := func(name string) bool { return e.lines[name] > 0 }
	if !has("key") {
		e.file.faults.Add(e.Line, "key is missing")
	}
	switch {
	case has("every") == has("cron"):
		e.file.faults.Add(e.Line, "want either every or cron")
	case has("tz") && !has("cron"):
		e.file.faults.Add(e.lines["tz"], "tz: goes with cron")
	case e.wrong:
	case has("cron"):
		e.Spec, _ = cron.At(e.cron, e.zone) // both parts parse by now
		e.by = client.Cron(e.cron, e.zone)
	default:
		e.by = client.Every(e.every)
	}
	if has("drop_late") && !has("late") {
		e.file.faults.Add(e.lines["drop_late"], "drop_late: goes with late")
	}
	if !e.Until.IsZero() && e.Until.Before(e.From) {
		e.file.faults.Add(e.lines["until"], "until: is before from")
	}
}

// lastInstant is the last instant that timer_repeat takes: the end of the year 9999.
const lastInstant = 253402300799999

// parseInstant reads a time for from or until. It takes no duration, which would mean another time at each run.
func parseInstant(text string) (time.Time, error) {
	m, err := ParseMoment(text)
	at, ok := m.Instant()
	if err != nil || !ok || at.UnixMilli() < 0 || at.UnixMilli() > lastInstant {
		return time.Time{}, fmt.Errorf("%.40q: want an instant such as 2026-11-20T09:00:00Z, or \"@unix-ms\"", text)
	}
	return time.UnixMilli(at.UnixMilli()).UTC(), nil
}

// parseSpan reads a duration of whole milliseconds, not shorter than least and not longer than most.
func parseSpan(text, least string, most time.Duration) (time.Duration, error) {
	d, err := ParseDuration(text)
	if err != nil || d < 0 || d > most || d%time.Millisecond != 0 {
		return 0, fmt.Errorf(
			"%.40q: want a duration of whole milliseconds from %s to 10 years, such as 90s, 1h30m or 30d", text, least)
	}
	return d, nil
}
