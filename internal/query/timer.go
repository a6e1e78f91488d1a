package query

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// State is the state of a timer.
type State string

// The states of an unsettled timer.
const (
	StatePending State = "pending" // not due yet
	StateOwed    State = "owed"    // due and unclaimed
	StateHeld    State = "held"    // due and on hold
	// StateFiring: claimed and not settled, or given back by a timerd that may have published it, so that nobody knows
	// whether NATS has its event.
	StateFiring State = "firing"
)

// Timer is an unsettled timer.
type Timer struct {
	Key     keys.Key
	Due     time.Time
	Attempt int // timerd's own count; 0: the payload's attempt counts, or 1
	Status  schedule.Status
	Payload []byte // cut at the size asked for
	Size    int    // bytes of the whole payload
	Late    policy.Limit
	Guards  policy.Guards
	State   State
	Beside  bool         // a retry that waits beside a newer timer of its key
	Parked  ParkedReason // empty unless it is due and set aside

	Repeat     string // its rhythm, as in its events; empty for a single timer
	Occurrence int64  // from 1; 0 for a single timer

	Origin schedule.Origin // set if it fired before
	// TraceParent is the trace of the set, unless the payload has it.
	TraceParent string
	// Record is the whole record without the payload.
	Record schedule.Record
}

// take sets the fields from the record; size is the length of its whole payload.
func (t *Timer) take(text string, size int) {
	r, _ := schedule.ParseRecord(text)
	t.Attempt, t.Status, t.Late, t.Origin, t.TraceParent = r.Attempt, r.Status, r.Late, r.Origin, r.Trace[0]
	t.Guards = r.Guards
	if t.Parked == ParkedRefused && r.Refusal().Unread {
		t.Parked = ParkedGuard
	}
	if o := r.Occurrence; o != nil {
		t.Repeat, t.Occurrence = o.Repeat, o.Number
	}
	if t.Status == schedule.PayloadPresent {
		t.Payload, t.Size = []byte(r.Payload), size
	}
	r.Payload = ""
	t.Record = r
}

// Which returns the timer's identity.
func (t Timer) Which() schedule.Which {
	return schedule.Which{Key: t.Key, Due: t.Due, Attempt: t.Attempt, Beside: t.Beside}
}

// stateOf returns the state of a firing with a ref and a score.
func stateOf(l *schedule.HoldList, ref string, key keys.Key, due schedule.Millis, score schedule.Score) State {
	_, held := score.Held()
	until := due
	if score != 0 {
		until = schedule.Never // like due_of_free in scores.lua
	}
	switch {
	case schedule.IsPlanRef(ref):
		return StatePending
	case held, score.IsFree() && l.Covers(key, until):
		return StateHeld
	case score.IsFree():
		return StateOwed
	}
	return StateFiring
}

// restored tells timers that wait as Redis was restored from held ones. It reads which do when one may.
type restored struct {
	s     *schedule.Schedule
	holds *schedule.HoldList
	read  bool
	waits []schedule.Wait
}

// correct corrects the state of a timer that no claim takes, though no hold covers it.
func (r *restored) correct(ctx context.Context, t *Timer, due schedule.Millis) error {
	if t.State != StateHeld || r.holds.Covers(t.Key, due) {
		return nil
	}
	if !r.read {
		var err error
		r.waits, err = r.s.Waits(ctx)
		if _, away := errors.AsType[*schedule.AwayError](err); err != nil && !away {
			return err
		}
		r.read = true
	}
	p := r.s.Partition(t.Key.String())
	if slices.ContainsFunc(r.waits, func(w schedule.Wait) bool { return w.Holds(p, due) }) {
		t.State = StateOwed
	}
	return nil
}

// timer returns the timer of an entry. ok is false if the entry is no timer to list.
func (e entry) timer(now schedule.Millis) (timer Timer, ok bool) {
	name := e.name
	timer = Timer{Due: e.due.Time(), State: StatePending}
	if e.due <= now {
		timer.State = StateOwed
	}
	switch {
	case e.kind == kindFiring, e.kind == kindHeld:
		_, _, key, err := schedule.ParseRef(e.name)
		timer.Key, timer.State = key, StateFiring // until more is known
		if e.kind == kindHeld {
			timer.State = StateHeld
		}
		return timer, err == nil
	case e.kind == kindParked:
		name, timer.Parked = parkedKey(e.name), ParkedRights
	case strings.HasPrefix(e.name, ":"):
		kind, key, _ := strings.Cut(e.name[1:], ":")
		if strings.Trim(kind, "0123456789.") != "" { // contested, or set aside and listed there too
			return timer, false
		}
		name, timer.Beside = key, true
		_, attempt, _ := strings.Cut(kind, ".")
		timer.Attempt, _ = strconv.Atoi(attempt)
	}
	var err error
	timer.Key, err = keys.Parse(name)
	return timer, err == nil
}

// candidate is a timer with its entry.
type candidate struct {
	Timer
	at entry
}

// judge returns the timers of the query among the entries, with their states. A timer counts as held if the next claim
// will hold it. Records are read later: timers that are settled meanwhile have no record.
func (w *walk) judge(ctx context.Context, entries []entry) ([]candidate, error) {
	var all, firings []candidate
	for _, e := range entries {
		timer, ok := e.timer(w.now)
		if !ok || !w.query.has(timer.Key) {
			continue
		}
		if timer.State == StateOwed && w.holds.Covers(timer.Key, e.due) {
			timer.State = StateHeld
		} else if err := w.restored.correct(ctx, &timer, e.due); err != nil {
			return nil, err
		}
		all = append(all, candidate{timer, e})
		if e.kind == kindFiring {
			firings = append(firings, all[len(all)-1])
		}
	}
	if len(firings) > 0 {
		states, err := w.readStates(ctx, firings)
		if err != nil {
			return nil, err
		}
		for i := range all {
			if all[i].at.kind == kindFiring {
				all[i].Timer, states = states[0], states[1:]
			}
		}
	}
	return slices.DeleteFunc(all, func(f candidate) bool { return !w.query.wants(f.State) }), nil
}

// readStates returns firings with their states, and with Parked set for parked ones.
func (w *walk) readStates(ctx context.Context, firings []candidate) ([]Timer, error) {
	type reply struct{ claims, refused *redis.FloatSliceCmd }
	replies := make([]reply, len(firings))
	_, err := w.s.Client().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, f := range firings {
			replies[i] = reply{pipe.ZMScore(ctx, f.at.p.Firing(), f.at.name),
				pipe.ZMScore(ctx, f.at.p.Refused(), f.at.name)}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	timers := make([]Timer, len(firings))
	for i, f := range firings {
		timers[i] = f.Timer
		timers[i].State = stateOf(w.holds, f.at.name, f.Key, f.at.due, schedule.Score(replies[i].claims.Val()[0]))
		if err := w.restored.correct(ctx, &timers[i], f.at.due); err != nil {
			return nil, err
		}
		if replies[i].refused.Val()[0] != 0 {
			timers[i].Parked = ParkedRefused
		}
	}
	return timers, nil
}

// wholePayload asks for records with their whole payloads.
const wholePayload = -1

// recordsChunk limits the records that one call returns. If they are large, it returns fewer.
const recordsChunk = 64

// describe returns timers with their records, and at most some bytes of each payload. It leaves out timers that have
// left the index since, and timers in slots that began to move.
func (w *walk) describe(ctx context.Context, all []candidate, payload int) ([]Timer, error) {
	type place struct {
		p    keys.Partition
		hash string
	}
	var order []place
	at := map[place][]int{}
	for i, f := range all {
		where := place{f.at.p, "data"}
		if f.at.kind == kindHeld || f.at.kind == kindFiring {
			where.hash = "firingdata"
		}
		if at[where] == nil {
			order = append(order, where)
		}
		at[where] = append(at[where], i)
	}
	here := make([]bool, len(all))
	for len(order) > 0 {
		calls := make([]schedule.Call, len(order))
		for i, where := range order {
			args := []any{where.hash, payload}
			for _, j := range at[where][:min(len(at[where]), recordsChunk)] {
				args = append(args, all[j].at.name)
			}
			calls[i] = schedule.Call{Partition: where.p, Args: args}
		}
		for i, reply := range w.s.Run(ctx, w.s.Script(lua, "records"), calls) {
			records, err := schedule.ReadReply(reply, 2, 2)
			if schedule.IsMoving(err) {
				w.late[order[i].p], at[order[i]] = true, nil
				continue
			}
			if err != nil {
				return nil, err
			}
			for k := 0; k < len(records); k += 2 {
				j := at[order[i]][k/2]
				if record, ok := records[k].(string); ok {
					all[j].take(record, int(records.Int(k+1)))
					here[j] = true
				}
			}
			at[order[i]] = at[order[i]][len(records)/2:]
		}
		order = slices.DeleteFunc(order, func(where place) bool { return len(at[where]) == 0 })
	}
	var timers []Timer
	for i, f := range all {
		if here[i] {
			timers = append(timers, f.Timer)
		}
	}
	return timers, nil
}
