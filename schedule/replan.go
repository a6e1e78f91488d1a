package schedule

import (
	"context"
	"errors"
	"slices"

	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/keys"
)

// The serial of an occurrence is the time of its arming. A serial later than now shows that the clock was ahead then.
// The occurrences that it skipped are planned again.

const (
	// replanPage and replanPerCall bound the occurrences read, and planned again, by one call: some 0.3 ms, or 2 with
	// the largest payloads.
	replanPage, replanPerCall = 64, 32
	// mostReplanned bounds the occurrences of a partition in one go.
	mostReplanned = 4096
)

// replan plans the occurrences of a partition again that were planned while the clock was ahead, and returns their
// number. It passes over occurrences that are not pending, and begins behind them the next time.
func (n *Node) replan(ctx context.Context, p keys.Partition) (planned int, err error) {
	skip := n.replanFrom[p]
	for looked := 0; looked < mostReplanned; {
		page, err := n.schedule.foundAhead(ctx, p, skip)
		if err != nil {
			return planned, err
		}
		if page.looked == 0 {
			skip = 0
			break
		}
		gone := 0
		for some := range slices.Chunk(page.found, replanPerCall) {
			done, err := n.schedule.replanSome(ctx, p, some, page.now)
			if err != nil {
				return planned, err
			}
			planned += done
			gone += len(some)
		}
		looked += page.looked
		skip += page.looked - gone
	}
	if n.replanFrom == nil {
		n.replanFrom = map[keys.Partition]int{}
	}
	n.replanFrom[p] = skip
	return planned, nil
}

// foundAhead is the findings of a call.
type foundAhead struct {
	now    Millis
	looked int
	found  []armedAhead
}

// armedAhead is a pending occurrence that was armed by a clock that was ahead.
type armedAhead struct {
	key        string
	serial     string
	due        Millis
	occurrence *Occurrence
}

func (s *Schedule) foundAhead(ctx context.Context, p keys.Partition, skip int) (f foundAhead, err error) {
	reply, err := ReadReply(s.Run(ctx, s.step("replan_find"),
		[]Call{{Partition: p, Args: []any{AheadBy.Milliseconds(), skip, replanPage}}})[0], 2, 4)
	if err != nil {
		return f, err
	}
	f.now, f.looked = Millis(reply.Int(0)), int(reply.Int(1))
	for one := range slices.Chunk(reply[2:], 4) {
		r, ok := ParseRecord(one.Text(3) + ":")
		if !ok || !r.Occurrence.Repeats() {
			continue // a client's own timer is pending
		}
		f.found = append(f.found, armedAhead{one.Text(0), one.Text(1), Millis(one.Int(2)), r.Occurrence})
	}
	return f, nil
}

// backDue returns the due time of an occurrence by a correct clock, and the stretches fired by then; or AtOnce, if it
// keeps its time.
func (s *Schedule) backDue(a armedAhead, now Millis) (Millis, stretches) {
	o, r := a.occurrence, a.occurrence.repetition
	// a shorter move only avoided an id that was taken
	moved := a.due < r.nominal || a.due >= r.nominal.Add(cron.MinInterval)
	if moved || len(o.fired.all) == 0 || o.fired.all[0].first <= now || o.fired.all[0].end > 0 || Millis(r.from) > now {
		return AtOnce, stretches{}
	}
	spec, err := s.specs.Parse(o.Repeat)
	if err != nil {
		return AtOnce, stretches{}
	}
	rule := o.Rule()
	rule.Spec = spec
	fired := stretches{o.fired.from, slices.Clone(o.fired.all)}
	fired.all[0].end = r.nominal
	if fired.all[0].first == r.nominal {
		fired.all = fired.all[1:]
	}
	next, ok := fired.next(&rule, max(now, fired.from).Time())
	if !ok || MillisOf(next) >= r.nominal {
		return AtOnce, stretches{}
	}
	fired.all = slices.Insert(fired.all, 0, stretch{first: MillisOf(next)})
	return MillisOf(next), fired
}

// replanSome plans some occurrences of a partition again.
func (s *Schedule) replanSome(ctx context.Context, p keys.Partition, found []armedAhead, now Millis) (planned int,
	err error) {
	var args []any
	dues := make([]Millis, len(found))
	for i, a := range found {
		var fired stretches
		dues[i], fired = s.backDue(a, now)
		args = append(args, a.key, a.serial, int64(a.due), int64(dues[i]), fired.option())
	}
	if len(args) == 0 {
		return 0, nil
	}
	done, err := s.Run(ctx, s.step("replan"), []Call{{Partition: p, Args: args}})[0].Int64Slice()
	if err == nil && len(done) != len(found) {
		err = errors.New("unexpected reply")
	}
	if err != nil {
		return 0, err
	}
	for i, one := range done {
		if key, err := keys.Parse(found[i].key); one == 1 && err == nil {
			planned++
			s.Agenda.Armed(key, dues[i])
		}
	}
	return planned, nil
}
