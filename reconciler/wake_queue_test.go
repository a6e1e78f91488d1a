package reconciler

import (
	"math/rand/v2"
	"testing"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// An earlier visit of a partition replaces the planned one, however often that happens.
func TestWakeQueueHoldsOneVisitOfAPartition(t *testing.T) {
	t.Parallel()
	q := newWakeQueue()
	const partitions = 20
	for round := range 1000 {
		for slot := range partitions {
			q.plan(keys.SlotPartition(slot), schedule.Millis(1_000_000-round))
		}
		q.plan(keys.SlotPartition(0), 1)
		if p, _ := q.take(); p != keys.SlotPartition(0) {
			t.Fatalf("round %d: took slot %d first", round, p.Slot())
		}
	}
	if n := len(q.visits); n > partitions {
		t.Errorf("%d visits of %d partitions", n, partitions)
	}
}

// The queue agrees with a plain table of the earliest times.
func TestWakeQueueOrder(t *testing.T) {
	t.Parallel()
	q := newWakeQueue()
	want := map[keys.Partition]schedule.Millis{}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		if random.IntN(3) > 0 {
			p, at := keys.SlotPartition(random.IntN(50)), schedule.Millis(random.IntN(1000))
			if was, ok := want[p]; !ok || at < was {
				want[p] = at
			}
			q.plan(p, at)
		} else if len(want) > 0 {
			at := q.next()
			p, _ := q.take()
			if want[p] != at {
				t.Fatalf("slot %d at %d, want %d", p.Slot(), at, want[p])
			}
			delete(want, p)
		}
		first := schedule.Never
		for _, at := range want {
			first = min(first, at)
		}
		if q.next() != first {
			t.Fatalf("next at %d, want %d", q.next(), first)
		}
	}
}
