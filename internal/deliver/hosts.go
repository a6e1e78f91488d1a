package deliver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

const (
	// slowAfter is the duration after which a call counts as slow: it holds a place that others could use.
	slowAfter = time.Second
	// rateBurst is the part of a rate that may be used at once.
	rateBurst = 100 * time.Millisecond
	// leastWait is the shortest postponement: a round trip through Redis takes about as long.
	leastWait = 100 * time.Millisecond
	// slowShare divides a call's timeout. A delivery to a host with a slow call is postponed for at least this part of
	// the timeout while places are scarce, because an earlier try would find the place still taken.
	slowShare = 2
	// longestTurn bounds a delivery's wait for its turn at a slow host: by then it may be faster.
	longestTurn = 10 * time.Minute
	// firstTook is the assumed duration of a host's first call.
	firstTook = 200 * time.Millisecond
	// openSpread divides an open circuit's length: over that time its deliveries come back.
	openSpread = 5
	// ageShare divides a delivery's age: for that long, at least, it waits for an open circuit.
	ageShare = 10

	// hostIdle is the time for which an uncalled host is remembered, and openIdle the time if its circuit is open:
	// longer than the wait of deliveries, up to a tenth of DefaultExpire.
	hostIdle = 10 * time.Minute
	openIdle = 12 * time.Hour
	// maxHosts is the number of remembered hosts from which on idle ones are forgotten sooner, and forgetTries the
	// number checked for each new host.
	maxHosts    = 1 << 16
	forgetTries = 16
)

// hosts has the state of the hosts that this process calls: their circuits, and their limits. A host is named
// host:port. All methods may be called concurrently.
type hosts struct {
	now       func() time.Time
	onChange  func(host string, length time.Duration) // called when a circuit opens for a length, or closes
	mu        sync.Mutex
	all       map[string]*host
	openCount int
}

// host is the state of one host. hosts.mu guards it.
type host struct {
	circuit  circuit
	calls    int // running
	slow     int // slow ones among them
	known    standing
	answered time.Time     // time of the last healthy answer
	took     time.Duration // average duration of a call
	free     time.Time     // when the rate allows the next call
	slot     time.Time     // when the last delivery that was postponed for its turn returns
	used     time.Time
}

// held means that a host may not be called now. It has the reason, and the wait before the next try.
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
	healthy time.Duration // a quicker answer counts as healthy
	began   time.Time
	slow    *time.Timer
	isSlow  bool
}

func newHosts(onChange func(host string, length time.Duration)) *hosts {
	return &hosts{now: time.Now, onChange: onChange, all: map[string]*host{}}
}

// openCircuits returns the number of open circuits.
func (h *hosts) openCircuits() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.openCount
}

// begin notes a call of a host. If the host may not be called now, begin returns why: its circuit, its rate, its
// concurrency, or scarce places that other hosts need more.
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
			fmt.Sprintf("%d calls of %s are running", x.calls, name)}
	}
	var every time.Duration
	if e.Rate > 0 {
		every = time.Duration(float64(time.Second) / e.Rate)
		if x.free.Sub(now) > rateBurst {
			return nil, &held{x.turn(now, every, leastWait, math.MaxInt64), false,
				fmt.Sprintf("%s is called %g times a second already", name, e.Rate)}
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
	c := &call{hosts: h, name: name, host: x, seat: seat, probe: x.circuit.begin(), healthy: e.Timeout / slowShare,
		began: now}
	c.slow = time.AfterFunc(slowAfter, c.noteSlow)
	return c, nil
}

// patience returns the least wait of a delivery that got no place for a call. It is slowAfter for a healthy host,
// because other calls' answers may make room by then, and half a timeout while places are scarce.
func (x *host) patience(e *Endpoint, p *places) time.Duration {
	switch {
	case x.known == healthy && x.slow == 0:
		return slowAfter
	case p.scarce():
		return e.Timeout / slowShare
	}
	return leastWait
}

// waits returns the wait for a host with an open circuit; nil if it may be called.
func (x *host) waits(name string, e *Endpoint, now time.Time) *held {
	wait, ok := x.circuit.admit(now, e.Timeout)
	if ok {
		return nil
	}
	spread := rand.N(x.circuit.length/openSpread + 1)
	return &held{max(wait, leastWait) + spread, true, fmt.Sprintf("the circuit of %s is open for %v", name,
		x.circuit.length)}
}

// openFor is waits for the host with a name.
func (h *hosts) openFor(name string, e *Endpoint) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	return h.find(name, now).waits(name, e, now)
}

// turn returns the wait for the next turn: postponed deliveries come back one after the other, none sooner than after
// least or later than after most.
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
		return // the call has ended
	}
	c.isSlow = true
	c.host.slow++
	c.seat.noteSlow()
}

// end notes the end of a call. failed means that the host failed; nothing means that the call does not show whether the
// host works. open reports whether the circuit was open, or was closed by this call: then a failure is not the
// delivery's fault.
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

// find returns a host, and creates its state if needed. An idle one is forgotten at once, as a virtual clock may have
// passed many intervals of forget.
func (h *hosts) find(name string, now time.Time) *host {
	if x := h.all[name]; x != nil {
		if !x.idle(now, hostIdle) {
			return x
		}
		h.drop(name, x)
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

// idle reports whether a host may be forgotten: for a time, or for openIdle if its circuit is open, nobody has called
// it and no delivery waits for its turn.
func (x *host) idle(now time.Time, after time.Duration) bool {
	if x.circuit.open() {
		after = openIdle
	}
	return x.calls == 0 && now.Sub(latest(x.used, x.slot)) >= after
}

// forget forgets idle hosts. Call it every minute or so.
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
		h.onChange(name, 0)
	}
	delete(h.all, name)
}
