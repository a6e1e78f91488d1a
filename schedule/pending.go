package schedule

import (
	"container/heap"
	"context"
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

// Pending is a timer that waits for its due time.
type Pending struct {
	Key     keys.Key
	Due     time.Time
	Attempt int // timerd's own count; 0 means that the payload says it, or 1
	Status  Status
	Payload []byte
	Aside   AsideReason // empty unless it is due and set aside
}

// List calls yield for the pending timers of a namespace, and for those that are set aside, in the order of their due
// times, until it returns false. Only timers that are set, moved or fired meanwhile may be left out or come twice.
func (s *Schedule) List(ctx context.Context, n keys.Namespace, yield func(Pending) bool) error {
	return s.Pages(ctx, n, func(p Page) bool {
		for _, timer := range p.Timers {
			if !yield(timer) {
				return false
			}
		}
		return true
	})
}

// describe calls yield for those entries of a list that are timers of a namespace. It returns false when yield does.
func (s *Schedule) describe(ctx context.Context, from *list, entries []redis.Z, n keys.Namespace, yield func(Pending) bool) (more bool, err error) {
	var found []Pending
	var members []string
	for _, e := range entries {
		member, _ := e.Member.(string)
		name := member
		if from.aside != "" {
			name = asideKey(member)
		}
		key, err := keys.Parse(name)
		if err != nil || !n.Match(key) {
			continue
		}
		members = append(members, member)
		found = append(found, Pending{Key: key, Due: time.UnixMilli(int64(e.Score)), Aside: from.aside})
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

// listing merges the due sets of all partitions, and the sets of what is set aside. It is a heap.Interface of those
// that are not at their end, ordered by the due time of what comes next.
type listing struct {
	rdb   redis.UniversalClient
	lists []*list
	total int64 // entries in them at the beginning
	page  int64 // how many entries are read at a time
}

// list is such a set from some place on.
type list struct {
	index, records string      // names of the sorted set and of the hash with the records of its members
	aside          AsideReason // empty for a due set
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
	for _, m := range masters {
		found, err := s.scanDue(ctx, m.server, m.partitions, forever, forever)
		if err != nil {
			return nil, err
		}
		l.total += found.Pending + found.Aside.Rights + found.Aside.Refused
		for _, h := range found.Heads {
			p := h.Partition
			l.lists = append(l.lists, &list{index: p.Due(), records: p.Data(), due: h.Due})
			if found.Aside.Rights > 0 {
				l.lists = append(l.lists, &list{index: p.Aside(), records: p.Data(), aside: AsideRights})
			}
			if found.Aside.Refused > 0 {
				l.lists = append(l.lists, &list{index: p.Refused(), records: p.FiringData(), aside: AsideRefused})
			}
		}
	}
	l.page = max(listPage/int64(max(len(l.lists), 1)), listPageLeast)
	heap.Init(l)
	return l, nil
}

// next returns the next entries, of one list. They may be none.
func (l *listing) next(ctx context.Context) (*list, []redis.Z, error) {
	first := l.lists[0]
	if len(first.entries) == 0 {
		entries, err := first.read(ctx, l.rdb, l.page)
		if err != nil {
			return nil, nil, err
		}
		if len(entries) == 0 {
			heap.Pop(l)
			return first, nil, nil
		}
		first.entries, first.due = entries, Millis(entries[0].Score)
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
	if first.entries = first.entries[n:]; len(first.entries) > 0 {
		first.due = Millis(first.entries[0].Score)
	}
	heap.Fix(l, 0)
	return first, entries, nil
}
