package schedule

import (
	"fmt"
	"slices"
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
	// fired are the stretches of fired occurrences, once one was left out.
	fired stretches
	// toPlan says that nothing is due: the repetition's first occurrence is to be found.
	toPlan bool
}

// Repeats reports whether another occurrence may follow when the firing is settled.
func (o *Occurrence) Repeats() bool { return o != nil && o.repetition != nil }

// repetition is the rule of the next occurrences in an occurrence's record. Times are in unix ms.
type repetition struct {
	serial             int64  // of the occurrence, and of no other of its key
	nominal            Millis // when the occurrence was due by the repetition
	from, until, times int64  // until and times are 0 for no end
	catchUp            int64  // in ms
}

// Rule returns the repetition without its specification, which is in Repeat. Call it only if Repeats returns true.
func (o *Occurrence) Rule() cron.Repetition {
	r := o.repetition
	rule := cron.Repetition{From: Millis(r.from).Time(), Times: r.times,
		CatchUp: time.Duration(r.catchUp) * time.Millisecond}
	if r.until > 0 {
		rule.Until = Millis(r.until).Time()
	}
	return rule
}

// Nominal returns the occurrence's due time by its repetition. Call it only if Repeats returns true.
func (o *Occurrence) Nominal() Millis { return o.repetition.nominal }

// Options of an occurrence's record: R has the serial of its repetition and the numbers of repetition, in order, and N
// the number and the text of the occurrence. A retry has N alone.
const optionRepetition, optionOccurrence = "R", "N"

// readOption takes in an option of the record of an occurrence.
func (o *Occurrence) readOption(name, value string) {
	if name == optionStretches {
		o.fired = readStretches(value)
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

// stretches are the times of a timer's repetition without an omission of more than some seconds, the latest first. A
// clock that was ahead may have come between two of them. Occurrences in an earlier one may have fired before their
// time, and do not fire again. It does not change.
type stretches struct {
	from Millis // the occurrence before the earliest of them
	all  []stretch
}

// stretch is the times from first on and before end, which is 0 for as long as it goes on.
type stretch struct{ first, end Millis }

// optionStretches is the option of a record with its stretches: from, and first and end of each.
const optionStretches = "A"

func readStretches(value string) (s stretches) {
	var n []Millis
	for text := range strings.SplitSeq(value, ",") {
		ms, _ := strconv.ParseInt(text, 10, 64)
		n = append(n, Millis(ms))
	}
	s.from = n[0]
	for pair := range slices.Chunk(n[1:], 2) {
		if len(pair) == 2 {
			s.all = append(s.all, stretch{pair[0], pair[1]})
		}
	}
	return s
}

// option returns the stretches as they stand in a record.
func (s stretches) option() string {
	var text strings.Builder
	fmt.Fprintf(&text, ";%s=%d", optionStretches, s.from)
	for _, one := range s.all {
		fmt.Fprintf(&text, ",%d,%d", one.first, one.end)
	}
	return text.String()
}

// numbers returns the stretches as readStretches reads them; nil for none.
func (s stretches) numbers() []int64 {
	if len(s.all) == 0 {
		return nil
	}
	all := []int64{int64(s.from)}
	for _, one := range s.all {
		all = append(all, int64(one.first), int64(one.end))
	}
	return all
}

// next returns the first occurrence after a time that is in no stretch that has ended; false if there is none.
func (s stretches) next(r *cron.Repetition, after time.Time) (time.Time, bool) {
	at, ok := r.Next(after)
	for ok {
		i := slices.IndexFunc(s.all,
			func(one stretch) bool { return MillisOf(at) >= one.first && MillisOf(at) < one.end })
		if i < 0 {
			break
		}
		at, ok = r.Next(s.all[i].end.Time().Add(-time.Millisecond))
	}
	return at, ok
}
