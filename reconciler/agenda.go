package reconciler

import (
	"container/heap"

	"github.com/timerd-io/timerd/keys"
)

// agenda says when to claim from which partition. Most have nothing that is known.
type agenda struct {
	known   map[keys.Partition]int64 // unix ms of the first due time that is known
	planned map[keys.Partition]int64 // unix ms of the next claim
	visits  visits                   // planned, in order; and what was planned before
}

func newAgenda() agenda {
	return agenda{known: map[keys.Partition]int64{}, planned: map[keys.Partition]int64{}}
}

// learn notes a due time. It tells whether it is the first of the partition.
func (a *agenda) learn(p keys.Partition, due int64) bool {
	if known, ok := a.known[p]; ok && known <= due {
		return false
	}
	a.known[p] = due
	return true
}

// plan has a partition visited at the given unix ms, or earlier if that is planned.
// It tells whether the next visit of all has become earlier.
func (a *agenda) plan(p keys.Partition, at int64) bool {
	if planned, ok := a.planned[p]; ok && planned <= at {
		return false
	}
	a.planned[p] = at
	heap.Push(&a.visits, visit{p, at})
	return a.visits[0].partition == p
}

// next returns when the next visit is, or never.
func (a *agenda) next() int64 {
	for len(a.visits) > 0 {
		v := a.visits[0]
		if planned, ok := a.planned[v.partition]; ok && planned == v.at {
			return v.at
		}
		heap.Pop(&a.visits)
	}
	return never
}

// take removes the next partition from the agenda, and returns it with the due time
// that was known of it, or never. There must be a next one.
func (a *agenda) take() (p keys.Partition, known int64) {
	p = a.visits[0].partition
	heap.Pop(&a.visits)
	known, ok := a.known[p]
	if !ok {
		known = never
	}
	delete(a.known, p)
	delete(a.planned, p)
	return p, known
}

// visit is a claim that was planned for the given unix ms.
type visit struct {
	partition keys.Partition
	at        int64
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
