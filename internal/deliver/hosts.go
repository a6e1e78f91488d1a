package deliver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// slowAfter is from when on a call counts as slow: it holds a place that others could use.
	slowAfter = time.Second
	// rateBurst is how much of a rate may be used at once.
	rateBurst = 100 * time.Millisecond
	// leastWait is the shortest postponement: a round trip through Redis takes about as long.
	leastWait = 100 * time.Millisecond
	// slowShare is the part of a call's timeout for which a delivery waits at least whose host has a slow one, while places
	// are scarce: an earlier one would find the place taken.
	slowShare = 2
	// longestTurn bounds for how long a delivery waits for its turn at a host that is slow: by then it may be faster.
	longestTurn = 10 * time.Minute
	// firstTook is how long a call to a host is thought to take before there was one.
	firstTook = 200 * time.Millisecond
	// openSpread is the part of an open circuit's length over which what waits for it comes back.
	openSpread = 5
	// ageShare is the part of its age for which a delivery waits at least when a circuit is open.
	ageShare = 10

	// hostIdle is how long a host is remembered that nobody calls, and openIdle one whose circuit is open: longer than
	// deliveries wait for it, up to a tenth of DefaultExpire.
	hostIdle = 10 * time.Minute
	openIdle = 12 * time.Hour
	// maxHosts is how many hosts are remembered before idle ones are forgotten sooner, and forgetTries how many are
	// looked at then for each one that is added.
	maxHosts    = 1 << 16
	forgetTries = 16
)

// hosts is what this process knows of the hosts that it calls: their circuits, and how much they may be called. A host
// is named host:port. All methods may be called concurrently.
type hosts struct {
	now       func() time.Time
	onChange  func(host string, length time.Duration) // of a circuit: opened for so long, or closed
	mu        sync.Mutex
	all       map[string]*host
	openCount int
}

// host is one of them. hosts.mu guards it.
type host struct {
	circuit  circuit
	calls    int // under way
	slow     int // of these, the slow ones
	known    standing
	answered time.Time     // when it was last healthy
	took     time.Duration // of a call, about
	free     time.Time     // when the rate allows a call after which none is saved up
	slot     time.Time     // when the last delivery comes back that was postponed for its turn
	used     time.Time
}

// held says that a host may not be called now, and when to try again.
type held struct {
	wait    time.Duration
	circuit bool // because its circuit is open
	why     string
}

// call is one call of a host.
type call struct {
	hosts   *hosts
	name    string
	host    *host
	seat    *seat
	probe   bool
	healthy time.Duration // an answer that comes sooner is soon
	began   time.Time
	slow    *time.Timer
	isSlow  bool
}

func newHosts(onChange func(host string, length time.Duration)) *hosts {
	return &hosts{now: time.Now, onChange: onChange, all: map[string]*host{}}
}

// openCircuits returns how many circuits are open.
func (h *hosts) openCircuits() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.openCount
}

// begin notes a call of a host, or says why there can be none now: its circuit, its rate, its concurrency, or that places
// are scarce and others need them more.
func (h *hosts) begin(name string, e *Endpoint, p *places) (*call, *held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	x := h.find(name, now)
	x.used = now
	if wait := x.waits(name, e, now); wait != nil {
		return nil, wait
	}
	if x.calls >= e.Concurrency {
		return nil, &held{x.turn(now, x.took/time.Duration(e.Concurrency), leastWait, longestTurn), false,
			fmt.Sprintf("%d calls of %s are under way", x.calls, name)}
	}
	var every time.Duration
	if e.Rate > 0 {
		every = time.Duration(float64(time.Second) / e.Rate)
		if x.free.Sub(now) > rateBurst {
			return nil, &held{x.turn(now, every, leastWait, math.MaxInt64), false, fmt.Sprintf("%s is called %g times a second already", name, e.Rate)}
		}
	}
	seat, why := p.take(claim{x.known, x.answered, x.calls, x.slow}, now)
	if seat == nil {
		return nil, &held{x.turn(now, x.took/leastShare, x.patience(e, p), longestTurn), false,
			fmt.Sprintf("%s %s, and %d calls are slow", name, why, p.slowCalls())}
	}
	if every > 0 {
		x.free = latest(x.free, now).Add(every)
	}
	x.calls++
	c := &call{hosts: h, name: name, host: x, seat: seat, probe: x.circuit.begin(), healthy: e.Timeout / slowShare, began: now}
	c.slow = time.AfterFunc(slowAfter, c.noteSlow)
	return c, nil
}

// patience returns for how long a delivery waits at least whose host was refused a place. One to a healthy host waits
// for its share or a proof, which others' answers may bring soon.
func (x *host) patience(e *Endpoint, p *places) time.Duration {
	switch {
	case x.known == healthy && x.slow == 0:
		return slowAfter
	case p.scarce():
		return e.Timeout / slowShare
	}
	return leastWait
}

// waits says for how long a host is not called because its circuit is open; nil if it may be.
func (x *host) waits(name string, e *Endpoint, now time.Time) *held {
	wait, ok := x.circuit.admit(now, e.Timeout)
	if ok {
		return nil
	}
	spread := rand.N(x.circuit.length/openSpread + 1)
	return &held{max(wait, leastWait) + spread, true, fmt.Sprintf("the circuit of %s is open for %v", name, x.circuit.length)}
}

// openFor says for how long a host is not called because its circuit is open; nil if it may be.
func (h *hosts) openFor(name string, e *Endpoint) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	return h.find(name, now).waits(name, e, now)
}

// turn returns how long to wait for the next turn: postponed deliveries come back one after the other, none sooner than
// after least or later than after most.
func (x *host) turn(now time.Time, every, least, most time.Duration) time.Duration {
	wait := min(max(x.slot.Add(every).Sub(now), least), max(most, least))
	x.slot = now.Add(wait)
	return wait
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// noteSlow is called when a call has become slow.
func (c *call) noteSlow() {
	c.hosts.mu.Lock()
	defer c.hosts.mu.Unlock()
	if c.slow == nil {
		return // it has ended
	}
	c.isSlow = true
	c.host.slow++
	c.seat.noteSlow()
}

// end notes how a call ended: whether the host failed, or that nothing can be told. open tells whether the host's
// circuit was open when the call ended or was closed only by it, so that what failed is not the delivery's fault.
func (c *call) end(failed, nothing bool) (open bool) {
	h, x := c.hosts, c.host
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	c.slow.Stop()
	c.slow = nil
	if c.isSlow {
		x.slow--
	}
	x.calls--
	c.seat.leave()
	x.used = now
	if nothing {
		x.circuit.abandon(c.probe)
		return c.probe || x.circuit.open()
	}
	took := now.Sub(c.began)
	if x.known = failing; !failed && took < c.healthy {
		x.known, x.answered = healthy, now
	}
	x.took = (7*x.took + took) / 8
	before := x.circuit.open()
	if x.circuit.end(now, failed, c.probe) {
		h.noteChange(c.name, before, x.circuit)
	}
	return before
}

// noteChange reports that a circuit has changed.
func (h *hosts) noteChange(name string, before bool, now circuit) {
	switch {
	case now.open() && !before:
		h.openCount++
	case !now.open() && before:
		h.openCount--
	}
	h.onChange(name, now.length)
}

// find returns a host, and begins to remember it.
func (h *hosts) find(name string, now time.Time) *host {
	if x := h.all[name]; x != nil {
		return x
	}
	if len(h.all) >= maxHosts {
		tries := forgetTries
		for other, x := range h.all { // in random order
			if tries--; x.idle(now, 0) {
				h.drop(other, x)
				break
			} else if tries == 0 {
				break
			}
		}
	}
	x := &host{took: firstTook}
	h.all[name] = x
	return x
}

// idle tells whether a host may be forgotten: nobody has called it, or waits for its turn, for so long, openIdle where
// its circuit is open.
func (x *host) idle(now time.Time, after time.Duration) bool {
	if x.circuit.open() {
		after = openIdle
	}
	return x.calls == 0 && now.Sub(latest(x.used, x.slot)) >= after
}

// forget forgets hosts that were idle for long. Call it every minute or so.
func (h *hosts) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	for name, x := range h.all {
		if x.idle(now, hostIdle) {
			h.drop(name, x)
		}
	}
}

func (h *hosts) drop(name string, x *host) {
	if x.circuit.open() {
		h.openCount--
	}
	delete(h.all, name)
}
