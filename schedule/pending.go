package schedule

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// listChunk is how many records one command reads: some milliseconds of Redis's time if each has the largest payload that
// there may be by default.
const listChunk = 2

// State says how far a timer has come.
type State string

// The states of a timer that is not settled.
const (
	StatePending State = "pending" // it is to become due
	StateOwed    State = "owed"    // it is due, and nobody has claimed it
	StateHeld    State = "held"    // it is due, and held
	// StateFiring: it is claimed, and not settled, or was given back by somebody who may have published it: nobody knows
	// whether its event is in NATS.
	StateFiring State = "firing"
)

// Timer is a timer that is not settled.
type Timer struct {
	Key     keys.Key
	Due     time.Time
	Attempt int // timerd's own count; 0 means that the payload says it, or 1
	Status  Status
	Payload []byte
	State   State
	Beside  bool        // a retry that waits beside a newer timer of its key
	Aside   AsideReason // empty unless it is due and set aside

	Repeat     string // what it repeats by, as its events say it; empty for a timer that does not
	Occurrence int64  // from 1 on; 0 for a timer that does not repeat
}

// List calls yield for the timers of a namespace that are not settled, in the order of their due times, until it returns
// false. What [Schedule.Pages] says of timers that are left out holds here too.
func (s *Schedule) List(ctx context.Context, n keys.Namespace, yield func(Timer) bool) error {
	return s.Pages(ctx, n, func(p Page) bool {
		for _, timer := range p.Timers {
			if !yield(timer) {
				return false
			}
		}
		return true
	})
}

// describe adds the records of timers in a list. Those that have left it since are left out.
func (s *Schedule) describe(ctx context.Context, l *listing, from *list, found []Timer, members []string) ([]Timer, error) {
	if from.firing {
		if err := s.readStates(ctx, from, members, found); err != nil {
			return nil, err
		}
	}
	for i := range found {
		until := MillisOf(found[i].Due)
		if from.firing {
			until = Never // what a resume has released stays so
			if isPlanRef(members[i]) {
				found[i].State = StatePending
			}
		}
		if found[i].State == StateOwed && l.holds.Covers(found[i].Key, until) {
			found[i].State = StateHeld // as soon as a claim looks at it
		}
	}
	records, err := s.readRecords(ctx, from.records, members)
	if err != nil {
		return nil, err
	}
	timers := found[:0]
	for i, timer := range found {
		if record, ok := records[i].(string); ok {
			timer.take(record)
			timers = append(timers, timer)
		}
	}
	return timers, nil
}

// take adds what the record says.
func (t *Timer) take(text string) {
	r, _ := parseRecord(text)
	t.Attempt, t.Status = r.attempt, r.status
	if o := r.occurrence; o != nil {
		t.Repeat, t.Occurrence = o.Repeat, o.Number
	}
	if t.Status == PayloadPresent {
		t.Payload = []byte(r.payload)
	}
}

// readRecords reads the records of members, a few with each command: they may be large.
func (s *Schedule) readRecords(ctx context.Context, hash string, members []string) ([]any, error) {
	var replies []*redis.SliceCmd
	_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for few := range slices.Chunk(members, listChunk) {
			replies = append(replies, pipe.HMGet(ctx, hash, few...))
		}
		return nil
	})
	var records []any
	for _, reply := range replies {
		records = append(records, reply.Val()...)
	}
	return records, err
}

// readStates adds the states of firings, and whether NATS refused them. It comes before their records, which those that are
// settled meanwhile do not have.
func (s *Schedule) readStates(ctx context.Context, from *list, refs []string, firings []Timer) error {
	var claims, refused *redis.FloatSliceCmd
	_, err := s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		claims, refused = pipe.ZMScore(ctx, from.index, refs...), pipe.ZMScore(ctx, from.refused, refs...)
		return nil
	})
	if err != nil {
		return err
	}
	for i := range firings {
		firings[i].State = firingState(claims.Val()[i])
		if refused.Val()[i] > 0 {
			firings[i].Aside = AsideRefused
		}
	}
	return nil
}

// firingState returns the state of a firing whose claim ends at a time, as is_free in owed.lua has it.
func firingState(score float64) State {
	if fraction := score - math.Trunc(score); score == 0 || fraction == 0.5 || fraction == 0.25 {
		return StateOwed
	}
	return StateFiring
}

// mostFirings is how many firings a listing knows at most: they are not in the order of their due times, so all of them wait in
// memory. firingPage is how many one command reads.
const mostFirings, firingPage = 100_000, 1000

// listing merges the due sets of all partitions, the sets of what is set aside, and the firings. It is a heap.Interface of
// those that are not at their end, ordered by the due time of what comes next.
type listing struct {
	rdb     redis.UniversalClient
	lists   []*list
	total   int64 // entries in them at the beginning
	page    int64 // how many entries are read at a time
	now     Millis
	firings int // how many were read
	holds   *HoldList
}

// list is such a set from some place on.
type list struct {
	index, records string      // names of the sorted set and of the hash with the records of its members
	aside          AsideReason // of what is in it; empty for what is not set aside, and for firings
	firing         bool        // it has firings: all were read, and the scores of the entries are their due times
	held           bool        // it has those firings that are held
	refused        string      // for firings, the name of the set of those that NATS refused
	now            Millis      // when the server looked at it
	due            Millis      // of what comes next, at the earliest
	entries        []redis.Z   // read and not returned yet
	last           redis.Z     // the last one that was read; its member is nil before
	rank           int64       // after the last one, when it was read
}

func (l *listing) Len() int           { return len(l.lists) }
func (l *listing) Less(i, j int) bool { return l.lists[i].due < l.lists[j].due }
func (l *listing) Swap(i, j int)      { l.lists[i], l.lists[j] = l.lists[j], l.lists[i] }
func (l *listing) Push(x any)         { l.lists = append(l.lists, x.(*list)) } //nolint:forcetypeassert // only lists are pushed
func (l *listing) Pop() any {
	last := l.lists[len(l.lists)-1]
	l.lists = l.lists[:len(l.lists)-1]
	return last
}

func (s *Schedule) newListing(ctx context.Context) (*listing, error) {
	masters, err := s.topology.masters(ctx)
	if err != nil {
		return nil, err
	}
	l := &listing{rdb: s.rdb}
	if l.holds, err = s.Holds(ctx); err != nil {
		return nil, err
	}
	for _, m := range masters {
		found, err := s.scanDue(ctx, m.server, m.partitions, forever, forever)
		if err != nil {
			return nil, err
		}
		l.now = max(l.now, found.at)
		l.total += found.Pending + found.Aside.Rights + found.Firing + found.Held
		for _, h := range found.Heads {
			p := h.Partition
			l.lists = append(l.lists, &list{index: p.Due(), records: p.Data(), now: found.at, due: h.Due})
			if found.Aside.Rights > 0 {
				l.lists = append(l.lists, &list{index: p.Aside(), records: p.Data(), now: found.at, aside: AsideRights})
			}
			if found.Held > 0 {
				held, err := l.heldOf(ctx, p)
				if err != nil {
					return nil, err
				}
				l.lists = append(l.lists, held)
			}
			if found.Firing > 0 {
				firings, err := l.readFirings(ctx, p)
				if err != nil {
					return nil, err
				}
				l.lists = append(l.lists, firings)
			}
		}
	}
	l.page = max(listPage/int64(max(len(l.lists), 1)), listPageLeast)
	heap.Init(l)
	return l, nil
}

// readFirings reads the firings of a partition, as far as there is room, and sorts them by their due times.
func (l *listing) readFirings(ctx context.Context, p keys.Partition) (*list, error) {
	firings := &list{index: p.Firing(), records: p.FiringData(), firing: true, refused: p.Refused()}
	for l.firings < mostFirings {
		entries, err := firings.read(ctx, l.rdb, firingPage)
		if err != nil {
			return nil, err
		}
		all := len(entries)
		entries = slices.DeleteFunc(entries, func(e redis.Z) bool { return e.Score >= heldScore })
		l.firings += len(entries)
		firings.entries = append(firings.entries, entries...)
		if len(entries) < all || all == 0 { // held ones come last
			break
		}
	}
	for i := range firings.entries {
		e := &firings.entries[i]
		ref, _ := e.Member.(string)
		due, _, _ := strings.Cut(ref, ":")
		e.Score, _ = strconv.ParseFloat(due, 64) // timer leaves out what has none
	}
	slices.SortFunc(firings.entries, func(a, b redis.Z) int { return cmp.Compare(a.Score, b.Score) })
	firings.from(0)
	return firings, nil
}

// timers returns those entries that are timers of a namespace, and their names in the list.
func (l *list) timers(entries []redis.Z, n keys.Namespace) (found []Timer, members []string) {
	for _, e := range entries {
		member, _ := e.Member.(string)
		if timer, ok := l.timer(member, Millis(e.Score)); ok && n.Match(timer.Key) {
			found, members = append(found, timer), append(members, member)
		}
	}
	return found, members
}

// timer returns what an entry with a due time says of its timer. ok is false for what is no timer to be listed.
func (l *list) timer(member string, due Millis) (timer Timer, ok bool) {
	name, state, beside := member, StatePending, false
	switch {
	case l.firing, l.held:
		f, err := newFiring(member, ":")
		state := StateFiring // until it is known better
		if l.held {
			state = StateHeld
		}
		return Timer{Key: f.Key, Due: due.Time(), State: state}, err == nil
	case l.aside != "":
		name = asideKey(member)
	case strings.HasPrefix(member, ":"):
		kind, key, _ := strings.Cut(member[1:], ":")
		if strings.Trim(kind, "0123456789.") != "" { // contested, or set aside and in that list
			return Timer{}, false
		}
		name, beside = key, true
	}
	if due <= l.now {
		state = StateOwed
	}
	key, err := keys.Parse(name)
	return Timer{Key: key, Due: due.Time(), State: state, Beside: beside, Aside: l.aside}, err == nil
}

// from goes on to the entries from one on.
func (l *list) from(first int) {
	if l.entries = l.entries[first:]; len(l.entries) > 0 {
		l.due = Millis(l.entries[0].Score)
	}
}

// next returns the next entries, of one list. They may be none.
func (l *listing) next(ctx context.Context) (*list, []redis.Z, error) {
	first := l.lists[0]
	if len(first.entries) == 0 {
		var entries []redis.Z
		if !first.firing {
			var err error
			if entries, err = first.read(ctx, l.rdb, l.page); err != nil {
				return nil, nil, err
			}
			if first.held {
				toDues(entries)
			}
		}
		if len(entries) == 0 {
			heap.Pop(l)
			return first, nil, nil
		}
		first.entries = entries
		first.from(0)
		heap.Fix(l, 0)
		return first, nil, nil
	}
	until := Never
	for _, other := range l.lists[1:min(len(l.lists), 3)] { // one of them is the next after the first
		until = min(until, other.due)
	}
	n := 1
	for n < len(first.entries) && Millis(first.entries[n].Score) <= until {
		n++
	}
	entries := first.entries[:n]
	first.due = Millis(entries[n-1].Score)
	first.from(n)
	heap.Fix(l, 0)
	return first, entries, nil
}
