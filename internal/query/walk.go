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

// How much one step of a walk reads. One call brings walkEntries names, or walkBytes of them, at most, which hold Redis for less than a
// millisecond, of walkPartitions partitions at most; in a cluster they may all have some. As long as it is not known how long the
// names are it brings walkFirst, mostly enough for a page. All partitions together are asked for walkRound, which wait in memory.
const (
	walkEntries    = 500
	walkFirst      = 100
	walkBytes      = 64 << 10
	walkPartitions = 64
	walkRound      = 50_000
	walkLeast      = 2
)

// How many firings a walk knows: they are not in the order of their due times, so all of them wait in memory. firingPage is how
// many one command reads.
const (
	mostFirings = 100_000
	firingPage  = 1000
)

// kind says in which sorted set of its partition an entry is.
type kind int

const (
	kindDue kind = iota
	kindParked
	kindHeld
	kindFiring
)

// entry is the name of a timer in the index, or of what is no timer to be listed.
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

// walk goes through the entries of all partitions in their order. What it knows is where it is: each step asks every partition for
// what comes next.
type walk struct {
	s            *schedule.Schedule
	query        Query
	masters      []schedule.Master
	from, before schedule.Millis // the due times that are of interest, of what is no firing
	at           Place

	ahead   *step   // what comes next, as the beginning has found it; nil afterwards
	each    int     // how many entries of each sorted set a step asks for
	most    int     // how many entries one call is to bring at most
	firings []entry // after the place, in order
	done    bool

	holds  *schedule.HoldList
	now    schedule.Millis         // by the servers' clocks when it began, the latest of them
	looked int64                   // entries up to the place, from the first due time of interest on
	total  int64                   // entries when it began
	cut    bool                    // there may be more firings
	moving int                     // partitions that are left out, from then on when their slots were found moving
	late   map[keys.Partition]bool // those of which timers were found before that, and no records
}

// newWalk begins a walk through what may be meant by a query, after a place. Of firings it reads so many at most, in the order in
// which they can be claimed.
func newWalk(ctx context.Context, s *schedule.Schedule, q Query, at Place, firings int) (*walk, error) {
	w := &walk{s: s, query: q, from: q.from(), before: q.before(), at: at, late: map[keys.Partition]bool{}}
	var err error
	if w.masters, err = s.Masters(ctx); err != nil {
		return nil, err
	}
	if w.holds, err = s.KnownHolds(ctx); err != nil {
		return nil, err
	}
	if !q.wants(StatePending) { // only firings may be due later and not be pending
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

// leaveOutMoved leaves out of what comes first those timers that were firings by when these were read: they are among them.
func (w *walk) leaveOutMoved() {
	type timer struct {
		name string
		due  schedule.Millis
	}
	nameOf := func(e entry) timer {
		if e.kind != kindHeld && strings.HasPrefix(e.name, ":") {
			return timer{parkedKey(e.name), e.due}
		}
		return timer{e.name, e.due} // one that is held has that name among the firings too, once it is released
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

// eachOf returns how many entries each of so many partitions is asked for if one call is to bring so many at most.
func eachOf(partitions, most int) int {
	return min(max(walkRound/max(partitions, 1), walkLeast), most)
}

// sortFirings puts the firings in order, and counts them and leaves out those before the place. One that was claimed while they were
// read was read twice.
func (w *walk) sortFirings() {
	w.firings = slices.DeleteFunc(w.firings, func(e entry) bool { return e.due < w.query.from() || e.due >= w.query.before() })
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

// readFirings reads the firings of a partition that are not held, so many at most.
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

// next returns the next entries, in order. None, and done, is the end.
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
	// What follows the last entry of a set that may have more is not known. Firings are known all.
	known := len(w.firings)
	if found.more {
		if known = slices.IndexFunc(w.firings, func(e entry) bool { return compareEntries(e, found.until) > 0 }); known < 0 {
			known = len(w.firings)
		}
		found.entries = slices.DeleteFunc(found.entries, func(e entry) bool { return compareEntries(e, found.until) > 0 })
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

// step is what all partitions answered.
type step struct {
	entries    []entry
	bytes      int              // of their names
	partitions int              // that have them
	firing     []keys.Partition // with firings
	more       bool             // there may be more than the entries, after until
	until      entry
}

// ask asks the partitions for what comes after the place. Those that have nothing to come are not asked again. The first time it
// counts what there is.
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

// scoreOf writes a due time as the bound of a range.
func scoreOf(m schedule.Millis) string {
	if m == schedule.Never {
		return "+inf"
	}
	return strconv.FormatInt(int64(m), 10)
}

// count takes in how many entries a server has.
func (w *walk) count(reply schedule.Reply) {
	w.now = max(w.now, schedule.Millis(reply.Int(0)))
	w.looked += reply.Int(2)
	w.total += reply.Int(3)
}

// take takes in what one partition answered: the next entries of its sorted sets, which were asked for each, and how many firings
// it has. It returns whether there are entries.
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
