package retry

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/backoff"
)

const (
	// settleEvery is how often requests are acknowledged and given back, in bursts. While it hears of a request every
	// few ms, nats-server puts off looking for those that are to be delivered again.
	settleEvery = 40 * time.Millisecond

	// Those that wait for a lane that fails come back in waves: each time that one of them is due, or is given back,
	// nats-server looks through all of them. So many of them in a second leave nearly all of the time for others.
	waveEvery = 250 * time.Millisecond
	waveSize  = 250
	// crowd is the number of them from which on bursts are as rare as waves.
	crowd = 1000
	// spacing is how long one of them waits at least for each other one that does, up to longestAway. What comes again is
	// delivered before what is new: those of a crowd that came again as soon as each of them alone does would be all that
	// a slow machine gets to.
	spacing = 4 * time.Millisecond
)

// settling collects what is to be told to JetStream about requests. Its methods may be called concurrently.
type settling struct {
	wake chan struct{} // holds one token when something came in

	mu      sync.Mutex
	done    []jetstream.Msg
	back    []givenBack
	began   time.Time     // with it the waves begin; by the monotonic clock, whatever happens to the other
	waves   map[int64]int // number of a wave -> how many come in it
	waiting int           // sum of waves
}

// givenBack is a request to be delivered again at a time.
type givenBack struct {
	msg jetstream.Msg
	at  time.Time
}

func newSettling() settling {
	return settling{wake: make(chan struct{}, 1), began: time.Now(), waves: map[int64]int{}}
}

func (s *settling) addDone(msg jetstream.Msg) {
	s.mu.Lock()
	s.done = append(s.done, msg)
	s.mu.Unlock()
	s.signal()
}

// addBack has a request delivered again after a delay.
func (s *settling) addBack(msg jetstream.Msg, delay time.Duration) {
	s.mu.Lock()
	s.back = append(s.back, givenBack{msg, time.Now().Add(delay)})
	s.mu.Unlock()
	s.signal()
}

// addToWave has a request delivered again with the first wave after a delay that has room.
func (s *settling) addToWave(msg jetstream.Msg, delay time.Duration) {
	s.mu.Lock()
	delay = max(delay, min(time.Duration(s.waiting)*spacing, longestAway))
	n := s.lastWave(delay) + 1
	for s.waves[n] >= waveSize {
		n++
	}
	s.waves[n]++
	s.waiting++
	s.back = append(s.back, givenBack{msg, s.began.Add(time.Duration(n) * waveEvery)})
	s.mu.Unlock()
	s.signal()
}

// lastWave returns the number of the last wave that will have come after a delay.
func (s *settling) lastWave(delay time.Duration) int64 {
	return int64((time.Since(s.began) + delay) / waveEvery)
}

func (s *settling) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns what has come in since, and forgets the waves that are over.
func (s *settling) take() (done []jetstream.Msg, back []givenBack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.lastWave(0)
	for n, size := range s.waves {
		if n < now {
			delete(s.waves, n)
			s.waiting -= size
		}
	}
	done, back = s.done, s.back
	s.done, s.back = nil, nil
	return done, back
}

// pause returns how long to wait for more before what has come in is told.
func (s *settling) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > crowd {
		return waveEvery
	}
	return settleEvery
}

// settle tells JetStream what became of requests until handled is closed, and then what is left. It ends a call that
// is under way when work ends.
func (c *Consumer) settle(work context.Context, handled <-chan struct{}) {
	for more := true; more; {
		select {
		case <-c.settling.wake:
			select {
			case <-handled:
			case <-time.After(c.settling.pause()):
			}
		case <-handled:
			more = false
		}
		done, back := c.settling.take()
		c.settleBurst(work, done, back)
	}
}

// settleBurst acknowledges requests and gives others back. What is lost of it is delivered again, and found done.
func (c *Consumer) settleBurst(work context.Context, done []jetstream.Msg, back []givenBack) {
	for _, b := range back {
		_ = b.msg.NakWithDelay(max(time.Until(b.at), 0)) // or it comes after AckWait
	}
	if len(done) == 0 {
		return
	}
	last := len(done) - 1
	for _, msg := range done[:last] {
		_ = msg.Ack()
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(work, min(callTimeout, c.AckWait/2))
	defer cancel()
	err := done[last].DoubleAck(ctx) // JetStream takes them in order, so this answers for all
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		err = nil
	}
	if err == nil || work.Err() == nil {
		c.note(partAck, began, err)
	}
}

// giveBack has a request delivered again after a while that grows with each time, though soon while nothing works.
func (c *Consumer) giveBack(msg jetstream.Msg, delivered uint64, why outcome) {
	times := int(min(delivered, 64))
	delay := backoff.Policy{First: firstPause, Longest: longestAway}.Delay(times)
	switch {
	case c.held():
		c.settling.addBack(msg, pause(times))
	case why == failing:
		c.settling.addToWave(msg, delay)
	default: // the next may have more luck
		c.settling.addBack(msg, min(delay, longestPause))
	}
}
