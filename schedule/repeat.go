package schedule

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/cron"
)

// errNoOccurrence says why a repetition cannot begin.
var errNoOccurrence = errors.New("no such time in the next eight years, or before its end")

// follow returns the step from a firing to occurrence number next, at the time of f.Now.
func (s *Schedule) follow(f *Firing, next int64) (cron.Step, error) {
	o := f.Occurrence
	spec, err := s.specs.Parse(o.Repeat)
	if err != nil {
		return cron.Step{}, err
	}
	r := o.Rule()
	r.Spec = spec
	step := r.After(o.repetition.nominal.Time(), next-1, f.Now())
	if !step.Due.IsZero() {
		step.Due, _ = o.fired.next(&r, step.Due.Add(-time.Millisecond))
	}
	if o.toPlan && step.Due.IsZero() && step.Skipped == 0 {
		return step, errNoOccurrence
	}
	return step, nil
}

// Arguments of settle_repeat in place of a due time.
const nothingFollows, planAgain = 0, -1

// arming returns the due time of the occurrence after a firing, as settle_repeat takes it. An occurrence that this
// timerd cannot compute is planned again, by another one or else as a dead letter.
func (s *Schedule) arming(o *Outcome) (int64, cron.Step) {
	if o.firing.Fault != "" {
		return nothingFollows, cron.Step{}
	}
	step, err := s.follow(&o.firing, o.next())
	switch {
	case err != nil:
		return planAgain, cron.Step{}
	case step.Due.IsZero():
		return nothingFollows, step
	}
	return step.Due.UnixMilli(), step
}

// next returns the number of the occurrence after the firing.
func (o *Outcome) next() int64 {
	current := o.firing.Occurrence
	if current.toPlan || o.isUnfired() {
		return current.Number
	}
	return current.Number + 1
}

// takePlans moves the repetitions to plan from claimed firings to plans. Repetitions that cannot be planned stay, with
// their Fault.
func (s *Schedule) takePlans(firings, plans []Firing) (left, all []Firing) {
	if !slices.ContainsFunc(firings, isToPlan) {
		return firings, plans
	}
	left = make([]Firing, 0, len(firings))
	for _, f := range firings {
		if isToPlan(f) {
			_, err := s.follow(&f, f.Occurrence.Number)
			if err == nil {
				plans = append(plans, f)
				continue
			}
			f.Fault = err.Error()
		}
		left = append(left, f)
	}
	return left, plans
}

func isToPlan(f Firing) bool { return f.Occurrence != nil && f.Occurrence.toPlan }

// repeatPerCall and repeatBytesPerCall bound the repeating firings settled by one call, and about the bytes of their
// payloads, which it copies: a millisecond or two.
const repeatPerCall, repeatBytesPerCall = 32, 200_000

// settleRepeating settles firings of repeating timers, and arms their next occurrences.
func (s *Schedule) settleRepeating(ctx context.Context, outcomes []Outcome) PartError {
	steps, dues := make([]cron.Step, len(outcomes)), make([]int64, len(outcomes))
	args := func(i int) []any {
		o := &outcomes[i]
		dues[i], steps[i] = s.arming(o)
		return []any{o.Ref, dues[i], o.next(), o.firing.Occurrence.repetition.serial, steps[i].Skipped,
			string(o.accountKind())}
	}
	return s.onEach(ctx, s.step("settle_repeat"), outcomes, batch{repeatPerCall, repeatBytesPerCall, nil}, args,
		func(reply *redis.Cmd, members []int) error {
			done, err := ReadReply(reply, len(members), 0)
			for j, m := range members {
				if err == nil && done.Int(j) == 1 {
					s.tellArmed(&outcomes[m].firing, dues[m], steps[m].Skipped)
				}
			}
			return err
		})
}

// tellArmed reports the occurrence that a settlement has armed, and the number that it has skipped, to the agenda.
func (s *Schedule) tellArmed(f *Firing, due, skipped int64) {
	if skipped > 0 {
		s.Agenda.Skipped(skipped)
	}
	switch {
	case due > 0:
		s.Agenda.Armed(f.Key, Millis(due))
	case due == planAgain:
		s.Agenda.Armed(f.Key, AtOnce)
	}
}
