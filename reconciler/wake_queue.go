package reconciler

import (
	"container/heap"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// wakeQueue says when to claim from which partition. Most have nothing that is known.
type wakeQueue struct {
	known   map[keys.Partition]schedule.Millis // the first due time that is known
	planned map[keys.Partition]schedule.Millis // when the next claim is
	visits  visits                             // planned, in order; and what was planned before
}

func newWakeQueue() wakeQueue {
	return wakeQueue{known: map[keys.Partition]schedule.Millis{}, planned: map[keys.Partition]schedule.Millis{}}
}

// learn notes a due time. It tells whether it is the first of the partition.
func (q *wakeQueue) learn(p keys.Partition, due schedule.Millis) bool {
	if known, ok := q.known[p]; ok && known <= due {
		return false
	}
	q.known[p] = due
	return true
}

// plan has a partition visited at the given time, or earlier if that is planned.
// It tells whether the next visit of all has become earlier.
func (q *wakeQueue) plan(p keys.Partition, at schedule.Millis) bool {
	if planned, ok := q.planned[p]; ok && planned <= at {
		return false
	}
	q.planned[p] = at
	heap.Push(&q.visits, visit{p, at})
	return q.visits[0].partition == p
}

// next returns when the next visit is, or schedule.Never.
func (q *wakeQueue) next() schedule.Millis {
	for len(q.visits) > 0 {
		v := q.visits[0]
		if planned, ok := q.planned[v.partition]; ok && planned == v.at {
			return v.at
		}
		heap.Pop(&q.visits)
	}
	return schedule.Never
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

// visit is a claim that was planned for the given time.
type visit struct {
	partition keys.Partition
	at        schedule.Millis
}

// visits is a heap.Interface, the earliest first.
type visits []visit

func (v visits) Len() int           { return len(v) }
func (v visits) Less(i, j int) bool { return v[i].at < v[j].at }
func (v visits) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *visits) Push(x any)        { *v = append(*v, x.(visit)) } //nolint:forcetypeassert // only visits are pushed
func (v *visits) Pop() any {
	last := (*v)[len(*v)-1]
	*v = (*v)[:len(*v)-1]
	return last
}
