package schedule

import (
	"sync"
	"time"
)

// maxClockAge is the age from which on any newer reading of a clock is better.
const maxClockAge = 10 * time.Second

// AheadBy is the least lead of a clock that counts: a smaller one, as between a master and its replica, is no matter.
const AheadBy = time.Second

// clockDrift is the share by which a clock that runs right, or is slewed, may differ from the local one.
const clockDrift = 0.1

// mostSteps bounds the kept steps of a clock.
const mostSteps = 10

// ClockStep is a step of a server's clock. A machine that sleeps stops the local clock, which looks the same.
type ClockStep struct {
	At time.Time     // time of the server's clock after it
	By time.Duration // forward; negative: back
}

// clock relates a Redis server's clock to the local monotonic one. It may be used concurrently.
type clock struct {
	mu       sync.Mutex
	server   time.Time     // a reading of the server's clock
	local    time.Time     // the local instant of it, at best knowledge
	accuracy time.Duration // of the local instant
	steps    []ClockStep   // not taken yet, the last mostSteps of them
}

// read takes a reading of the server's clock, made between two local instants. A much better one that is not too old
// and agrees with it is kept.
func (c *clock) read(server, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	accuracy := received.Sub(sent) / 2
	local := sent.Add(accuracy)
	if by := c.step(server, local, accuracy); by != 0 {
		if local.Before(c.local) {
			return // it was read before the step
		}
		c.steps = append(c.steps[max(len(c.steps)-mostSteps+1, 0):], ClockStep{server, by})
	}
	if !c.local.IsZero() && accuracy > 2*c.accuracy && received.Sub(c.local) < maxClockAge {
		predicted := c.server.Add(local.Sub(c.local))
		if server.Sub(predicted).Abs() <= accuracy+c.accuracy {
			return
		}
	}
	c.server, c.local, c.accuracy = server, local, accuracy
}

// step returns the step of the server's clock between the last reading and this one; 0 if it is within their accuracy.
// c.mu is held.
func (c *clock) step(server, local time.Time, accuracy time.Duration) time.Duration {
	if c.local.IsZero() {
		return 0
	}
	elapsed := local.Sub(c.local)
	by := server.Sub(c.server.Add(elapsed))
	slack := AheadBy + accuracy + c.accuracy + time.Duration(clockDrift*float64(elapsed.Abs()))
	if by.Abs() <= slack {
		return 0
	}
	return by
}

// takeSteps returns the steps since it was called last.
func (c *clock) takeSteps() []ClockStep {
	c.mu.Lock()
	defer c.mu.Unlock()
	steps := c.steps
	c.steps = nil
	return steps
}

// until returns the local time until the server's clock shows at. Before any reading everything is due.
func (c *clock) until(at Millis) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() {
		return 0
	}
	return at.Time().Sub(c.server) - time.Since(c.local)
}

// now returns the time of the server's clock, or AtOnce before any reading.
func (c *clock) now() Millis {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() {
		return AtOnce
	}
	return MillisOf(c.server.Add(time.Since(c.local)))
}

// latest returns the first local instant at which the server's clock had certainly reached a time: received, the
// arrival of the answer with that time, or earlier by a more accurate reading.
func (c *clock) latest(server, received time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.local.Add(server.Sub(c.server) + c.accuracy)
	if c.local.IsZero() || at.After(received) {
		return received
	}
	return at
}

// earliest returns the time of the server's clock at a local instant, or a little less: AtOnce before any reading or
// for the zero time.
func (c *clock) earliest(local time.Time) Millis {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() || local.IsZero() {
		return AtOnce
	}
	return MillisOf(c.server.Add(local.Sub(c.local) - c.accuracy))
}
