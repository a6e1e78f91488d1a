package schedule

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Which names one timer, as it was found, among all timers of its key.
type Which struct {
	Key     keys.Key
	Due     time.Time
	Attempt int  // of a timer that waits beside another
	Beside  bool // it waits beside another, with its own name in the index
}

// Move asks for another due time of a timer.
type Move struct {
	Which
	To time.Time // a time that has passed, such as the zero Time, means now
}

// MoveOutcome is the outcome of a Move.
type MoveOutcome string

// The outcomes of a move. Only MoveDone changes anything.
const (
	MoveDone    MoveOutcome = "moved"
	MoveTooLate MoveOutcome = "toolate" // it is owed or firing, or has fired
	MoveHeld    MoveOutcome = "held"    // it is due and held: it fires when its namespace is resumed
	// it is not as it was found: set again, cancelled or moved since, or not in the index
	MoveChanged MoveOutcome = "changed"
	MoveDenied  MoveOutcome = "denied" // timerd may not write the trigger key
)

// MoveResult is the result of one Move.
type MoveResult struct {
	Outcome MoveOutcome // empty if Err is not nil
	Due     time.Time   // of MoveDone: a little later than asked for if another timer of the key has that time
	Err     error       // the outcome is unknown, or the time is over 10 years ahead; see [IsMoving] for one cause
}

// moveBatch bounds the timers moved in one round trip. Redis runs a round trip at a stretch, and the largest payloads
// take it half a ms each.
const moveBatch = 8

// Move changes the due times of pending timers, each in an atomic step. A timer that has changed since it was found is
// left alone. A timer keeps its payload, attempt, limit on lateness and repetition, and its trigger key gets a new TTL.
// A timer moved to now becomes owed, and its trigger key is deleted, so nothing overwrites it. The timer gets an id
// that no other firing of the key has.
//
// If it repeats, only this occurrence moves, as with EXPIRE: the next one keeps its time. To now none moves: a single
// firing, which is no occurrence, is added.
//
// There is always one result for each move. The error counts the unknown outcomes, and wraps the first failure. After a
// lost reply Move can be called again: a timer that was already moved to a future time counts as moved. Only a firing
// that it has added to a repetition is added once more.
func (s *Schedule) Move(ctx context.Context, moves []Move) ([]MoveResult, error) {
	results := make([]MoveResult, 0, len(moves))
	failed := 0
	var first error
	for some := range slices.Chunk(moves, moveBatch) {
		calls := make([]Call, len(some))
		for i, m := range some {
			calls[i] = Call{Partition: s.Partition(m.Key.String()), Args: m.args()}
		}
		for i, reply := range s.Run(ctx, s.step("set_time"), calls) {
			result := moveResult(ReadReply(reply, 1, 1))
			if result.Err != nil {
				result.Err = fmt.Errorf("schedule: move %q: %w", some[i].Key, result.Err)
				if failed++; failed == 1 {
					first = result.Err
				}
			}
			if result.Outcome == MoveDone {
				s.noteMoved(ctx, calls[i].Partition)
				s.Agenda.Armed(some[i].Key, MillisOf(result.Due))
			}
			results = append(results, result)
		}
	}
	if failed > 0 {
		return results, fmt.Errorf("%d of %d timers could not be moved; the first: %w", failed, len(moves), first)
	}
	return results, nil
}

// args returns the step's arguments.
func (m Move) args() []any {
	beside := ""
	if m.Beside {
		beside = "."
		if m.Attempt > 0 {
			beside += strconv.Itoa(m.Attempt)
		}
	}
	to := AtOnce
	if !m.To.IsZero() {
		to = max(MillisOf(m.To.Add(time.Millisecond-time.Nanosecond)), AtOnce)
	}
	return []any{m.Key.String(), m.Due.UnixMilli(), beside, int64(to), rand.Text()}
}

// moveResult reads the reply of the script.
func moveResult(reply Reply, err error) MoveResult {
	if err != nil {
		return MoveResult{Err: err}
	}
	result := MoveResult{Outcome: MoveOutcome(reply.Text(0))}
	if len(reply) > 1 {
		result.Due = Millis(reply.Int(1)).Time()
	}
	return result
}
