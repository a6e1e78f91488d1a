package reconciler

import (
	"container/heap"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// wakeQueue plans the next claim from each partition. Most partitions have no known due time.
type wakeQueue struct {
	known   map[keys.Partition]schedule.Millis // first known due time
	planned map[keys.Partition]*visit          // next claim; the same as in visits
	visits  visits
}

func newWakeQueue() wakeQueue {
	return wakeQueue{known: map[keys.Partition]schedule.Millis{}, planned: map[keys.Partition]*visit{}}
}

// learn notes a due time, and reports whether it is the first of the partition.
func (q *wakeQueue) learn(p keys.Partition, due schedule.Millis) bool {
	if known, ok := q.known[p]; ok && known <= due {
		return false
	}
	q.known[p] = due
	return true
}

// plan plans a visit of a partition at a time, unless an earlier visit is planned. It reports whether the next visit of
// any partition has become earlier.
func (q *wakeQueue) plan(p keys.Partition, at schedule.Millis) bool {
	v, ok := q.planned[p]
	switch {
	case !ok:
		v = &visit{partition: p, at: at}
		q.planned[p] = v
		heap.Push(&q.visits, v)
	case v.at <= at:
		return false
	default:
		v.at = at
		heap.Fix(&q.visits, v.index)
	}
	return q.visits[0] == v
}

// keep protects the next visit of a partition from forget.
func (q *wakeQueue) keep(p keys.Partition) {
	if v, ok := q.planned[p]; ok {
		v.kept = true
	}
}

// forget forgets a due time up to last, and its visit. It reports whether there was a due time. A visit before the due
// time has another reason, and stays.
func (q *wakeQueue) forget(p keys.Partition, last schedule.Millis) bool {
	known, ok := q.known[p]
	v, planned := q.planned[p]
	if !ok || !planned || known == schedule.AtOnce || known > last || v.at < known || v.kept {
		return false
	}
	heap.Remove(&q.visits, v.index)
	delete(q.known, p)
	delete(q.planned, p)
	return true
}

// planKnown plans a visit of each partition at a delay after its known due time, unless an earlier visit is planned.
func (q *wakeQueue) planKnown(delay time.Duration) {
	for p, due := range q.known {
		if due > schedule.AtOnce {
			q.plan(p, due.Add(delay))
		}
	}
}

// next returns the time of the next visit, or schedule.Never.
func (q *wakeQueue) next() schedule.Millis {
	if len(q.visits) == 0 {
		return schedule.Never
	}
	return q.visits[0].at
}

// take removes the next partition, and returns it with its known due time, or schedule.Never. The queue must not be
// empty.
func (q *wakeQueue) take() (p keys.Partition, known schedule.Millis) {
	p = q.visits[0].partition
	heap.Pop(&q.visits)
	known, ok := q.known[p]
	if !ok {
		known = schedule.Never
	}
	delete(q.known, p)
	delete(q.planned, p)
	return p, known
}

// visit is a planned claim.
type visit struct {
	partition keys.Partition
	at        schedule.Millis
	index     int  // in visits
	kept      bool // see keep
}

// visits is a heap.Interface, the earliest first. Each partition has one at most.
type visits []*visit

func (v visits) Len() int           { return len(v) }
func (v visits) Less(i, j int) bool { return v[i].at < v[j].at }
func (v visits) Swap(i, j int) {
	v[i], v[j] = v[j], v[i]
	v[i].index, v[j].index = i, j
}

func (v *visits) Push(x any) {
	added := x.(*visit) //nolint:forcetypeassert // only visits are pushed
	added.index = len(*v)
	*v = append(*v, added)
}

func (v *visits) Pop() any {
	last := len(*v) - 1
	taken := (*v)[last]
	(*v)[last] = nil
	*v = (*v)[:last]
	return taken
}
