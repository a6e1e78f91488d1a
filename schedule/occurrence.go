package schedule

import (
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

// Occurrence is the additional data of a firing of a timer that repeats, and of its retries. It does not change.
type Occurrence struct {
	Repeat string // the repetition, as in its events: "every 5m0s"
	Number int64  // from 1 on

	// repetition is nil for a retry: nothing follows it.
	repetition *repetition
	// jump is the last time that the repetition has left something out.
	jump jump
	// toPlan says that nothing is due: the repetition's first occurrence is to be found.
	toPlan bool
}

// Repeats reports whether another occurrence may follow when the firing is settled.
func (o *Occurrence) Repeats() bool { return o != nil && o.repetition != nil }

// repetition is what the record of an occurrence says of what follows. Times are in unix ms.
type repetition struct {
	serial             int64  // of the occurrence, and of no other of its key
	nominal            Millis // when the occurrence was due by the repetition
	from, until, times int64  // until and times are 0 for no end
	catchUp            int64  // in ms
}

// Rule returns the repetition without its specification, which is in Repeat. Call it only if Repeats returns true.
func (o *Occurrence) Rule() cron.Repetition {
	r := o.repetition
	rule := cron.Repetition{From: Millis(r.from).Time(), Times: r.times, CatchUp: time.Duration(r.catchUp) * time.Millisecond}
	if r.until > 0 {
		rule.Until = Millis(r.until).Time()
	}
	return rule
}

// Nominal returns the occurrence's due time by its repetition. Call it only if Repeats returns true.
func (o *Occurrence) Nominal() Millis { return o.repetition.nominal }

// Options of an occurrence's record: R has the serial of its repetition and the numbers of repetition, in their order, and N the
// number and the text of the occurrence. A retry has N alone.
const optionRepetition, optionOccurrence = "R", "N"

// readOption takes in an option of the record of an occurrence.
func (o *Occurrence) readOption(name, value string) {
	if name == optionJump {
		o.jump = readJump(value)
		return
	}
	if name == optionOccurrence {
		number, text, _ := strings.Cut(value, ",")
		o.Number, _ = strconv.ParseInt(number, 10, 64)
		o.Repeat = text
		return
	}
	var n [6]int64
	for i, text := range strings.SplitN(value, ",", len(n)) {
		n[i], _ = strconv.ParseInt(text, 10, 64)
	}
	o.repetition = &repetition{serial: n[0], nominal: Millis(n[1]), from: n[2], until: n[3], times: n[4], catchUp: n[5]}
}

// occurrenceOption returns the option of a retry of an occurrence, as it stands before the record's colon.
func occurrenceOption(text string, number int64) string {
	if text == "" || number < 1 {
		return ""
	}
	return ";" + optionOccurrence + "=" + strconv.FormatInt(number, 10) + "," + text
}

// jump is where the repetition of a timer has left out more than some seconds: what came after the occurrence at from was at first. It
// may have been a clock that was ahead. Then what fell due from first on and before end, which is 0 until that is known, has fired
// before its time, and does not fire again.
type jump struct{ from, first, end Millis }

// optionJump is the option of a record with a jump.
const optionJump = "A"

func readJump(value string) (j jump) {
	for i, text := range strings.SplitN(value, ",", 3) {
		ms, _ := strconv.ParseInt(text, 10, 64)
		*[]*Millis{&j.from, &j.first, &j.end}[i] = Millis(ms)
	}
	return j
}

// fired tells whether an occurrence has fired while the clock was ahead.
func (j jump) fired(at time.Time) bool { return MillisOf(at) >= j.first && MillisOf(at) < j.end }
