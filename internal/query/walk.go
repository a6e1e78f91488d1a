package query

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Limits of one step of a walk. One call reads at most walkEntries names, or walkBytes of them, of at most
// walkPartitions partitions: it holds Redis for less than a millisecond. In a cluster every partition may have some.
// Until the length of the names is known, a call reads walkFirst, mostly enough for a page. All calls of a step read
// walkRound, which wait in memory.
const (
	walkEntries    = 500
	walkFirst      = 100
	walkBytes      = 64 << 10
	walkPartitions = 64
	walkRound      = 50_000
	walkLeast      = 2
)

// Limits of the firings in a walk: their order is not that of due times, so all of them wait in memory. One command
// reads firingPage.
const (
	mostFirings = 100_000
	firingPage  = 1000
)

// kind is the sorted set of an entry in its partition.
type kind int

const (
	kindDue kind = iota
	kindParked
	kindHeld
	kindFiring
)

// entry is a name in the index: of a timer, or of something not to be listed.
type entry struct {
	due  schedule.Millis
	name string
	kind kind
	p    keys.Partition
}

func (e entry) place() Place { return Place{e.due, e.name} }

func compareEntries(a, b entry) int {
	return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.name, b.name))
}

// walk goes through the entries of all partitions in their order. It keeps its place: each step asks every partition
// for its next entries.
type walk struct {
	s            *schedule.Schedule
	query        Query
	masters      []schedule.Master
	from, before schedule.Millis // the bounds of due times, for all but firings
	at           Place

	ahead   *step   // the first step, already read by newWalk; nil afterwards
	each    int     // entries of each sorted set in a step
	most    int     // limit of the entries of a call
	firings []entry // after the place, in order
	done    bool

	holds    *schedule.HoldList
	restored restored
	now      schedule.Millis         // the latest of the servers' clocks at the start
	looked   int64                   // entries between from and the place
	total    int64                   // entries at the start
	cut      bool                    // there may be more firings
	moving   int                     // partitions left out since their slots were found moving
	late     map[keys.Partition]bool // partitions that began to move between a timer and its record
}

// newWalk begins a walk through the entries that a query may select, after a place. It reads that many firings at most,
// in claim order.
func newWalk(ctx context.Context, s *schedule.Schedule, q Query, at Place, firings int) (*walk, error) {
	w := &walk{s: s, query: q, from: q.from(), before: q.before(), at: at, late: map[keys.Partition]bool{}}
	var err error
	if w.masters, err = s.Masters(ctx); err != nil {
		return nil, err
	}
	if w.holds, err = s.KnownHolds(ctx); err != nil {
		return nil, err
	}
	w.restored = restored{s: s, holds: w.holds}
	if !q.wants(StatePending) { // of later timers only firings are not pending
		w.before = min(w.before, w.holds.Now+1)
	}
	partitions := 0
	for _, m := range w.masters {
		partitions += len(m.Partitions)
	}
	w.each, w.most = eachOf(partitions, walkFirst), walkFirst
	if w.ahead, err = w.ask(ctx, true); err != nil {
		return nil, err
	}
	for _, p := range w.ahead.firing {
		some, err := w.readFirings(ctx, p, firings-len(w.firings))
		if err != nil {
			return nil, err
		}
		w.firings = append(w.firings, some...)
	}
	w.cut = len(w.firings) >= firings
	w.sortFirings()
	w.leaveOutMoved()
	return w, nil
}

// leaveOutMoved removes from the first step the timers that were firings by the time these were read.
func (w *walk) leaveOutMoved() {
	type timer struct {
		name string
		due  schedule.Millis
	}
	nameOf := func(e entry) timer {
		if e.kind != kindHeld && strings.HasPrefix(e.name, ":") {
			return timer{parkedKey(e.name), e.due}
		}
		return timer{e.name, e.due} // a held timer keeps its name among the firings once it is released
	}
	moved := map[timer]bool{}
	for _, e := range w.ahead.entries {
		moved[nameOf(e)] = false
	}
	for _, e := range w.firings {
		for _, name := range [...]string{e.name, parkedKey(e.name)} {
			if _, is := moved[timer{name, e.due}]; is {
				moved[timer{name, e.due}] = true
			}
		}
	}
	before := len(w.ahead.entries)
	w.ahead.entries = slices.DeleteFunc(w.ahead.entries, func(e entry) bool { return moved[nameOf(e)] })
	w.total -= int64(before - len(w.ahead.entries))
}

// eachOf returns the number of entries to ask of each of so many partitions: together about walkRound entries, and no
// more than most of one partition.
func eachOf(partitions, most int) int {
	return min(max(walkRound/max(partitions, 1), walkLeast), most)
}

// sortFirings sorts the firings and keeps one entry of each: a firing claimed during the reads was read twice. It
// counts the firings before the place, and removes them.
func (w *walk) sortFirings() {
	w.firings = slices.DeleteFunc(w.firings, func(e entry) bool {
		return e.due < w.query.from() ||
			e.due >= w.query.before()
	})
	slices.SortFunc(w.firings, compareEntries)
	w.firings = slices.CompactFunc(w.firings, func(a, b entry) bool { return compareEntries(a, b) == 0 })
	w.total += int64(len(w.firings))
	first := slices.IndexFunc(w.firings, w.at.isBefore)
	if first < 0 {
		first = len(w.firings)
	}
	w.looked += int64(first)
	w.firings = w.firings[first:]
}

// readFirings reads the firings of a partition that are not held, no more than most.
func (w *walk) readFirings(ctx context.Context, p keys.Partition, most int) ([]entry, error) {
	var all []entry
	for l := (list{index: p.Firing()}); len(all) < most; {
		some, err := l.read(ctx, w.s.Client(), firingPage)
		if err != nil {
			return nil, err
		}
		for _, e := range some {
			ref, _ := e.Member.(string)
			if _, held := schedule.Score(e.Score).Held(); held { // held ones come last
				return all, nil
			}
			due, _, _ := strings.Cut(ref, ":")
			if ms, err := strconv.ParseInt(due, 10, 64); err == nil {
				all = append(all, entry{schedule.Millis(ms), ref, kindFiring, p})
			}
		}
		if len(some) == 0 {
			break
		}
	}
	return all, nil
}

// next returns the next entries, in order; none, and done, at the end.
func (w *walk) next(ctx context.Context) ([]entry, error) {
	found := w.ahead
	if w.ahead = nil; found == nil {
		var err error
		if found, err = w.ask(ctx, false); err != nil {
			return nil, err
		}
	}
	if len(found.entries) > 0 {
		w.most = min(walkBytes/(found.bytes/len(found.entries)+1), walkEntries)
	}
	// The entries after the last one of an incomplete set are unknown. All firings are known.
	known := len(w.firings)
	if found.more {
		if known = slices.IndexFunc(w.firings, func(e entry) bool {
			return compareEntries(e, found.until) > 0
		}); known < 0 {
			known = len(w.firings)
		}
		found.entries = slices.DeleteFunc(found.entries, func(e entry) bool {
			return compareEntries(e, found.until) > 0
		})
	}
	all := slices.Concat(found.entries, w.firings[:known])
	w.firings, w.done = w.firings[known:], !found.more
	slices.SortFunc(all, compareEntries)
	if len(all) > 0 {
		w.at = all[len(all)-1].place()
	}
	w.each = eachOf(found.partitions, w.most)
	return all, nil
}

// step has the answers of all partitions.
type step struct {
	entries    []entry
	bytes      int              // of their names
	partitions int              // with entries
	firing     []keys.Partition // with firings
	more       bool             // there may be more entries after until
	until      entry
}

// ask asks the partitions for the entries after the place, but not partitions without any left. The first time it
// counts all entries.
func (w *walk) ask(ctx context.Context, first bool) (*step, error) {
	found := &step{}
	script, size := w.s.Script(lua, "find"), min(max(w.most/w.each, 1), walkPartitions)
	for i, m := range w.masters {
		var some []keys.Partition
		args := []any{int64(w.at.due), w.at.name, int64(w.from), scoreOf(w.before), w.each, first}
		err := m.RunOver(ctx, script, size, args, func(cmd *redis.Cmd) error {
			reply, err := schedule.ReadReply(cmd, 4, 5)
			if err != nil {
				return err
			}
			w.moving += int(reply.Int(1))
			if first {
				w.count(reply)
			}
			for at := 4; at < len(reply); at += 5 {
				if p := keys.Partition(reply.Text(at)); found.take(p, reply[at+1:at+5], w.each, w.before) {
					some = append(some, p)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		w.masters[i].Partitions = some
		found.partitions += len(some)
	}
	return found, nil
}

// scoreOf formats a due time as the bound of a range.
func scoreOf(m schedule.Millis) string {
	if m == schedule.Never {
		return "+inf"
	}
	return strconv.FormatInt(int64(m), 10)
}

// count adds the number of a server's entries.
func (w *walk) count(reply schedule.Reply) {
	w.now = max(w.now, schedule.Millis(reply.Int(0)))
	w.looked += reply.Int(2)
	w.total += reply.Int(3)
}

// take adds one partition's answer: at most each next entries of its sorted sets, and the number of its firings. It
// reports whether there are entries.
func (f *step) take(p keys.Partition, reply schedule.Reply, each int, before schedule.Millis) (some bool) {
	if reply.Int(3) > 0 {
		f.firing = append(f.firing, p)
	}
	for kind := range kindFiring {
		set := reply.List(int(kind))
		var last entry
		for i := 0; i+1 < len(set); i += 2 {
			name := set.Text(i)
			score, _ := strconv.ParseFloat(set.Text(i+1), 64)
			due := schedule.Millis(score)
			if kind == kindHeld {
				due, _ = schedule.Score(score).Held()
			}
			if last = (entry{due, name, kind, p}); last.due >= before {
				break
			}
			f.entries, some = append(f.entries, last), true
			f.bytes += len(name)
		}
		if len(set) == 2*each && last.due < before && (!f.more || compareEntries(last, f.until) < 0) {
			f.more, f.until = true, last
		}
	}
	return some
}
