package schedule

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
)

// record is what the index keeps of a timer, as lua/index.lua has it.
type record struct {
	attempt    int // timerd's own count; 0 for none
	status     Status
	expired    bool // it fires because of its expired event
	held       bool // it was held, and becomes a dead letter
	late       policy.Limit
	origin     Origin
	replayed   Millis      // 0 where it is no replay, nor follows one
	trace      [2]string   // traceparent and tracestate
	occurrence *Occurrence // nil for a timer that does not repeat
	payload    string      // empty unless status is PayloadPresent
}

// parseRecord reads a record. ok is false for what is none.
func parseRecord(text string) (r record, ok bool) {
	header, payload, ok := strings.Cut(text, ":")
	if !ok {
		return record{}, false
	}
	if header == "" { // as nearly all are
		return record{payload: payload}, true
	}
	header, options, _ := strings.Cut(header, ";")
	flags := strings.TrimLeft(header, "0123456789")
	if digits := header[:len(header)-len(flags)]; digits != "" {
		r.attempt, _ = strconv.Atoi(digits)
	}
	r.expired, r.held = strings.Contains(flags, "x"), strings.Contains(flags, "h")
	switch {
	case strings.Contains(flags, "m"):
		r.status = PayloadMissing
	case strings.Contains(flags, "l"):
		r.status = PayloadTooLarge
	default:
		r.payload = payload
	}
	for options != "" {
		var option string
		option, options, _ = strings.Cut(options, ";")
		r.readOption(option)
	}
	return r, true
}

// Origin is the first firing of a timer, of which another is a retry, a postponement or a replay. The zero Origin is that of a first
// firing.
type Origin struct {
	Due     Millis
	Attempt int
}

// option returns the option of a record, as it stands before its colon.
func (o Origin) option() string {
	if o == (Origin{}) {
		return ""
	}
	return fmt.Sprintf(";%s=%d.%d", optionOrigin, o.Due, o.Attempt)
}

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

// replayedOption returns the option that says when a timer was replayed.
func replayedOption(at Millis) string {
	if at == 0 {
		return ""
	}
	return fmt.Sprintf(";%s=%d", optionReplayed, at)
}

// Names of the options of a record. An earlier version takes what it finds before the colon for flags: none of these letters
// is one.
const optionLate, optionLateDrop, optionOrigin, optionReplayed, optionTraceParent, optionTraceState = "L", "D", "O", "P", "T", "S"

// readOption takes in an option; one that is unknown is a later version's.
func (r *record) readOption(option string) {
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case optionRepetition, optionOccurrence, optionJump:
		r.readOccurrence(name, value)
	case optionOrigin:
		r.origin = readOrigin(value)
	case optionReplayed:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil {
			r.replayed = Millis(ms)
		}
	case optionTraceParent:
		r.trace[0] = strings.ToLower(value)
	case optionTraceState:
		state, _ := hex.DecodeString(value)
		r.trace[1] = string(state)
	case optionLate, optionLateDrop:
		if ms, err := strconv.ParseInt(value, 10, 64); err == nil && ms >= 0 {
			ms = min(ms, policy.Longest.Milliseconds())
			r.late = policy.Limit{Given: true, Most: time.Duration(ms) * time.Millisecond, Drop: name == optionLateDrop}
		}
	}
}

// traceOptions returns the options of a trace, as they stand before the colon of a record: in letters that are no flags, and without
// a colon.
func traceOptions(parent, state string) string {
	if parent == "" {
		return ""
	}
	options := ";" + optionTraceParent + "=" + strings.ToUpper(parent)
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
