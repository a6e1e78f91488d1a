package main

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/moment"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/late"
	"github.com/timerd-io/timerd/repeat"
)

// repetitionFields returns the names of the fields that an entry may have.
func repetitionFields() []string {
	return []string{"key", "every", "cron", "tz", "payload", "from", "until", "times", "catchup", "late", "drop_late"}
}

// wantedFields lists them for a fault.
func wantedFields() string { return strings.Join(repetitionFields(), ", ") }

// wantedRepetition is a repetition as an entry of a file says it.
type wantedRepetition struct {
	line    int // where the entry begins
	key     string
	spec    repeat.Spec
	by      client.Repetition // the same for the client
	payload []byte            // never nil
	from    time.Time         // the zero Time: not said
	until   time.Time         // likewise
	times   int64             // 0: without end
	catchUp time.Duration
	late    late.Limit
}

// lineFault is what is wrong in a line of a file.
type lineFault struct {
	line int // 0: in the file as a whole
	text string
}

func (f lineFault) String() string {
	if f.line == 0 {
		return f.text
	}
	return fmt.Sprintf("line %d: %s", f.line, f.text)
}

// parseRepetitions reads a file of repetitions. It returns all faults that it has, in the order of their lines; where the file
// is not YAML that is the first one alone.
func parseRepetitions(text []byte) ([]wantedRepetition, []lineFault) {
	var f repetitionFile
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil {
		f.faults = []lineFault{yamlFault(err, text)}
		return nil, f.faults
	}
	if len(document.Content) == 1 {
		f.read(document.Content[0])
	}
	slices.SortStableFunc(f.faults, func(a, b lineFault) int { return cmp.Compare(a.line, b.line) })
	return f.wanted, f.faults
}

// yamlFault says why a file is not YAML.
func yamlFault(err error, text []byte) lineFault {
	fault, ok := errors.AsType[*yaml.LoadError](err)
	if several, is := errors.AsType[*yaml.LoadErrors](err); is && len(several.Errors) > 0 {
		fault, ok = several.Errors[0], true
	}
	if !ok {
		return lineFault{text: err.Error()}
	}
	f := lineFault{fault.Mark.Line, "not YAML: " + strings.TrimPrefix(fault.Message, "yaml: ")}
	lines := strings.Split(string(text), "\n")
	if n := f.line - 1; n >= 0 && n < len(lines) {
		name, _, _ := strings.Cut(strings.TrimLeft(lines[n], "- "), ":")
		if slices.Contains([]string{"cron", "from", "until", "tz"}, strings.TrimSpace(name)) {
			f.text += "; put quotes around the value: what begins with * or @ needs them"
		}
	}
	return f
}

// repetitionFile is a file that is being read.
type repetitionFile struct {
	wanted []wantedRepetition
	faults []lineFault
}

func (f *repetitionFile) add(line int, format string, args ...any) {
	f.faults = append(f.faults, lineFault{line, fmt.Sprintf(format, args...)})
}

// read reads the whole file.
func (f *repetitionFile) read(root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		f.add(root.Line, "want a list repeat:, got %s", kindOf(root))
		return
	}
	var list *yaml.Node
	for name, value := range pairs(root) {
		switch {
		case name.Value != "repeat":
			f.add(name.Line, "%q: want repeat alone", clip(name.Value))
		case list != nil:
			f.add(name.Line, "repeat: is there twice")
		default:
			list = value
		}
	}
	switch {
	case list == nil:
		f.add(root.Line, "want a list repeat:")
		return
	case list.Kind != yaml.SequenceNode:
		f.add(list.Line, "repeat: want a list, [] for an empty one, got %s", kindOf(list))
		return
	}
	lines := map[string]int{}
	for _, n := range list.Content {
		entry := resolved(n)
		if entry.Kind != yaml.MappingNode {
			f.add(n.Line, "want an entry with some of %s; got %s", wantedFields(), kindOf(entry))
			continue
		}
		e := repetitionEntry{file: f, lines: map[string]int{}, wantedRepetition: wantedRepetition{line: n.Line, payload: []byte{}}}
		e.readAll(entry)
		if before, ok := lines[e.key]; ok && e.key != "" {
			f.add(e.lines["key"], "key %q: line %d has it too", keys.Abbreviate(e.key), before)
		} else if e.key != "" {
			lines[e.key] = e.lines["key"]
		}
		f.wanted = append(f.wanted, e.wantedRepetition)
	}
}

// repetitionEntry is an entry that is being read.
type repetitionEntry struct {
	wantedRepetition

	file  *repetitionFile
	lines map[string]int // of the fields that are there
	cron  string
	zone  string
	every time.Duration
	wrong bool // every, cron or tz has a fault
}

func (e *repetitionEntry) readAll(entry *yaml.Node) {
	for name, value := range pairs(entry) {
		before := e.lines[name.Value]
		switch {
		case !slices.Contains(repetitionFields(), name.Value):
			e.file.add(name.Line, "%q: unknown field: want %s", clip(name.Value), wantedFields())
			continue
		case before > 0:
			e.file.add(name.Line, "%s: line %d has it too", name.Value, before)
			continue
		}
		e.lines[name.Value] = name.Line
		if err := e.read(name.Value, value); err != nil {
			e.file.add(name.Line, "%s: %v", name.Value, err)
			e.wrong = e.wrong || name.Value == "every" || name.Value == "cron" || name.Value == "tz"
		}
	}
	e.check()
}

// read reads a field.
func (e *repetitionEntry) read(name string, value *yaml.Node) error {
	switch {
	case name == "payload":
		payload, err := payloadOf(value)
		e.payload = payload
		return err
	case value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null":
		return fmt.Errorf("want one value, got %s", kindOf(value))
	}
	return e.set(name, value.Value)
}

// set takes in a field of one value.
func (e *repetitionEntry) set(name, text string) (err error) {
	switch name {
	case "key":
		if _, err = keys.Parse(text); err != nil {
			err = fmt.Errorf("%q: %w", keys.Abbreviate(text), err)
		}
		e.key = text
	case "every":
		if e.every, err = moment.ParseDuration(text); err == nil {
			e.spec, err = repeat.Every(e.every)
		} else {
			err = fmt.Errorf("%q: %w", clip(text), err)
		}
	case "cron":
		e.cron = text
		_, err = repeat.Cron(text, "")
	case "tz":
		e.zone = text
		_, err = repeat.Cron("@daily", text)
	case "from":
		e.from, err = parseInstant(text)
	case "until":
		e.until, err = parseInstant(text)
	case "times":
		if e.times, err = strconv.ParseInt(text, 10, 64); err != nil || e.times < 1 || e.times > math.MaxInt32 {
			err = fmt.Errorf("%q: want a number from 1 to %d, or no times for no end", clip(text), math.MaxInt32)
		}
	case "catchup":
		e.catchUp, err = parseSpan(text, "0, for nothing,", repeat.MaxInterval)
	case "late":
		e.late.Given = true
		e.late.Most, err = parseSpan(text, "0, for no limit,", late.MaxLimit)
	case "drop_late":
		if text != "true" && text != "false" {
			err = fmt.Errorf("%q: want true or false", clip(text))
		}
		e.late.Drop = text == "true"
	}
	return err
}

// check looks at the fields together.
func (e *repetitionEntry) check() {
	has := func(name string) bool { return e.lines[name] > 0 }
	if !has("key") {
		e.file.add(e.line, "key is missing")
	}
	switch {
	case has("every") == has("cron"):
		e.file.add(e.line, "want either every or cron")
	case has("tz") && !has("cron"):
		e.file.add(e.lines["tz"], "tz: goes with cron")
	case e.wrong:
	case has("cron"):
		e.spec, _ = repeat.Cron(e.cron, e.zone) // both were tried
		e.by = client.Cron(e.cron, e.zone)
	default:
		e.by = client.Every(e.every)
	}
	if has("drop_late") && !has("late") {
		e.file.add(e.lines["drop_late"], "drop_late: goes with late")
	}
	if !e.until.IsZero() && e.until.Before(e.from) {
		e.file.add(e.lines["until"], "until: is before from")
	}
}

// lastInstant is the last one that timer_repeat takes: the end of the year 9999.
const lastInstant = 253402300799999

// parseInstant reads a time for from or until. A duration would be another time whenever the file is applied.
func parseInstant(text string) (time.Time, error) {
	m, err := moment.Parse(text)
	at, ok := m.Instant()
	if err != nil || !ok || at.UnixMilli() < 0 || at.UnixMilli() > lastInstant {
		return time.Time{}, fmt.Errorf("%q: want an instant such as 2026-11-20T09:00:00Z, or \"@unix-ms\"", clip(text))
	}
	return time.UnixMilli(at.UnixMilli()).UTC(), nil
}

// parseSpan reads a duration of whole milliseconds, from least on.
func parseSpan(text, least string, most time.Duration) (time.Duration, error) {
	d, err := moment.ParseDuration(text)
	if err != nil || d < 0 || d > most || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q: want a duration of whole milliseconds from %s to 10 years, such as 90s, 1h30m or 30d", clip(text), least)
	}
	return d, nil
}
