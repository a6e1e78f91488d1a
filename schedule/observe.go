package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// HintKind is the kind of change behind a keyspace event.
type HintKind byte

// The kinds of hint. Only Expired is evidence; for the others the key's state is read again.
const (
	Touched HintKind = 't' // the key was set or changed
	Audited HintKind = 'a' // an audit came across the key; there was no event
	Gone    HintKind = 'g' // the key was deleted, renamed or moved
	Evicted HintKind = 'v' // Redis evicted the key
	Expired HintKind = 'x' // the key's TTL ran out
)

// Hint is a keyspace event of a timer's key.
type Hint struct {
	Kind HintKind
	Key  string
	// Known restricts the hint to a timer that the schedule has already, because the key is in none of the namespaces.
	Known bool
	// Held is the time for which the hint had to wait while its slot moved between servers of a cluster. Nothing could
	// happen to its timer meanwhile.
	Held time.Duration
	// MayWait allows Observe to leave an expired event for later, if its timer is due in the schedule and its key is
	// gone, because a claim is about to come. The caller keeps the event until the claim. It gives the event again
	// before any newer hint of its key, or within a second or two, as one of when it was left.
	MayWait bool
}

// codeMayWait is the kind of an expired event that may wait, as the script reads it.
const codeMayWait = "w"

// code returns the kind as the script reads it.
func (h Hint) code() string {
	code := string(h.Kind)
	if h.MayWait && h.Kind == Expired {
		code = codeMayWait
	}
	if h.Known {
		return strings.ToUpper(code)
	}
	return code
}

// Head is the next due time of a partition.
type Head struct {
	Partition keys.Partition
	Due       Millis // or AtOnce, or Nothing
}

// Observed is the result of taking in hints or of a step of an audit.
type Observed struct {
	Heads       []Head   // the first due time of each partition that the hints were about
	Owed        int      // timers that are to fire at once
	Adopted     int      // timers new to the schedule
	Rescheduled int      // timers whose due time changed
	Cancelled   int      // timers that were deleted or lost their TTL
	Kept        int      // timers whose key is gone for an unknown reason: they will fire
	Denied      int      // hints without effect because the key cannot be read
	DeniedKey   string   // the key of one of them
	Left        []Hint   // expired events that were left alone, to be given again
	Apps        []string // known apps of audited timers, perhaps with duplicates; see Node.Apps
}

// Add adds the counts of other to o, and takes over DeniedKey. It leaves out Heads, Left and Apps.
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

// MovingError says that hints were not taken in because their slots are moving from one server of a cluster to another.
// The others were.
type MovingError struct {
	Hints []Hint // in their order
	Err   error  // a server's answer about one of them
}

func (e *MovingError) Error() string {
	return fmt.Sprintf("schedule: observe: the slots of %d keys are moving: %v", len(e.Hints), e.Err)
}

// Unwrap returns the server's answer.
func (e *MovingError) Unwrap() error { return e.Err }

// Observe takes hints in, a partition's in order, up to MaxHints in one call. The hints of one partition are one
// atomic step. It is safe to repeat after an error. The keys must be timer keys. heard is a lower bound on when the
// first of the hints happened, as a local instant, or the zero time if that is unknown. An expired event proves nothing
// about a timer that the schedule does not know, if it is so old that another timerd may have fired and forgotten that
// timer. A *MovingError has the hints that must be given again later.
func (n *Node) Observe(ctx context.Context, hints []Hint, heard time.Time) (seen Observed, err error) {
	s, earliest := n.schedule, n.clock.earliest(heard)
	var late MovingError
	groups := s.group(hints)
	for len(groups) > 0 {
		var left []hintGroup
		outcomes, elsewhere := n.observeGroups(ctx, groups, earliest)
		for i, outcome := range outcomes {
			g := groups[i]
			switch failed := outcome.err; {
			case IsMoving(failed), failed != nil && elsewhere[i]:
				late.Hints, late.Err = append(late.Hints, g.hints...), failed
				continue
			case failed != nil:
				err = fmt.Errorf("schedule: observe %d keys: %w", len(g.hints), failed)
				continue
			}
			for _, at := range outcome.left {
				h := g.hints[at]
				h.MayWait = false
				seen.Left = append(seen.Left, h)
			}
			if g.hints = g.hints[outcome.taken:]; len(g.hints) > 0 {
				left = append(left, g)
			}
			if !outcome.looked {
				continue
			}
			seen.Add(outcome.Observed)
			head := Head{g.partition, outcome.due}
			if outcome.Owed > 0 {
				head.Due = AtOnce
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

// elsewhereTimeout bounds the wait of a node's hints for the server to which their slots have moved.
const elsewhereTimeout = time.Second

// observeGroups takes hints in, the node's own with as few calls as possible. It returns the groups whose slots have
// moved to another server: a silent one does not delay the node's own for long.
func (n *Node) observeGroups(ctx context.Context, groups []hintGroup, earliest Millis) (outcomes []observed,
	elsewhere []bool) {
	s := n.schedule
	outcomes, elsewhere = make([]observed, len(groups)), make([]bool, len(groups))
	var own, others, refused []int
	for i, g := range groups {
		if elsewhere[i] = s.cluster && s.ServerOf(g.partition) != n.name; elsewhere[i] {
			others = append(others, i)
		} else {
			own = append(own, i)
		}
	}
	if s.cluster {
		refused = n.observeTogether(ctx, groups, own, earliest, outcomes)
	} else {
		refused = own
	}
	if len(refused) > 0 {
		n.observeEach(ctx, groups, refused, earliest, outcomes)
	}
	if len(others) > 0 {
		within, cancel := context.WithTimeout(ctx, elsewhereTimeout)
		defer cancel()
		n.observeEach(within, groups, others, earliest, outcomes)
	}
	return outcomes, elsewhere
}

// observeTogether takes in the hints of some groups on the node's server, as many as possible with each call. It
// returns the groups that the server refused: their slots are moving, or somebody has overwritten keys of a group
// beside them.
func (n *Node) observeTogether(ctx context.Context, groups []hintGroup, some []int, earliest Millis,
	outcomes []observed) (refused []int) {
	for len(some) > 0 {
		args := []any{int64(earliest), nil}
		var held time.Duration
		given, hints := 0, 0
		for _, i := range some {
			g := groups[i]
			if given == maxPartitions || given > 0 && hints+len(g.hints) > MaxHints {
				break
			}
			args, held = appendGroup(args, g, n.partitionHeardSince(g.partition), held)
			given, hints = given+1, hints+len(g.hints)
		}
		args[1] = min(held, maxHeld).Milliseconds()
		parts, err := ReadReply(n.schedule.step("observe").Run(ctx, n.server, nil, args...), 0, 1)
		if err == nil && len(parts) == 0 {
			err = errors.New("unexpected reply without a part")
		}
		_, answered := errors.AsType[redis.Error](err)
		for at, i := range some[:given] {
			switch {
			case answered: // one of them is broken, and fails alone when each has a call of its own
				refused = append(refused, i)
			case err != nil:
				outcomes[i] = observed{err: err}
			case at >= len(parts): // no more was looked at
			case len(parts.List(at)) == 0:
				refused = append(refused, i)
			default:
				outcomes[i] = readObserved(parts.List(at))
			}
		}
		some = some[given:]
	}
	return refused
}

// observeEach takes in the hints of some groups with a call for each. The partition's server refuses a call before it
// begins while the slot is moving.
func (n *Node) observeEach(ctx context.Context, groups []hintGroup, some []int, earliest Millis, outcomes []observed) {
	calls := make([]Call, len(some))
	for at, i := range some {
		g := groups[i]
		calls[at] = Call{Partition: g.partition, ArgsOn: func(server *redis.Client) []any {
			args, held := appendGroup([]any{int64(earliest), nil}, g, n.heardSinceOn(server, g.partition), 0)
			args[1] = min(held, maxHeld).Milliseconds()
			return args
		}}
	}
	for at, reply := range n.schedule.Run(ctx, n.schedule.step("observe"), calls) {
		parts, err := ReadReply(reply, 1, 0)
		if err == nil {
			outcomes[some[at]] = readObserved(parts.List(0))
		} else {
			outcomes[some[at]] = observed{err: err}
		}
	}
}

// appendGroup appends the arguments of the script for the first hints of a group. since is the time since which every
// event of its partition was heard, and held the longest wait of the hints.
func appendGroup(args []any, g hintGroup, since Millis, held time.Duration) ([]any, time.Duration) {
	hints := g.hints[:min(len(g.hints), MaxHints)]
	args = append(args, g.partition.Prefix(), int64(since), len(hints))
	for _, h := range hints {
		args = append(args, h.code(), h.Key)
		held = max(held, h.Held)
	}
	return args, held
}

// observed is the outcome of a group's hints.
type observed struct {
	Observed
	looked bool   // at any of them
	due    Millis // the first of the partition
	taken  int    // hints
	left   []int  // indices of the hints left for later
	err    error
}

func readObserved(reply Reply) observed {
	const elements = 9
	if len(reply) != elements {
		return observed{err: fmt.Errorf("unexpected reply of %d elements", len(reply))}
	}
	places := reply.List(8)
	left := make([]int, len(places))
	for i := range places {
		left[i] = int(places.Int(i)) - 1
	}
	return observed{
		Observed: Observed{
			Owed: int(reply.Int(1)), Adopted: int(reply.Int(2)), Rescheduled: int(reply.Int(3)),
			Cancelled: int(reply.Int(4)),
			Denied:    int(reply.Int(6)), DeniedKey: reply.Text(7),
		},
		looked: true, due: Millis(reply.Int(0)), taken: int(reply.Int(5)), left: left,
	}
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
