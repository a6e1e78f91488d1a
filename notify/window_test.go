package notify

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

func newTestWindow(tries, bytes int) *window {
	o := defaultOptions()
	o.Window, o.WindowBytes = tries, bytes
	return &window{Options: &o, settler: newSettler(&o, newTwoServers(), newGate()), servers: map[string]int{}}
}

func (w *window) hasRoom(server string) bool {
	_, room := w.state(server)
	return room
}

func (w *window) inFlight() int {
	n, _ := w.state("")
	return n
}

// Firings that wait to be settled fill the window of their own server alone.
func TestWindowOfEachServer(t *testing.T) {
	t.Parallel()
	w := newTestWindow(10, 1)
	for range w.Window {
		if !w.take("a", 0) {
			t.Fatal("there is no room in an empty window")
		}
	}
	if w.hasRoom("a") || w.hasRoom("b") || w.take("b", 0) {
		t.Error("there is room for more than may be on their way to NATS")
	}
	for i := range w.Window {
		w.settle(&delivery{server: "a", firing: schedule.Firing{Partition: "a1", Ref: fmt.Sprint(i)}},
			schedule.OutcomeFired)
	}
	if w.hasRoom("a") || !w.hasRoom("b") || w.inFlight() != w.Window {
		t.Errorf("all wait to be settled on a: room there %v, on b %v, %d in flight", w.hasRoom("a"), w.hasRoom("b"),
			w.inFlight())
	}
}

// One firing is taken however large it is, and gives its bytes back whatever becomes of it.
func TestWindowOfBytes(t *testing.T) {
	t.Parallel()
	w := newTestWindow(10, 100)
	large := delivery{server: "a", firing: schedule.Firing{Partition: "a1", Payload: make([]byte, 1000)}}
	if !w.take("a", len(large.firing.Payload)) || w.hasRoom("a") {
		t.Error("a large firing is not taken, or leaves room")
	}
	w.giveBack(&large, schedule.OutcomeGivenBack, 0)
	if !w.hasRoom("a") || w.load.Bytes != 0 || len(w.servers) != 0 || w.inFlight() != 1 {
		t.Errorf("given back: %+v on their way, of servers %v, %d in flight", w.load, w.servers, w.inFlight())
	}
}

// The window narrows once for all firings published before, never below its least size, and acknowledgements in time
// widen it again.
func TestWindowNarrowsBySlowAcknowledgements(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestWindow(4*narrowest, 1)
		fits := func() (n int) {
			for ; w.take("a", 0); n++ {
			}
			for range n {
				w.leave(&delivery{server: "a"})
			}
			return n
		}
		first := time.Now()
		time.Sleep(time.Second)
		w.narrow(first)
		w.narrow(first)
		if fits() != w.Window/2 {
			t.Errorf("room for %d after two late acknowledgements at once, want half of %d", fits(), w.Window)
		}
		for range 3 {
			time.Sleep(time.Second)
			later := time.Now()
			time.Sleep(time.Second)
			w.narrow(later)
		}
		if fits() != narrowest {
			t.Errorf("room for %d after further late ones, want %d", fits(), narrowest)
		}
		for range widenAfter {
			w.widen()
		}
		if fits() != narrowest+1 {
			t.Errorf("room for %d after %d acknowledgements in time, want one more", fits(), widenAfter)
		}
		for range widenAfter * w.Window {
			w.widen()
		}
		if fits() != w.Window {
			t.Errorf("room for %d at last, want the whole window of %d", fits(), w.Window)
		}
	})
}
