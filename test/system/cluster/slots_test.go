package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Slots move while their timers are set and fire: by the servers themselves, with all keys in one step, where they can,
// and key by key. Each timer fires once, with its payload.
func TestClusterSlotsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	const first, chunk, chunks = 6000, 8, 5
	s := newClusterSystem(t, false, patient())
	p := s.Start()
	c := s.Collect()
	tags := tagsOf(first, first+chunk*chunks)
	var want []string
	for _, tag := range tags {
		want = append(want, s.load("{"+tag+"}", 12, 4*time.Second, 8*time.Second)...)
	}
	from, to := s.cluster.Nodes[1], s.cluster.Nodes[2]
	for i := range chunks {
		begin := first + i*chunk
		t.Logf("slots %d to %d were moved in one step: %v", begin, begin+chunk-1,
			s.cluster.MoveSlots(begin, begin+chunk-1, from, to))
		for _, tag := range tags[i*chunk : (i+1)*chunk] {
			want = append(want, s.load("{"+tag+"}-more", 4, 3*time.Second, time.Second)...)
		}
	}
	for slot := first; slot < first+chunk*chunks; slot += 2 { // and back
		s.cluster.OpenSlot(slot, to, from)
		s.cluster.CloseSlot(slot, to, from)
	}
	s.Expect(c, want...)
	s.emptied()
	p.AwaitReady(true)
	p.Stop()
}

// tagsOf returns a hash tag for each slot from first until last.
func tagsOf(first, last int) []string {
	tags := make([]string, last-first)
	for i, found := 0, 0; found < len(tags); i++ {
		tag := fmt.Sprint("slot", i)
		if at := keys.Slot("{"+tag+"}") - first; at >= 0 && at < len(tags) && tags[at] == "" {
			tags[at], found = tag, found+1
		}
	}
	return tags
}
