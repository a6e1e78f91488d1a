package notify

import (
	"sync"

	"github.com/timerd-io/timerd/internal/lanes"
)

// window is the room for firings: for those that are on their way, from Publish until they are acknowledged or given up, and of
// each server of the schedule until they are settled or given back. Its methods may be called concurrently.
type window struct {
	*Options
	settler *settler

	mu      sync.Mutex
	load    lanes.Load     // on their way
	servers map[string]int // the same, by server
}

// hasRoom tells whether the window takes another firing of a server. What waits to be settled on one takes no room from others.
func (w *window) hasRoom(server string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fits(server)
}

// fits is hasRoom; w.mu is held.
func (w *window) fits(server string) bool {
	_, waiting := w.settler.inHand(server)
	return w.load.Fits(w.size(), 1) && w.servers[server]+waiting < w.Window
}

// take takes in a firing of a server with a payload of so many bytes, and tells whether there was room for it.
func (w *window) take(server string, bytes int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.fits(server) {
		return false
	}
	w.servers[server]++
	w.load.Tries++
	w.load.Bytes += bytes
	return true
}

// settle has a firing settled that was taken in.
func (w *window) settle(d *delivery) {
	w.leave(d)
	w.settler.settle(d.firing)
}

// giveBack has a firing given back that was taken in.
func (w *window) giveBack(d *delivery) {
	w.leave(d)
	w.settler.giveBack(d.firing)
}

func (w *window) leave(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.load.Tries--
	w.load.Bytes -= len(d.firing.Payload)
	if w.servers[d.server]--; w.servers[d.server] == 0 {
		delete(w.servers, d.server)
	}
}

// inFlight returns how many firings were taken in and are not settled or given back.
func (w *window) inFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	waiting, _ := w.settler.inHand("")
	return w.load.Tries + waiting
}
