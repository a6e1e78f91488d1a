package cluster_test

import (
	"slices"
	"testing"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// Requests for a slot of a cluster that is on the move wait, however many they are; those for other slots are carried
// out. After the move each one's timer fires, once.
func TestRetriesWhileASlotMoves(t *testing.T) {
	t.Parallel()
	const bad, good = 1500, 200
	s := newClusterSystem(t, false, patient())
	s.Env["TIMERD_RETRY"] = "*=200ms"
	p := s.Start()
	c := s.Collect()
	slot := keys.Slot("bad:{x}:c:1")
	from := s.cluster.Master(slot)
	to := s.cluster.Nodes[0]
	if to == from {
		to = s.cluster.Nodes[1]
	}
	s.cluster.OpenSlot(slot, from, to)
	waiting := system.KeysOf("bad:{x}:c:", bad)
	s.Ask(waiting...)
	var want []string
	for i := range 2 {
		want = s.OthersGoOn(c, want, i, good/2)
		s.Delivered(bad)
	}
	p.AwaitReady(true)
	s.cluster.CloseSlot(slot, from, to)
	began := time.Now()
	s.Expect(c, slices.Concat(want, system.FireAll(waiting))...)
	t.Logf("all have fired %v after the move", time.Since(began))
	s.NoRequests()
	s.emptied()
	p.Stop()
}
