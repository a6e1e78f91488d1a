package schedule

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Which names one timer as it was found, among all of its key.
type Which struct {
	Key     keys.Key
	Due     time.Time
	Attempt int  // of one that waits beside another
	Beside  bool // it waits beside another, with a name of its own in the index
}

// Move asks for a timer to be due at another time.
type Move struct {
	Which
	To time.Time // a time that is over, as the zero Time, stands for now
}

// MoveOutcome is what came of a Move.
type MoveOutcome string

// What may come of a move. After all but the first nothing was changed.
const (
	MoveDone    MoveOutcome = "moved"
	MoveTooLate MoveOutcome = "toolate" // it is owed or firing, or has fired
	MoveHeld    MoveOutcome = "held"    // it is due and held: it fires when its namespace is resumed
	MoveChanged MoveOutcome = "changed" // it is not there as it was found: set anew, cancelled or moved since, or not in the index
	MoveDenied  MoveOutcome = "denied"  // timerd may not write the trigger key
)

// MoveResult is what came of one Move.
type MoveResult struct {
	Outcome MoveOutcome // empty if Err is not nil
	Due     time.Time   // of MoveDone: a little later than was asked for if another timer of the key has that time
	Err     error       // it is not known what came of it, or the time is over 10 years ahead; [IsMoving] may tell why
}

// moveBatch is how many timers are moved in one round trip. Redis runs what comes in one at a stretch, and payloads of the largest size
// take it half a ms each.
const moveBatch = 8

// Move has pending timers be due at other times, each in one step of its own, as it was found: nothing is done to one that was
// changed since. A timer keeps its payload, attempt, limit on lateness and repetition, and its trigger key gets another TTL. One that
// is to be due now is owed then, and its trigger key is deleted, so nothing overwrites it. It gets an id that no other firing of
// the key has. Of a timer that repeats it moves this occurrence alone, as EXPIRE does: the next one has the time that it would have had.
//
// There is one result for each move, always. The error says of how many it is not known what came of them, and wraps the first
// failure. After a lost reply it can be called again: a timer that was moved to a time that lies ahead counts as moved again.
func (s *Schedule) Move(ctx context.Context, moves []Move) ([]MoveResult, error) {
	results := make([]MoveResult, 0, len(moves))
	failed := 0
	var first error
	for some := range slices.Chunk(moves, moveBatch) {
		calls := make([]Call, len(some))
		for i, m := range some {
			calls[i] = Call{s.Partition(m.Key.String()), m.args()}
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
				s.OnArmed(some[i].Key, MillisOf(result.Due))
			}
			results = append(results, result)
		}
	}
	if failed > 0 {
		return results, fmt.Errorf("%d of %d timers could not be moved; the first: %w", failed, len(moves), first)
	}
	return results, nil
}

// args are those of the script.
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
	return []any{m.Key.String(), m.Due.UnixMilli(), beside, int64(to)}
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
