package query

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// State says how far a timer has come.
type State string

// The states of a timer that is not settled.
const (
	StatePending State = "pending" // it is to become due
	StateOwed    State = "owed"    // it is due, and nobody has claimed it
	StateHeld    State = "held"    // it is due, and held
	// StateFiring: it is claimed, and not settled, or was given back by somebody who may have published it: nobody
	// knows whether its event is in NATS.
	StateFiring State = "firing"
)

// Timer is a timer that is not settled.
type Timer struct {
	Key     keys.Key
	Due     time.Time
	Attempt int // timerd's own count; 0 means that the payload says it, or 1
	Status  schedule.Status
	Payload []byte // the first bytes of it, if there are more than were asked for
	Size    int    // how many bytes the payload has
	Late    policy.Limit
	State   State
	Beside  bool         // a retry that waits beside a newer timer of its key
	Parked  ParkedReason // empty unless it is due and set aside

	Repeat     string // what it repeats by, as its events say it; empty for a timer that does not
	Occurrence int64  // from 1 on; 0 for a timer that does not repeat

	Origin schedule.Origin // of one that fired before
	// TraceParent is the trace that it was set in, unless its payload says that.
	TraceParent string
	// Record is all that the schedule says of it, without the payload.
	Record schedule.Record
}

// take adds what the record says, of which the payload has size bytes in full.
func (t *Timer) take(text string, size int) {
	r, _ := schedule.ParseRecord(text)
	t.Attempt, t.Status, t.Late, t.Origin, t.TraceParent = r.Attempt, r.Status, r.Late, r.Origin, r.Trace[0]
	if o := r.Occurrence; o != nil {
		t.Repeat, t.Occurrence = o.Repeat, o.Number
	}
	if t.Status == schedule.PayloadPresent {
		t.Payload, t.Size = []byte(r.Payload), size
	}
	r.Payload = ""
	t.Record = r
}

// Which returns what names the timer.
func (t Timer) Which() schedule.Which {
	return schedule.Which{Key: t.Key, Due: t.Due, Attempt: t.Attempt, Beside: t.Beside}
}

// stateOf returns the state of the firing with a ref whose claim ends at a time.
func stateOf(l *schedule.HoldList, ref string, key keys.Key, due schedule.Millis, score schedule.Score) State {
	_, held := score.Held()
	until := due
	if score != 0 {
		until = schedule.Never // as due_of_free in scores.lua has it
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

// timer returns what an entry says of its timer. ok is false for what is no timer to be listed.
func (e entry) timer(now schedule.Millis) (timer Timer, ok bool) {
	name := e.name
	timer = Timer{Due: e.due.Time(), State: StatePending}
	if e.due <= now {
		timer.State = StateOwed
	}
	switch {
	case e.kind == kindFiring, e.kind == kindHeld:
		_, _, key, err := schedule.ParseRef(e.name)
		timer.Key, timer.State = key, StateFiring // until it is known better
		if e.kind == kindHeld {
			timer.State = StateHeld
		}
		return timer, err == nil
	case e.kind == kindParked:
		name, timer.Parked = parkedKey(e.name), ParkedRights
	case strings.HasPrefix(e.name, ":"):
		kind, key, _ := strings.Cut(e.name[1:], ":")
		if strings.Trim(kind, "0123456789.") != "" { // contested, or set aside and in that list
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

// candidate is a timer and where it was found.
type candidate struct {
	Timer
	at entry
}

// judge returns the timers of the query among the entries, with their states. A timer counts as held if the next claim
// will hold it. Records are read later: timers settled meanwhile have none.
func (w *walk) judge(ctx context.Context, entries []entry) ([]candidate, error) {
	var all, firings []candidate
	for _, e := range entries {
		timer, ok := e.timer(w.now)
		if !ok || !w.query.has(timer.Key) {
			continue
		}
		if timer.State == StateOwed && w.holds.Covers(timer.Key, e.due) {
			timer.State = StateHeld
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

// readStates returns firings with their states, and whether NATS refused them.
func (w *walk) readStates(ctx context.Context, firings []candidate) ([]Timer, error) {
	type reply struct{ claims, refused *redis.FloatSliceCmd }
	replies := make([]reply, len(firings))
	_, err := w.s.Client().Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, f := range firings {
			replies[i] = reply{pipe.ZMScore(ctx, f.at.p.Firing(), f.at.name), pipe.ZMScore(ctx, f.at.p.Refused(), f.at.name)}
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
		if replies[i].refused.Val()[0] > 0 {
			timers[i].Parked = ParkedRefused
		}
	}
	return timers, nil
}

// wholePayload has records come with all of their payloads.
const wholePayload = -1

// recordsChunk is how many records one call is asked for: it returns fewer where they are large.
const recordsChunk = 64

// describe returns timers with their records, and at most some bytes of each payload. It leaves out timers that have
// left the index since, and those in slots that have begun to move.
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
