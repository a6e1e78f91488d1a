package query

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// inspectMost is how many timers of a key Inspect returns: as many as the records that one call may read, if these are small.
const inspectMost = 100

// Inspection is all that the schedule knows of a key.
type Inspection struct {
	Timers  []Inspected // pending ones first, then held, owed and firing ones, each in the order of their due times
	Trigger TriggerKey
	Repeats bool      // the key has a repetition, also while its cron expression is to be planned
	Fired   time.Time // when a timer of the key was claimed last, if that was about a minute ago at most
	// Contested is when another timer was due that may have run out or may have been changed: it is decided within some seconds.
	// It is the zero Time without one.
	Contested time.Time
	Now       time.Time // by the server's clock
	More      bool      // there are more timers
	Unsure    bool      // so many timers are firing that not all of these were looked at
}

// Pending returns the timers of the key that can be moved.
func (i *Inspection) Pending() (some []schedule.Which) {
	for _, t := range i.Timers {
		if t.State == StatePending {
			some = append(some, t.Which())
		}
	}
	return some
}

// Inspected is one timer of a key.
type Inspected struct {
	Timer
	// Until is, of one that is firing, when the claim ends: after that anybody claims it again. Of one that waits, when it is to be
	// looked at next, if that is known. Who has claimed it is not recorded.
	Until time.Time
	// Perhaps says that it was given back by somebody who may have published it.
	Perhaps bool
	// Hold is what holds it, if it is held and its hold is there.
	Hold *schedule.Hold
	// Unheard says that it is not in the index: no timerd has heard of the key yet, or none of its namespace.
	Unheard bool
	// Unread says that its record was not read, because it is large and there are others.
	Unread bool
}

// TriggerKey is the key of a timer.
type TriggerKey struct {
	Exists  bool
	Denied  bool      // timerd may not ask
	Expires time.Time // the zero Time: never
}

// Inspect returns all that is known of a key in one bounded step, and so many bytes of each payload.
func Inspect(ctx context.Context, s *schedule.Schedule, key keys.Key, payload int) (Inspection, error) {
	holds, err := s.Holds(ctx)
	if err != nil {
		return Inspection{}, err
	}
	name := key.String()
	args := []any{name, max(payload, 0), inspectMost}
	cmd := s.Run(ctx, s.Script(lua, "inspect"), []schedule.Call{{Partition: s.Partition(name), Args: args}})[0]
	reply, err := schedule.ReadReply(cmd, inspectHead, inspectRow)
	if err != nil {
		return Inspection{}, fmt.Errorf("schedule: inspect %q: %w", key, err)
	}
	seen := Inspection{
		Now: schedule.Millis(reply.Int(0)).Time(), Repeats: reply.Int(2) != 0, Fired: timeOf(reply.Int(3)), Contested: timeOf(reply.Int(4)),
		Unsure: reply.Int(5) == 0, More: reply.Int(6) == 1,
		Trigger: TriggerKey{Exists: reply.Int(1) >= -1, Denied: reply.Int(1) == -3, Expires: timeOf(reply.Int(1))},
	}
	for row := range slices.Chunk(reply[inspectHead:], inspectRow) {
		if timer, ok := inspected(row, schedule.Millis(reply.Int(0)), holds); ok {
			seen.Timers = append(seen.Timers, timer)
		}
	}
	order := []State{StatePending, StateHeld, StateOwed, StateFiring}
	slices.SortStableFunc(seen.Timers, func(a, b Inspected) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), a.Due.Compare(b.Due))
	})
	return seen, nil
}

// inspectHead is how many elements the reply of the script has before the timers, and inspectRow how many each timer has.
const inspectHead, inspectRow = 7, 6

// timeOf returns a time in ms, or the zero Time for what is none.
func timeOf(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return schedule.Millis(ms).Time()
}

// inspected reads what the script says of one timer. ok is false for what is none.
func inspected(row schedule.Reply, now schedule.Millis, holds *schedule.HoldList) (i Inspected, ok bool) {
	where, name, size := row.Text(0), row.Text(1), row.Int(4)
	score, _ := strconv.ParseFloat(row.Text(2), 64)
	e := entry{due: schedule.Millis(score), name: name}
	switch {
	case where == "firing":
		due, _, _ := strings.Cut(name, ":")
		ms, _ := strconv.ParseInt(due, 10, 64)
		e.kind, e.due = kindFiring, schedule.Millis(ms)
	case strings.HasPrefix(name, ":s"):
		due, _, _ := strings.Cut(name[2:], ".")
		ms, _ := strconv.ParseInt(due, 10, 64)
		e.kind, e.due = kindParked, schedule.Millis(ms)
		i.Until = timeOf(int64(score))
	}
	if i.Timer, ok = e.timer(now); !ok {
		return i, false
	}
	if e.kind == kindFiring {
		of := schedule.Score(score)
		i.State = stateOf(holds, name, i.Key, e.due, of)
		i.Perhaps = of.MayBePublished()
		if _, held := of.Held(); !held {
			i.Until = timeOf(int64(score))
		}
		if row.Int(5) == 1 {
			i.Parked = ParkedRefused
		}
	} else if i.State == StateOwed && holds.Covers(i.Key, e.due) {
		i.State = StateHeld
	}
	if i.State == StateHeld {
		i.Hold = holds.Over(i.Key, e.due)
	}
	i.Unheard = where == "key"
	if record, ok := row[3].(string); ok {
		i.take(record, int(size))
	} else {
		i.Size, i.Unread = int(size), true
	}
	return i, true
}
