package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/repeat"
)

// Occurrence is what the firing of a timer that repeats has beside that of any other, or a retry of such a firing. It does
// not change.
type Occurrence struct {
	Repeat string // the repetition, as its events say it: "every 5m0s"
	Number int64  // from 1 on

	// repetition is nil for a retry: nothing follows it.
	repetition *repetition
	// jump is the last time that the repetition has left something out.
	jump jump
	// toPlan says that nothing is due: the repetition's first occurrence is to be found.
	toPlan bool
}

// Repeats tells whether another occurrence may follow when the firing is settled.
func (o *Occurrence) Repeats() bool { return o != nil && o.repetition != nil }

// repetition is what the record of an occurrence says of what follows. Times are in unix ms.
type repetition struct {
	serial             int64  // of the occurrence, and of no other of its key
	nominal            Millis // when the occurrence was due by the repetition
	from, until, times int64  // until and times are 0 for no end
	catchUp            int64  // in ms
}

// rule returns the repetition of a specification.
func (r *repetition) rule(spec repeat.Spec) repeat.Repetition {
	rule := repeat.Repetition{Spec: spec, From: time.UnixMilli(r.from), Times: r.times, CatchUp: time.Duration(r.catchUp) * time.Millisecond}
	if r.until > 0 {
		rule.Until = time.UnixMilli(r.until)
	}
	return rule
}

// planAttempt is the attempt in the ref of a repetition that is to be planned, and in no other.
const planAttempt = "0"

// isPlanRef tells of a ref that it is that of a repetition that is to be planned.
func isPlanRef(ref string) bool {
	_, rest, _ := strings.Cut(ref, ":")
	return strings.HasPrefix(rest, planAttempt+":")
}

// Options of an occurrence's record: R has the serial of its repetition and the numbers of repetition, in their order, and N the
// number and the text of the occurrence. A retry has N alone.
const optionRepetition, optionOccurrence = "R", "N"

// readOccurrence takes in the options of an occurrence.
func (r *record) readOccurrence(name, value string) {
	if r.occurrence == nil {
		r.occurrence = &Occurrence{}
	}
	if name == optionJump {
		r.occurrence.jump = readJump(value)
		return
	}
	if name == optionOccurrence {
		number, text, _ := strings.Cut(value, ",")
		r.occurrence.Number, _ = strconv.ParseInt(number, 10, 64)
		r.occurrence.Repeat = text
		return
	}
	var n [6]int64
	for i, text := range strings.SplitN(value, ",", len(n)) {
		n[i], _ = strconv.ParseInt(text, 10, 64)
	}
	r.occurrence.repetition = &repetition{serial: n[0], nominal: Millis(n[1]), from: n[2], until: n[3], times: n[4], catchUp: n[5]}
}

// occurrenceOption returns the option of a retry of an occurrence, as it stands before the record's colon.
func occurrenceOption(text string, number int64) string {
	if text == "" || number < 1 {
		return ""
	}
	return ";" + optionOccurrence + "=" + strconv.FormatInt(number, 10) + "," + text
}

// specs keeps the specifications that were read last by their texts, since to read one may take a look at the database of time
// zones. It is safe for concurrent use.
type specs struct {
	mu     sync.Mutex
	byText map[string]repeat.Spec
}

// mostSpecs is how many are kept: some hundred bytes each.
const mostSpecs = 1000

// parse returns the specification of a text.
func (s *specs) parse(text string) (repeat.Spec, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if spec, ok := s.byText[text]; ok {
		return spec, nil
	}
	spec, err := repeat.Parse(text)
	if err != nil {
		return spec, err
	}
	if s.byText == nil || len(s.byText) >= mostSpecs {
		s.byText = map[string]repeat.Spec{}
	}
	s.byText[text] = spec
	return spec, nil
}

// errNoOccurrence says why a repetition cannot begin.
var errNoOccurrence = errors.New("no such time in the next eight years, or before its end")

// follow returns what follows the firing of an occurrence, or the first one of a repetition that is to be planned, at the moment.
func (s *Schedule) follow(f *Firing) (repeat.Step, error) {
	o := f.Occurrence
	spec, err := s.specs.parse(o.Repeat)
	if err != nil {
		return repeat.Step{}, err
	}
	r := o.repetition.rule(spec)
	step := r.After(o.repetition.nominal.Time(), o.next(f)-1, f.Now())
	if !step.Due.IsZero() && o.jump.fired(step.Due) {
		step.Due, _ = r.Next(o.jump.end.Time().Add(-time.Millisecond))
	}
	if o.toPlan && step.Due.IsZero() && step.Skipped == 0 {
		return step, errNoOccurrence
	}
	return step, nil
}

// What settle_repeat takes for a due time where there is none.
const nothingFollows, planAgain = 0, -1

// arming returns when what follows a firing is due, as settle_repeat takes it. Where this timerd cannot tell, it is planned
// again, by another one or else as a dead letter.
func (s *Schedule) arming(f *Firing) (int64, repeat.Step) {
	if f.Fault != "" {
		return nothingFollows, repeat.Step{}
	}
	step, err := s.follow(f)
	switch {
	case err != nil:
		return planAgain, repeat.Step{}
	case step.Due.IsZero():
		return nothingFollows, step
	}
	return step.Due.UnixMilli(), step
}

// next returns the number of the occurrence that follows a firing.
func (o *Occurrence) next(f *Firing) int64 {
	if o.toPlan || f.Unfired {
		return o.Number
	}
	return o.Number + 1
}

// plan takes what is to be planned out of the results of claims, and arms its first occurrences. What cannot be planned stays, with
// its Fault. What Redis does not answer about is planned by whoever claims it when the lease is over.
func (s *Schedule) plan(ctx context.Context, results []ClaimResult) {
	var planned []Firing
	for i := range results {
		firings := results[i].Firings
		if !slices.ContainsFunc(firings, isToPlan) {
			continue
		}
		left := make([]Firing, 0, len(firings))
		for _, f := range firings {
			if isToPlan(f) {
				_, err := s.follow(&f)
				if err == nil {
					planned = append(planned, f)
					continue
				}
				f.Fault = err.Error()
			}
			left = append(left, f)
		}
		results[i].Firings = left
	}
	if len(planned) > 0 {
		_ = s.settleRepeating(ctx, planned)
	}
}

func isToPlan(f Firing) bool { return f.Occurrence != nil && f.Occurrence.toPlan }

// repeatPerCall and repeatBytesPerCall are how many firings of timers that repeat one call settles at most, and of how many bytes of
// payload, about, which it copies: a millisecond or two.
const repeatPerCall, repeatBytesPerCall = 32, 200_000

// settleRepeating settles firings of timers that repeat, and arms what follows them.
func (s *Schedule) settleRepeating(ctx context.Context, firings []Firing) error {
	steps, dues := make([]repeat.Step, len(firings)), make([]int64, len(firings))
	var calls []call
	var members [][]int
	bytes := map[int]int{}
	at := map[keys.Partition]int{}
	for i := range firings {
		f := &firings[i]
		dues[i], steps[i] = s.arming(f)
		size := f.Bytes + len(f.Payload) // one of them is 0
		n, ok := at[f.Partition]
		if !ok || len(members[n]) == repeatPerCall || bytes[n]+size > repeatBytesPerCall {
			n = len(calls)
			at[f.Partition] = n
			calls, members = append(calls, call{p: f.Partition}), append(members, nil)
		}
		calls[n].args = append(calls[n].args, f.Ref, dues[i], f.Occurrence.next(f), f.Occurrence.repetition.serial)
		members[n] = append(members[n], i)
		bytes[n] += size
	}
	var failed PartError
	for i, reply := range s.run(ctx, s.scripts.Load().settleRepeat, calls) {
		done, err := reply.Int64Slice()
		if err == nil && len(done) != len(members[i]) {
			err = fmt.Errorf("unexpected reply of %d elements", len(done))
		}
		for j, m := range members[i] {
			switch {
			case err != nil:
				failed.Left, failed.Err = append(failed.Left, firings[m]), err
			case done[j] == 1:
				s.tellArmed(&firings[m], dues[m], steps[m].Skipped)
			}
		}
	}
	switch {
	case failed.Err == nil:
		return nil
	case len(failed.Left) == len(firings):
		return failed.Err
	}
	return &failed
}

// tellArmed tells what a settlement has armed, and what it has skipped.
func (s *Schedule) tellArmed(f *Firing, due, skipped int64) {
	if skipped > 0 {
		s.OnSkipped(f, skipped)
	}
	switch {
	case due > 0:
		s.OnArmed(f.Key, Millis(due))
	case due == planAgain:
		s.OnArmed(f.Key, AtOnce)
	}
}
