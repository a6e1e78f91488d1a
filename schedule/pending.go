package schedule

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// listPage is how many entries one step of a listing reads. Records come with their payloads, so it is kept small.
const listPage = 100

// listChunk is how many records one command reads: some milliseconds of Redis's time if each has the largest payload that
// there may be by default.
const listChunk = 2

// State says how far a timer has come.
type State string

// The states of a timer that is not settled.
const (
	StatePending State = "pending" // it is to become due
	StateOwed    State = "owed"    // it is due, and nobody has claimed it
	StateFiring  State = "firing"  // it is claimed, and not settled: its event is being published, or nobody knows whether it was
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
}

// List calls yield for the timers of a namespace that are not settled, in the order of their due times, until it returns
// false. Of those that are owed or firing it knows the first mostFirings of a partition, in the order in which they can be
// claimed; unless there are more, complete is true.
// Timers that are set, moved or fired meanwhile may be left out or come twice.
func (s *Schedule) List(ctx context.Context, n keys.Namespace, yield func(Timer) bool) (complete bool, err error) {
	l, err := s.newListing(ctx)
	if err != nil {
		return false, fmt.Errorf("schedule: list timers: %w", err)
	}
	for l.Len() > 0 {
		from, entries, err := l.next(ctx)
		if err == nil {
			var more bool
			if more, err = s.describe(ctx, from, entries, n, yield); err == nil && !more {
				break
			}
		}
		if err != nil {
			return false, fmt.Errorf("schedule: list timers: %w", err)
		}
	}
	return !l.cut, nil
}

// describe calls yield for those entries of a list that are timers of a namespace. It returns false when yield does.
func (s *Schedule) describe(ctx context.Context, from *list, entries []entry, n keys.Namespace, yield func(Timer) bool) (more bool, err error) {
	var found []Timer
	var members []string
	for _, e := range entries {
		if e.timer.Key.App != "" && n.Match(e.timer.Key) {
			members = append(members, e.member)
			found = append(found, e.timer)
		}
	}
	if len(found) == 0 {
		return true, nil
	}
	records, err := s.readRecords(ctx, from.records, members)
	if err != nil {
		return false, err
	}
	for i, r := range records {
		record, ok := r.(string)
		if !ok {
			continue
		}
		header, payload, _ := strings.Cut(record, ":")
		flags := strings.TrimLeft(header, "0123456789")
		found[i].Attempt, _ = strconv.Atoi(strings.TrimSuffix(header, flags))
		if found[i].Status = statusOf(flags); found[i].Status == PayloadPresent {
			found[i].Payload = []byte(payload)
		}
		if !yield(found[i]) {
			return false, nil
		}
	}
	return true, nil
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

// mostFirings is how many firings of a partition a listing knows at most. firingPage is how many one command reads.
const mostFirings, firingPage = 100_000, 1000

// listing merges the due sets of all partitions, the sets of what is set aside, and the firings. It is a heap.Interface of those
// that are not at their end, ordered by the due time of what comes next.
type listing struct {
	rdb   redis.UniversalClient
	lists []*list
	cut   bool // there are more firings than are listed
}

// list is such a set from some place on.
type list struct {
	index, records string      // names of the sorted set and of the hash with the records of its members
	aside          AsideReason // empty for a due set
	now            Millis      // when the server looked at it
	whole          bool        // there is nothing to be read any more
	due            Millis      // of what comes next, at the earliest
	read           int64       // how many entries were read
	entries        []entry     // read and not returned yet
}

// entry is one of them.
type entry struct {
	member string // of the index, or its ref
	due    Millis
	timer  Timer // without what the record says; without a key if it is none to be listed
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
	for _, m := range masters {
		found, err := s.scanDue(ctx, m.server, m.partitions, forever, forever)
		if err != nil {
			return nil, err
		}
		for _, h := range found.Heads {
			p := h.Partition
			l.lists = append(l.lists, &list{index: p.Due(), records: p.Data(), due: h.Due, now: found.at})
			if found.Aside.Rights > 0 {
				l.lists = append(l.lists, &list{index: p.Aside(), records: p.Data(), aside: AsideRights, now: found.at})
			}
			if found.Firing > 0 {
				firings, err := l.readFirings(ctx, p, found.Aside.Refused > 0)
				if err != nil {
					return nil, err
				}
				l.lists = append(l.lists, firings)
			}
		}
	}
	heap.Init(l)
	return l, nil
}

// readFirings reads the firings of a partition, and sorts them by their due times. refused says that NATS may have refused some.
func (l *listing) readFirings(ctx context.Context, p keys.Partition, refused bool) (*list, error) {
	firings := &list{index: p.Firing(), records: p.FiringData(), whole: true}
	for {
		page, err := l.rdb.ZRangeWithScores(ctx, firings.index, firings.read, firings.read+firingPage-1).Result()
		if err != nil {
			return nil, err
		}
		firings.read += int64(len(page))
		entries, err := l.newFirings(ctx, p, page, refused)
		if err != nil {
			return nil, err
		}
		firings.entries = append(firings.entries, entries...)
		if l.cut = l.cut || len(firings.entries) >= mostFirings; l.cut || len(page) < firingPage {
			break
		}
	}
	slices.SortStableFunc(firings.entries, func(a, b entry) int { return cmp.Compare(a.due, b.due) })
	firings.from(0)
	return firings, nil
}

// newFirings returns the entries of some firings.
func (l *listing) newFirings(ctx context.Context, p keys.Partition, page []redis.Z, refused bool) ([]entry, error) {
	entries, refs := make([]entry, len(page)), make([]string, len(page))
	for i, z := range page {
		refs[i], _ = z.Member.(string)
		entries[i].member = refs[i]
		if f, err := newFiring(refs[i], ":"); err == nil {
			entries[i].due = f.Due
			entries[i].timer = Timer{Key: f.Key, Due: time.UnixMilli(int64(f.Due)), State: firingState(z.Score)}
		}
	}
	if !refused || len(refs) == 0 {
		return entries, nil
	}
	since, err := l.rdb.ZMScore(ctx, p.Refused(), refs...).Result()
	for i := range since {
		if since[i] != 0 {
			entries[i].timer.Aside = AsideRefused
		}
	}
	return entries, err
}

// firingState returns the state of a firing whose claim ends at a time, as release.lua and index.lua have it.
func firingState(score float64) State {
	if score == 0 || score != math.Trunc(score) {
		return StateOwed
	}
	return StateFiring
}

// from goes on to the entries from one on.
func (l *list) from(first int) {
	if l.entries = l.entries[first:]; len(l.entries) > 0 {
		l.due = l.entries[0].due
	}
}

// newEntry returns an entry of a due set or of one of what is set aside.
func (l *list) newEntry(z redis.Z) entry {
	member, _ := z.Member.(string)
	e := entry{member: member, due: Millis(z.Score)}
	name, beside := member, false
	if strings.HasPrefix(member, ":") {
		kind, key, _ := strings.Cut(member[1:], ":")
		if l.aside == "" && strings.Trim(kind, "0123456789.") != "" {
			return e // contested, or in another list
		}
		name, beside = key, l.aside == ""
	}
	key, err := keys.Parse(name)
	if err != nil {
		return e
	}
	e.timer = Timer{Key: key, Due: time.UnixMilli(int64(e.due)), State: StatePending, Beside: beside, Aside: l.aside}
	if e.due <= l.now {
		e.timer.State = StateOwed
	}
	return e
}

// next returns the next entries, of one list. They may be none.
func (l *listing) next(ctx context.Context) (*list, []entry, error) {
	first := l.lists[0]
	if len(first.entries) == 0 {
		if first.whole {
			heap.Pop(l)
			return first, nil, nil
		}
		page, err := l.rdb.ZRangeWithScores(ctx, first.index, first.read, first.read+listPage-1).Result()
		if err != nil {
			return nil, nil, err
		}
		first.read += int64(len(page))
		first.whole = len(page) < listPage
		for _, z := range page {
			first.entries = append(first.entries, first.newEntry(z))
		}
		first.from(0)
		heap.Fix(l, 0)
		return first, nil, nil
	}
	until := Never
	for _, other := range l.lists[1:min(len(l.lists), 3)] { // one of them is the next after the first
		until = min(until, other.due)
	}
	n := 1
	for n < len(first.entries) && n < listPage && first.entries[n].due <= until {
		n++
	}
	entries := first.entries[:n]
	first.due = entries[n-1].due
	first.from(n)
	heap.Fix(l, 0)
	return first, entries, nil
}
