package schedule

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Status reports whether a timer has its payload.
type Status uint8

// The states of a payload.
const (
	PayloadPresent  Status = iota
	PayloadMissing         // never seen, or of a type without one
	PayloadTooLarge        // over the payload limit, so not kept
)

// Record is a timer's entry in the index, as lua/lib/index.lua has it.
type Record struct {
	Attempt    int // timerd's own count; 0 for none
	Status     Status
	Late       policy.Limit
	Origin     Origin
	Guards     policy.Guards
	Trace      [2]string   // traceparent and tracestate
	Occurrence *Occurrence // nil for a timer that does not repeat
	Payload    string      // empty unless Status is PayloadPresent

	expired  bool   // it fires because of its expired event
	held     bool   // it was held, and becomes a dead letter
	refused  string // of a firing: the option of the guard that has said no, or cannot be read
	replayed Millis // 0 unless it is a replay or follows one
}

// ParseRecord parses a record. ok is false if text is not one.
func ParseRecord(text string) (r Record, ok bool) {
	header, payload, ok := strings.Cut(text, ":")
	if !ok {
		return Record{}, false
	}
	if header == "" { // as nearly all are
		return Record{Payload: payload}, true
	}
	header, options, _ := strings.Cut(header, ";")
	flags := strings.TrimLeft(header, "0123456789")
	if digits := header[:len(header)-len(flags)]; digits != "" {
		r.Attempt, _ = strconv.Atoi(digits)
	}
	r.expired, r.held = strings.Contains(flags, "x"), strings.Contains(flags, "h")
	switch {
	case strings.Contains(flags, "m"):
		r.Status = PayloadMissing
	case strings.Contains(flags, "l"):
		r.Status = PayloadTooLarge
	default:
		r.Payload = payload
	}
	for options != "" {
		var option string
		option, options, _ = strings.Cut(options, ";")
		r.readOption(option)
	}
	return r, true
}

// Origin names the first firing of a timer, on its retries, postponements and replays. A first firing has the zero
// Origin.
type Origin struct {
	Due     Millis
	Attempt int
}

// option returns the option of a record, as it stands before its colon.
func (o Origin) option() string {
	if o == (Origin{}) {
		return ""
	}
	return ";" + optionOrigin + "=" + o.String()
}

// String returns o as readOrigin reads it.
func (o Origin) String() string { return fmt.Sprintf("%d.%d", o.Due, o.Attempt) }

// readOrigin reads the value of the option.
func readOrigin(value string) Origin {
	due, attempt, _ := strings.Cut(value, ".")
	ms, err1 := strconv.ParseInt(due, 10, 64)
	n, err2 := strconv.Atoi(attempt)
	if err1 != nil || err2 != nil {
		return Origin{}
	}
	return Origin{Millis(ms), n}
}

// replayedOption returns the option with a timer's time of replay.
func replayedOption(at Millis) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf(";%s=%d", optionReplayed, at)
}

// Names of the options of a record.
const (
	optionLate, optionLateDrop          = "L", "D"
	optionOrigin, optionReplayed        = "O", "P"
	optionTraceParent, optionTraceState = "T", "S"
)

// readOption takes in an option; one that is unknown is a later version's.
func (r *Record) readOption(option string) {
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case optionRepetition, optionOccurrence, optionStretches:
		if r.Occurrence == nil {
			r.Occurrence = &Occurrence{}
		}
		r.Occurrence.readOption(name, value)
	case optionOrigin:
		r.Origin = readOrigin(value)
	case optionUnless:
		r.Guards.Unless = readGuard(value)
	case optionIf:
		r.Guards.If = readGuard(value)
	case optionRefused:
		r.refused = value
	case optionReplayed:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil {
			r.replayed = Millis(ms)
		}
	case optionTraceParent:
		r.Trace[0] = value
	case optionTraceState:
		state, _ := hex.DecodeString(value)
		r.Trace[1] = string(state)
	case optionLate, optionLateDrop:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms >= 0 {
			ms = min(ms, policy.Longest.Milliseconds())
			r.Late = policy.Limit{Given: true, Most: time.Duration(ms) * time.Millisecond, Drop: name == optionLateDrop}
		}
	}
}

// traceOptions returns the options of a trace before the colon of a record: without a colon or a semicolon.
func traceOptions(parent, state string) string {
	if parent == "" {
		return ""
	}
	options := ";" + optionTraceParent + "=" + parent
	if state != "" {
		options += fmt.Sprintf(";%s=%X", optionTraceState, state)
	}
	return options
}

// options returns the options of a record, as they stand before its colon.
func options(l policy.Limit) string {
	if !l.Given {
		return ""
	}
	name := optionLate
	if l.Drop {
		name = optionLateDrop
	}
	return ";" + name + "=" + strconv.FormatInt(l.Most.Milliseconds(), 10)
}

// planAttempt is the attempt in the ref of a repetition that is to be planned, and in no other.
const planAttempt = "0"

// ParseRef parses the name of a firing in the index. It returns the due time, the attempt of its record or an empty
// text, and the key.
func ParseRef(ref string) (due Millis, attempt string, key keys.Key, err error) {
	first, rest, _ := strings.Cut(ref, ":")
	attempt, name, ok := strings.Cut(rest, ":")
	if !ok {
		return 0, "", keys.Key{}, errors.New("it is no firing")
	}
	ms, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, "", keys.Key{}, err
	}
	key, err = keys.Parse(name)
	return Millis(ms), attempt, key, err
}

// IsPlanRef reports whether a ref names a repetition that has yet to be planned.
func IsPlanRef(ref string) bool {
	_, rest, _ := strings.Cut(ref, ":")
	return strings.HasPrefix(rest, planAttempt+":")
}
