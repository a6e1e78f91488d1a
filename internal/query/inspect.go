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

// inspectMost limits the timers that Inspect returns: as many small records as one call may read.
const inspectMost = 100

// Inspection has everything that the schedule knows of a key.
type Inspection struct {
	Timers  []Inspected // pending ones first, then held, owed and firing ones, each by due time
	Trigger TriggerKey
	Repeats bool      // the key has a repetition, planned or not
	Fired   time.Time // the last claim of a timer of the key, if within about a minute
	// Contested is the due time of another timer that ran out or was changed, undecided yet: timerd decides within
	// seconds. The zero Time means none.
	Contested time.Time
	Now       time.Time // by the server's clock
	More      bool      // there are more timers
	Unsure    bool      // too many timers are firing to search all
}

// Pending returns the key's movable timers.
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
	// Until is, for a firing timer, the end of its claim: after that any timerd can claim it again. For a waiting timer
	// it is the time of the next look, if known. The index does not record the claiming timerd.
	Until time.Time
	// Perhaps means that a timerd gave the timer back after perhaps publishing it.
	Perhaps bool
	// Hold is the hold on a held timer; nil if no hold covers it any more.
	Hold *schedule.Hold
	// Unheard means that the timer is not in the index: no timerd has received an event of the key yet, or none adopts
	// its namespace.
	Unheard bool
	// Unread means that the record was left out, because it is large and the key has other timers.
	Unread bool
}

// TriggerKey is the key's state in Redis.
type TriggerKey struct {
	Exists  bool
	Denied  bool      // timerd has no right to read it
	Expires time.Time // the zero Time: never
}

// Inspect reads everything about a key in one bounded step, with payload bytes of each payload.
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
		Now: schedule.Millis(reply.Int(0)).Time(), Repeats: reply.Int(2) != 0, Fired: timeOf(reply.Int(3)),
		Contested: timeOf(reply.Int(4)),
		Unsure:    reply.Int(5) == 0, More: reply.Int(6) == 1,
		Trigger: TriggerKey{Exists: reply.Int(1) >= -1, Denied: reply.Int(1) == -3, Expires: timeOf(reply.Int(1))},
	}
	restored := restored{s: s, holds: holds}
	for row := range slices.Chunk(reply[inspectHead:], inspectRow) {
		timer, ok := inspected(row, schedule.Millis(reply.Int(0)), holds)
		if !ok {
			continue
		}
		if err := restored.correct(ctx, &timer.Timer, schedule.MillisOf(timer.Due)); err != nil {
			return Inspection{}, err
		}
		seen.Timers = append(seen.Timers, timer)
	}
	order := []State{StatePending, StateHeld, StateOwed, StateFiring}
	slices.SortStableFunc(seen.Timers, func(a, b Inspected) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), a.Due.Compare(b.Due))
	})
	return seen, nil
}

// inspectHead is the number of elements before the timers in the script's reply, and inspectRow the number of each
// timer's.
const inspectHead, inspectRow = 7, 6

// timeOf returns a time in ms; the zero Time for a value that means none.
func timeOf(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return schedule.Millis(ms).Time()
}

// inspected reads one timer of the script's reply. ok is false if it is no timer.
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
