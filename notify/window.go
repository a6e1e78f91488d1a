package notify

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// narrowest is the least number of firings to which late acknowledgements narrow the window.
	narrowest = 64
	// widenAfter is the number of acknowledgements in time that widen a narrow window by one firing. So it widens by an
	// eighth in the time of an acknowledgement: soon after an outage, and little beyond the rate of a slow server.
	widenAfter = 8
)

// window is the room for firings. A firing takes room from Publish until it is acknowledged or given up, and room of
// its server until it is settled or given back. Its methods may be called concurrently.
//
// The window narrows while leases end before their acknowledgements. Then more events wait with NATS than it stores
// within a lease. Each claim of their firings would publish them again behind as many others, and none would be settled
// in time.
type window struct {
	*Options
	settler *settler

	mu       sync.Mutex
	load     lanes.Load     // published, or about to be
	servers  map[string]int // firings neither settled nor given back, by server
	missing  int            // firings by which it is narrower than Window
	narrowed time.Time      // last time of that
	inTime   int            // acknowledgements since it was last widened
}

// state returns the number of firings that are neither settled nor given back. It reports whether there is room for
// another firing of a server. Firings that wait to be settled on one server take no room from others.
func (w *window) state(server string) (inFlight int, room bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stateLocked(server)
}

// stateLocked is state; w.mu is held.
func (w *window) stateLocked(server string) (inFlight int, room bool) {
	all, there := w.settler.inHand(server)
	size := w.size()
	size.Tries -= w.missing
	return w.load.Tries + all, w.load.Fits(size, 1) && w.servers[server]+there < w.Window
}

// narrow halves the window, because a firing published at that time was not acknowledged within its lease. Firings
// published before it was last narrowed say nothing about its present size.
func (w *window) narrow(published time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if size := w.Window - w.missing; published.After(w.narrowed) && size > narrowest {
		w.missing, w.narrowed, w.inTime = w.Window-max(size/2, narrowest), time.Now(), 0
	}
}

// widen counts an acknowledgement in time.
func (w *window) widen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.missing == 0 {
		return
	}
	if w.inTime++; w.inTime == widenAfter {
		w.inTime = 0
		w.missing--
	}
}

// take adds a firing of a server with the given number of payload bytes. It reports whether there was room.
func (w *window) take(server string, bytes int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, room := w.stateLocked(server); !room {
		return false
	}
	w.servers[server]++
	w.load.Tries++
	w.load.Bytes += bytes
	return true
}

// settle removes a firing and settles it.
func (w *window) settle(d *delivery, kind schedule.OutcomeKind) {
	w.leave(d)
	o := d.firing.Outcome(kind)
	o.MayBeStored = d.mayBeStored
	w.settler.settle(o)
}

// giveBack removes a firing and gives it back. The firing can be claimed again after a pause.
func (w *window) giveBack(d *delivery, kind schedule.OutcomeKind, pause time.Duration) {
	w.leave(d)
	o := d.firing.Outcome(kind)
	o.Pause, o.MayBeStored = pause, d.mayBeStored
	w.settler.giveBack(o)
}

// park gives a firing back for a while. answer is the answer of its subject's lane.
func (w *window) park(d *delivery, answer lanes.Answer) {
	if answer != lanes.Failing {
		w.giveBack(d, schedule.OutcomeGivenBack, parked(&d.firing, answer))
		return
	}
	w.setAside(d, schedule.OutcomeRefused)
}

// setAside gives a firing back for a while, because of its subject or guard.
func (w *window) setAside(d *delivery, kind schedule.OutcomeKind) {
	w.giveBack(d, kind, parked(&d.firing, lanes.Failing))
	w.Metrics.SetAside(&d.firing, kind)
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

// ErrStopped means that a Publisher takes no more firings.
var ErrStopped = errors.New("notify: publisher has stopped")

// gate blocks callers with firings until the publisher is open, and after that until there is room. Its methods may be
// called concurrently.
type gate struct {
	mu              sync.Mutex
	opened, stopped bool
	changed         chan struct{} // closed when await must call ready again
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

// state returns the state of the gate, and a channel that closes with its next change.
func (g *gate) state() (opened, stopped bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened, g.stopped, g.changed
}

// await waits until ready returns true. It calls ready once the gate is open, and at each announce. It does not wait
// after the end of ctx.
func (g *gate) await(ctx context.Context, ready func() bool) error {
	for {
		opened, stopped, changed := g.state()
		switch {
		case stopped:
			return ErrStopped
		case opened && ready():
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// open lets await call ready. stop ends that for good.
func (g *gate) open() { g.change(func() { g.opened = true }) }
func (g *gate) stop() { g.change(func() { g.stopped = true }) }

// announce makes every await call ready again.
func (g *gate) announce() { g.change(func() {}) }

func (g *gate) change(what func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	what()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *gate) isStopped() bool {
	_, stopped, _ := g.state()
	return stopped
}
