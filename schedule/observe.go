package schedule

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// HintKind says what a keyspace event hints at.
type HintKind byte

// The kinds of hint. Only Expired is evidence; the others have the key's state read again.
const (
	Touched HintKind = 't' // the key was set or changed
	Audited HintKind = 'a' // an audit came across the key; there was no event
	Gone    HintKind = 'g' // the key was deleted, renamed or moved away
	Evicted HintKind = 'v' // Redis evicted the key
	Expired HintKind = 'x' // the key's TTL ran out
)

// Hint is a keyspace event of a timer's key.
type Hint struct {
	Kind HintKind
	Key  string
	// Known restricts the hint to a timer that the schedule has already, because the key is in none of the namespaces.
	Known bool
	// Held is for how long the hint had to wait because its slot was moving from
	// one server of a cluster to another, so that nothing could happen to its timer.
	Held time.Duration
	// MayWait has an expired event left alone if its timer is due in the schedule and its key is gone: the claim will come. The
	// caller keeps it until then, and gives it again before anything newer of its key, or within a second or two, as one that
	// happened when it was left alone. It has no effect in a cluster, where nobody hears of the claim.
	MayWait bool
}

// codeMayWait is the kind of an expired event that may wait, as the script reads it.
const codeMayWait = "w"

// code returns the kind as the script reads it.
func (h Hint) code(p keys.Partition) string {
	code := string(h.Kind)
	if h.MayWait && h.Kind == Expired && p == keys.Single {
		code = codeMayWait
	}
	if h.Known {
		return strings.ToUpper(code)
	}
	return code
}

// Head says when there is something to do in a partition.
type Head struct {
	Partition keys.Partition
	Due       Millis // or AtOnce, or Nothing
}

// Observed is what a step of taking in hints or auditing did.
type Observed struct {
	Heads       []Head   // the first due time of each partition that the hints were about
	Owed        int      // timers that are to fire at once
	Adopted     int      // timers new to the schedule
	Rescheduled int      // timers whose due time changed
	Cancelled   int      // timers that were deleted or lost their TTL
	Kept        int      // timers whose key is gone, and nobody knows why: they will fire
	Denied      int      // hints that said nothing because the key cannot be read
	DeniedKey   string   // the key of one of them
	Left        []Hint   // expired events that were left alone, to be given again
	Apps        []string // known apps of timers that were audited, perhaps several times; see Node.Apps
}

// Add adds the counts of other to o, and takes over the key. It leaves out Heads, Left and Apps.
func (o *Observed) Add(other Observed) {
	o.Owed += other.Owed
	o.Adopted += other.Adopted
	o.Rescheduled += other.Rescheduled
	o.Cancelled += other.Cancelled
	o.Kept += other.Kept
	o.Denied += other.Denied
	if other.DeniedKey != "" {
		o.DeniedKey = other.DeniedKey
	}
}

// maxHeld bounds Hint.Held: tombstones are not kept for much longer.
const maxHeld = 50 * time.Second

// MovingError says that hints were not taken in because their slots are moving
// from one server of a cluster to another. The others were.
type MovingError struct {
	Hints []Hint // in their order
	Err   error  // what a server said about one of them
}

func (e *MovingError) Error() string {
	return fmt.Sprintf("schedule: observe: the slots of %d keys are moving: %v", len(e.Hints), e.Err)
}

// Unwrap returns what the server said.
func (e *MovingError) Unwrap() error { return e.Err }

// Observe takes hints in, those of a partition in their order, up to MaxHints in one atomic step. It is safe to repeat after
// an error. The keys must be timer keys. heard is the local instant at which the first of the hints happened at the earliest;
// the zero time if that is unknown. An expired event that is so old that others may have fired and forgotten its timer proves
// nothing about one that the schedule does not know. A *MovingError has the hints that are to be taken in later.
func (n *Node) Observe(ctx context.Context, hints []Hint, heard time.Time) (seen Observed, err error) {
	s, earliest := n.schedule, n.clock.earliest(heard)
	var late MovingError
	groups := s.group(hints)
	for len(groups) > 0 {
		calls := make([]Call, len(groups))
		for i, g := range groups {
			calls[i] = Call{g.partition, g.args(n.partitionHeardSince(g.partition), earliest)}
		}
		var left []hintGroup
		replies, elsewhere := n.runObserve(ctx, calls)
		for i, cmd := range replies {
			g := groups[i]
			reply, failed := readObserved(cmd)
			switch {
			case IsMoving(failed), failed != nil && elsewhere[i]:
				late.Hints, late.Err = append(late.Hints, g.hints...), failed
				continue
			case failed != nil:
				err = fmt.Errorf("schedule: observe %d keys: %w", len(g.hints), failed)
				continue
			}
			seen.Add(reply.Observed)
			head := Head{g.partition, reply.due}
			if reply.Owed > 0 {
				head.Due = AtOnce
			}
			for _, at := range reply.left {
				h := g.hints[at]
				h.MayWait = false
				seen.Left = append(seen.Left, h)
			}
			if g.hints = g.hints[reply.taken:]; len(g.hints) > 0 {
				left = append(left, g)
			}
			seen.Heads = append(seen.Heads, head)
		}
		groups = left
	}
	if err == nil && len(late.Hints) > 0 {
		err = &late
	}
	return seen, err
}

// elsewhereTimeout bounds how long hints of a node wait for the server to which their slots have moved.
const elsewhereTimeout = time.Second

// runObserve takes hints in. It tells which of the calls were for another server, to which their slots have moved: one that is silent
// delays none of the node's own for long.
func (n *Node) runObserve(ctx context.Context, calls []Call) (replies []*redis.Cmd, elsewhere []bool) {
	s, script := n.schedule, n.schedule.step("observe")
	elsewhere = make([]bool, len(calls))
	var own, others []Call
	for i, c := range calls {
		if elsewhere[i] = s.cluster && s.ServerOf(c.Partition) != n.name; elsewhere[i] {
			others = append(others, c)
		} else {
			own = append(own, c)
		}
	}
	if len(others) == 0 { // as nearly always
		return s.Run(ctx, script, own), elsewhere
	}
	within, cancel := context.WithTimeout(ctx, elsewhereTimeout)
	defer cancel()
	ofOthers, ofOwn := s.Run(within, script, others), s.Run(ctx, script, own)
	for _, other := range elsewhere {
		from := &ofOwn
		if other {
			from = &ofOthers
		}
		replies = append(replies, (*from)[0])
		*from = (*from)[1:]
	}
	return replies, elsewhere
}

// observed is the reply to one call.
type observed struct {
	Observed
	due   Millis // the first of the partition
	taken int    // hints
	left  []int  // the indices of those that were left alone
}

func readObserved(cmd *redis.Cmd) (observed, error) {
	reply, err := ReadReply(cmd, 9, 0)
	if err != nil {
		return observed{}, err
	}
	places := reply.List(8)
	left := make([]int, len(places))
	for i := range places {
		left[i] = int(places.Int(i)) - 1
	}
	return observed{
		Observed: Observed{
			Owed: int(reply.Int(1)), Adopted: int(reply.Int(2)), Rescheduled: int(reply.Int(3)), Cancelled: int(reply.Int(4)),
			Denied: int(reply.Int(6)), DeniedKey: reply.Text(7),
		},
		due: Millis(reply.Int(0)), taken: int(reply.Int(5)), left: left,
	}, nil
}

// hintGroup is hints of one partition.
type hintGroup struct {
	partition keys.Partition
	hints     []Hint
}

// group sorts hints by partition.
func (s *Schedule) group(hints []Hint) []hintGroup {
	var groups []hintGroup
	at := map[keys.Partition]int{}
	for _, h := range hints {
		p := s.topology.partition(h.Key)
		n, ok := at[p]
		if !ok {
			n = len(groups)
			at[p] = n
			groups = append(groups, hintGroup{partition: p})
		}
		groups[n].hints = append(groups[n].hints, h)
	}
	return groups
}

// args returns the arguments of the script for the first of the hints.
func (g hintGroup) args(since, heard Millis) []any {
	n := min(len(g.hints), MaxHints)
	args := append(make([]any, 0, 2*n+3), int64(since), int64(heard), nil)
	var held time.Duration
	for _, h := range g.hints[:n] {
		args = append(args, h.code(g.partition), h.Key)
		held = max(held, h.Held)
	}
	args[2] = min(held, maxHeld).Milliseconds()
	return args
}
