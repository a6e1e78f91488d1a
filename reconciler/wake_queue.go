package reconciler

import (
	"container/heap"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// wakeQueue says when to claim from which partition. Most have nothing that is known.
type wakeQueue struct {
	known   map[keys.Partition]schedule.Millis // the first due time that is known
	planned map[keys.Partition]*visit          // when the next claim is; the same as visits
	visits  visits
}

func newWakeQueue() wakeQueue {
	return wakeQueue{known: map[keys.Partition]schedule.Millis{}, planned: map[keys.Partition]*visit{}}
}

// learn notes a due time. It returns whether it is the first of the partition.
func (q *wakeQueue) learn(p keys.Partition, due schedule.Millis) bool {
	if known, ok := q.known[p]; ok && known <= due {
		return false
	}
	q.known[p] = due
	return true
}

// plan has a partition visited at the given time, or earlier if that is planned.
// It returns whether the next visit of all has become earlier.
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

// keep has the next visit of a partition made, whatever is forgotten.
func (q *wakeQueue) keep(p keys.Partition) {
	if v, ok := q.planned[p]; ok {
		v.kept = true
	}
}

// forget forgets a due time that is no later than a given one, and the visit that it led to. It returns whether there was one. A visit
// that is earlier has another reason, and stays.
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

// planKnown has each partition visited so long after the due time that is known of it, or earlier if that is planned.
func (q *wakeQueue) planKnown(delay time.Duration) {
	for p, due := range q.known {
		if due > schedule.AtOnce {
			q.plan(p, due.Add(delay))
		}
	}
}

// next returns when the next visit is, or schedule.Never.
func (q *wakeQueue) next() schedule.Millis {
	if len(q.visits) == 0 {
		return schedule.Never
	}
	return q.visits[0].at
}

// take removes the next partition from the queue, and returns it with the due time
// that was known of it, or schedule.Never. There must be a next one.
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

// visit is a claim that is planned for the given time.
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
