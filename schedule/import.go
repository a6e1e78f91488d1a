package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Exported is a timer without its key and payload, as timerd export writes it and timerd set --from reads it. Times are
// in unix ms.
type Exported struct {
	Due int64 `json:"due"`
	// Beside: it waits beside a newer timer of its key.
	Beside bool `json:"beside,omitempty"`
	// Attempt is timerd's own count; nil: the payload states it, or it is 1.
	Attempt    *int   `json:"attempt,omitempty"`
	DataStatus string `json:"datastatus,omitempty"` // missing or toolarge, of a timer without its payload
	Late       *int64 `json:"late,omitempty"`       // its own limit, in ms; 0: none
	DropLate   bool   `json:"drop_late,omitempty"`
	// Unless and If are its own guards, percent-encoded as in events.
	Unless string `json:"unless,omitempty"`
	If     string `json:"if,omitempty"`
	// Refused is the guard that has said no: unless or if, and its key if it is of TIMERD_GUARD. The timer will not
	// fire.
	Refused string `json:"refused,omitempty"`
	Origin  string `json:"origin,omitempty"` // due time and attempt of its first firing: "1763629200000.1"
	// Replayed is when a dead letter was replayed as this timer, or as one before it.
	Replayed    int64  `json:"replayed,omitempty"`
	TraceParent string `json:"traceparent,omitempty"`
	TraceState  string `json:"tracestate,omitempty"`
	Expired     bool   `json:"expired,omitempty"` // it fires because of its key's expired event
	Held        bool   `json:"held,omitempty"`    // a resume has made it a dead letter
	// Repeat and Occurrence are fields of its event.
	Repeat     string `json:"repeat,omitempty"`
	Occurrence int64  `json:"occurrence,omitempty"`
	// Repetition is nil where no occurrence follows.
	Repetition *ExportedRepetition `json:"repetition,omitempty"`
}

// ExportedRepetition is the rule of a timer's next occurrences. Times are in unix ms, and 0 is no end.
type ExportedRepetition struct {
	Serial  int64   `json:"serial"`
	Nominal int64   `json:"nominal"` // when the occurrence is due by the repetition
	From    int64   `json:"from"`
	Until   int64   `json:"until,omitempty"`
	Times   int64   `json:"times,omitempty"`
	CatchUp int64   `json:"catchup,omitempty"` // in ms
	LeftOut []int64 `json:"left_out,omitempty"`
	// ToPlan: nothing is due yet, its first occurrence is to be found.
	ToPlan bool `json:"to_plan,omitempty"`
}

// The values of DataStatus.
const (
	dataMissing  = "missing"
	dataTooLarge = "toolarge"
)

// The values of Refused.
const refusedUnless, refusedIf = "unless", "if"

// OwnGuards returns the timer's guards. The error names a wrong one.
func (e *Exported) OwnGuards() (g policy.Guards, err error) {
	for _, guard := range []struct {
		name, text string
		key        *string
	}{{refusedUnless, e.Unless, &g.Unless}, {refusedIf, e.If, &g.If}} {
		if guard.text == "" {
			continue
		}
		*guard.key, err = keys.DecodeText(guard.text)
		if err == nil {
			err = policy.CheckGuard(*guard.key)
		}
		if err != nil {
			return g, fmt.Errorf("%s: %w", guard.name, err)
		}
	}
	return g, nil
}

// Export returns the timer of the record. serial is the score of its key in the partition's repeat, 0 for none: an
// occurrence of a repetition that has ended is an ordinary timer.
func (r Record) Export(due Millis, beside bool, serial int64) Exported {
	e := Exported{
		Due: int64(due), Beside: beside, Replayed: int64(r.replayed),
		TraceParent: r.Trace[0], TraceState: r.Trace[1], Expired: r.expired, Held: r.held,
	}
	if r.Attempt > 0 {
		e.Attempt = &r.Attempt
	}
	switch r.Status {
	case PayloadMissing:
		e.DataStatus = dataMissing
	case PayloadTooLarge:
		e.DataStatus = dataTooLarge
	}
	if r.Late.Given {
		ms := r.Late.Most.Milliseconds()
		e.Late, e.DropLate = &ms, r.Late.Drop
	}
	e.Unless, e.If = keys.EncodeText(r.Guards.Unless), keys.EncodeText(r.Guards.If)
	letter, rule, isByRules := strings.Cut(r.refused, byRules)
	switch letter {
	case optionUnless:
		e.Refused = refusedUnless
	case optionIf:
		e.Refused = refusedIf
	}
	if e.Refused != "" && isByRules {
		e.Refused += " " + keys.EncodeText(readGuard(rule))
	}
	if r.Origin != (Origin{}) {
		e.Origin = r.Origin.String()
	}
	if o := r.Occurrence; o != nil {
		e.Repeat, e.Occurrence = o.Repeat, o.Number
		if n := o.repetition; n != nil && n.serial == max(serial, -serial) {
			e.Repetition = &ExportedRepetition{
				Serial: n.serial, Nominal: int64(n.nominal), From: n.from, Until: n.until, Times: n.times,
				CatchUp: n.catchUp,
				LeftOut: o.fired.numbers(), ToPlan: serial < 0,
			}
		}
	}
	return e
}

// Imported is a timer to set as it was exported.
type Imported struct {
	Key     keys.Key
	Payload []byte
	Exported
}

// Errors of Import, for one timer.
var (
	ErrThere     = errors.New("it is there already, or its key has another timer")
	ErrKeyRights = errors.New("timerd's user may not write the key")
	ErrExported  = errors.New("not a timer as timerd export writes it")
)

// The greatest values of an exported timer. Serials are microseconds: a score and a Lua number hold them exactly.
const (
	latest      = int64(Latest)
	mostAttempt = 1<<31 - 1
	mostSerial  = int64(1) << 53
	mostText    = 1024     // of a trace or the text of a repetition, in bytes
	mostLeftOut = 1 + 2*64 // numbers
)

// Check returns the timer's fault, or nil.
func (i Imported) Check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", ErrExported, fmt.Errorf(format, args...))
	}
	switch {
	case i.Due < 1 || i.Due > latest:
		return wrong("due is %d: want unix milliseconds from 1 to %d", i.Due, latest)
	case i.Attempt != nil && (*i.Attempt < 1 || *i.Attempt > mostAttempt):
		return wrong("attempt is %d: want a number from 1 to %d", *i.Attempt, mostAttempt)
	case i.DataStatus != "" && i.DataStatus != dataMissing && i.DataStatus != dataTooLarge:
		return wrong("datastatus is %q: want missing or toolarge", i.DataStatus)
	case i.DataStatus != "" && len(i.Payload) > 0:
		return wrong("datastatus and a payload exclude each other")
	case i.Late != nil && (*i.Late < 0 || *i.Late > policy.Longest.Milliseconds()), i.Late == nil && i.DropLate:
		return wrong("late: want milliseconds from 0, for no limit, to %d", policy.Longest.Milliseconds())
	case i.Refused != "" && i.refusal() == "":
		return wrong("refused is %.40q: want unless or if, the guard that it has, or with a key", i.Refused)
	case i.Origin != "" && readOrigin(i.Origin).String() != i.Origin:
		return wrong("origin is %.40q: want a due time in unix ms, a dot and an attempt", i.Origin)
	case i.Replayed < 0 || i.Replayed > latest:
		return wrong("replayed is %d: want unix milliseconds", i.Replayed)
	case strings.ContainsAny(i.TraceParent, ":;") || i.TraceParent == "" && i.TraceState != "":
		return wrong("traceparent: want one of W3C Trace Context")
	case len(i.TraceParent) > mostText || len(i.TraceState) > mostText:
		return wrong("traceparent, tracestate: want %d bytes at most", mostText)
	case len(i.Repeat) > mostText || strings.ContainsAny(i.Repeat, ":;"):
		return wrong("repeat: want the text of a repetition, such as every 5m0s")
	case (i.Repeat == "") != (i.Occurrence == 0) || i.Occurrence < 0 || i.Occurrence > latest:
		return wrong("repeat and occurrence go together, and occurrence is 1 or more")
	case i.Repetition != nil && i.Repeat == "":
		return wrong("repetition goes with repeat")
	case i.Repetition != nil && i.Beside:
		return wrong("beside and repetition exclude each other")
	}
	if _, err := i.OwnGuards(); err != nil {
		return wrong("%w", err)
	}
	if i.Repetition != nil {
		return i.Repetition.check(wrong)
	}
	return nil
}

func (r *ExportedRepetition) check(wrong func(string, ...any) error) error {
	for _, n := range append([]int64{r.Nominal, r.From, r.Until, r.Times, r.CatchUp}, r.LeftOut...) {
		if n < 0 || n > latest {
			return wrong("repetition: want numbers from 0 to %d, got %d", latest, n)
		}
	}
	if r.Serial < 1 || r.Serial > mostSerial {
		return wrong("repetition: serial is %d, want 1 to %d", r.Serial, mostSerial)
	}
	if len(r.LeftOut) > mostLeftOut || len(r.LeftOut) > 0 && len(r.LeftOut)%2 == 0 {
		return wrong("repetition: left_out has %d numbers, want an odd number, at most %d", len(r.LeftOut), mostLeftOut)
	}
	return nil
}

// refusal returns the value of optionRefused, or "" if the timer has none or a wrong one.
func (i Imported) refusal() string {
	name, text, isByRules := strings.Cut(i.Refused, " ")
	letter, own := optionUnless, i.Unless
	if name == refusedIf {
		letter, own = optionIf, i.If
	}
	switch key, err := keys.DecodeText(text); {
	case name != refusedUnless && name != refusedIf, !isByRules && own == "":
		return ""
	case !isByRules:
		return letter
	case err != nil || policy.CheckGuard(key) != nil:
		return ""
	default:
		return letter + byRules + escapeGuard(key)
	}
}

// header returns the attempt, flags and options of the timer's record.
func (i Imported) header() string {
	var b strings.Builder
	if i.Attempt != nil {
		b.WriteString(strconv.Itoa(*i.Attempt))
	}
	for _, flag := range []struct {
		letter string
		is     bool
	}{
		{"p", i.Repetition != nil},
		{"m", i.DataStatus == dataMissing},
		{"l", i.DataStatus == dataTooLarge},
		{"x", i.Expired},
		{"h", i.Held},
	} {
		if flag.is {
			b.WriteString(flag.letter)
		}
	}
	if i.Late != nil {
		b.WriteString(options(policy.Limit{Given: true, Most: time.Duration(*i.Late) * time.Millisecond,
			Drop: i.DropLate}))
	}
	guards, _ := i.OwnGuards() // Check has parsed them
	b.WriteString(guardOptions(guards))
	if refusal := i.refusal(); refusal != "" {
		b.WriteString(";" + optionRefused + "=" + refusal)
	}
	b.WriteString(readOrigin(i.Origin).option() + replayedOption(Millis(i.Replayed)) + traceOptions(i.TraceParent,
		i.TraceState))
	if r := i.Repetition; r != nil {
		fmt.Fprintf(&b, ";%s=%d,%d,%d,%d,%d,%d", optionRepetition, r.Serial, r.Nominal, r.From, r.Until, r.Times,
			r.CatchUp)
		if len(r.LeftOut) > 0 {
			b.WriteString(readStretches(joined(r.LeftOut)).option())
		}
	}
	b.WriteString(occurrenceOption(i.Repeat, i.Occurrence))
	return b.String()
}

// Limits of one step of Import, so that it holds Redis for about a millisecond at most: timers, and payload bytes.
const (
	importTimers = 16
	importBytes  = 256 << 10
)

// The replies of the step import.
const (
	importThere   = 0
	importTooMany = -1
	importDenied  = -2
)

// Import sets timers as they were exported: with their own due times, past or not, they fire the same events. It
// returns a result for each: nil, ErrThere, ErrTooManyRetries, ErrKeyRights, ErrGuardSlot or ErrExported, which change
// nothing, or another error, after which the timer may be set. To repeat this is safe: it returns ErrThere, also for a
// minute after the timer has fired. Payloads may have maxPayload bytes.
func (s *Schedule) Import(ctx context.Context, timers []Imported, maxPayload int) []error {
	results := make([]error, len(timers))
	var steps []importStep
	last := map[keys.Partition]int{} // the index of a partition's last step
	for i, t := range timers {
		results[i] = t.Check()
		if n := len(t.Payload); results[i] == nil && n > maxPayload {
			results[i] = fmt.Errorf("%w: the payload has %d bytes, at most %d are allowed", ErrExported, n, maxPayload)
		}
		if results[i] == nil {
			guards, _ := t.OwnGuards() // Check has parsed them
			results[i] = s.checkSlots(t.Key.String(), guards)
		}
		if results[i] != nil {
			continue
		}
		p := s.Partition(t.Key.String())
		at, some := last[p]
		if !some || len(steps[at].timers) == importTimers || steps[at].bytes+len(t.Payload) > importBytes {
			at = len(steps)
			steps, last[p] = append(steps, importStep{call: Call{Partition: p}}), at
		}
		step := &steps[at]
		step.call.Args = append(step.call.Args, t.args()...)
		step.timers, step.bytes = append(step.timers, i), step.bytes+len(t.Payload)
	}
	calls := make([]Call, len(steps))
	for i := range steps {
		calls[i] = steps[i].call
	}
	for i, cmd := range s.Run(ctx, s.step("import"), calls) {
		reply, err := ReadReply(cmd, len(steps[i].timers), 0)
		for j, at := range steps[i].timers {
			if err != nil {
				results[at] = fmt.Errorf("schedule: import: %w", err)
				continue
			}
			results[at] = importResult(reply.Int(j))
		}
	}
	return results
}

// importStep is one run of the step import.
type importStep struct {
	call   Call
	timers []int // their indices
	bytes  int   // of their payloads
}

// args returns the step's arguments for a timer.
func (i Imported) args() []any {
	place, serial := "own", int64(0)
	if i.Beside {
		place = "beside"
	}
	if r := i.Repetition; r != nil {
		serial = r.Serial
		if r.ToPlan {
			place = "plan"
		}
	}
	return []any{i.Key.String(), i.Due, place, i.header(), i.Payload, serial}
}

// importResult reads one reply of the step.
func importResult(reply int64) error {
	switch reply {
	case importThere:
		return ErrThere
	case importTooMany:
		return ErrTooManyRetries
	case importDenied:
		return ErrKeyRights
	}
	return nil
}

// joined writes numbers with commas.
func joined(numbers []int64) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.FormatInt(n, 10)
	}
	return strings.Join(texts, ",")
}
