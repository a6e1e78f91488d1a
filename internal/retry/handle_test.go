package retry

import (
	"testing"

	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/keys"
)

// Requests for one working server may fill half of the window, in any lanes.
func TestNoServerFillsTheWindow(t *testing.T) {
	t.Parallel()
	const window = 32
	c := NewConsumer(nil, nil)
	through := func(server string, slot int) []passage {
		return []passage{{of: c.servers, name: laneOfServer(server)},
			{of: c.timersOn(server), name: laneOfTimer(keys.SlotPartition(slot))}}
	}
	works := verdict{lane: lanes.Works, server: lanes.Works}
	carryOut := func(server string, slot int, v verdict) outcome {
		path := through(server, slot)
		result := enter(path, window)
		if result == carriedOut {
			leave(path, v)
		}
		return result
	}
	for slot := range 100 {
		carryOut("a", slot, works)
		carryOut("b", 1000+slot, works)
	}
	var silent [][]passage
	for slot := range 100 {
		if path := through("a", 100+slot); enter(path, window) == carriedOut { // nothing is known of these slots
			silent = append(silent, path)
		}
	}
	if len(silent) != window/serverShare {
		t.Errorf("%d tries on one server, want %d", len(silent), window/serverShare)
	}
	for _, slot := range []int{1000, 2000} {
		if result := carryOut("b", slot, works); result != carriedOut {
			t.Errorf("slot %d of another server: %v", slot, result)
		}
	}
	for _, path := range silent {
		leave(path, verdict{server: lanes.Fails})
	}
	probe := through("a", 0)
	if result := enter(probe, window); result != carriedOut {
		t.Errorf("a server that fails is not tried: %v", result)
	}
	for slot := range 100 {
		if result := enter(through("a", slot), window); result != failing {
			t.Fatalf("slot %d of a server that fails: %v", slot, result)
		}
	}
	if c.timersOn("a").State(laneOfTimer(keys.SlotPartition(0))).Failing {
		t.Error("its slots are blamed")
	}
	leave(probe, works)
	if result := carryOut("a", 50, works); result != carriedOut {
		t.Errorf("a server that works again: %v", result)
	}
}
