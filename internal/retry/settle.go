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
	// settleEvery is the interval at which requests are acknowledged and given back, in bursts. nats-server postpones
	// its search for messages to deliver again each time that it receives an answer about a request. With answers every
	// few ms, it would never search.
	settleEvery = 40 * time.Millisecond

	// Requests that wait for a failing lane come back in waves: each time that one is due or given back, nats-server
	// searches all of them. At waveEvery nearly all of the time is left for others.
	waveEvery = 250 * time.Millisecond
	waveSize  = 250
	// crowd is the number of waiting requests from which on bursts come only as often as waves.
	crowd = 1000
	// spacing is the least wait of such a request for each other one, up to longestAway. JetStream delivers returning
	// messages before new ones: in a crowd with short waits a slow machine would get to nothing else.
	spacing = 4 * time.Millisecond
)

// settling collects the requests to be acknowledged, or given back to JetStream. Its methods may be called
// concurrently.
type settling struct {
	wake chan struct{} // holds one token after an addition

	mu      sync.Mutex
	done    []jetstream.Msg
	back    []givenBack
	began   time.Time     // begin of the waves; by the monotonic clock, unaffected by clock steps
	waves   map[int64]int // number of requests by number of the wave
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

// addBack makes JetStream deliver a request again after a delay.
func (s *settling) addBack(msg jetstream.Msg, delay time.Duration) {
	s.mu.Lock()
	s.back = append(s.back, givenBack{msg, time.Now().Add(delay)})
	s.mu.Unlock()
	s.signal()
}

// addToWave makes JetStream deliver a request again with a wave: the first one after the delay that has room.
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

// lastWave returns the number of the last wave within a delay.
func (s *settling) lastWave(delay time.Duration) int64 {
	return int64((time.Since(s.began) + delay) / waveEvery)
}

func (s *settling) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the additions since the last call, and drops past waves.
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

// pause returns the time to collect more before the next burst.
func (s *settling) pause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting > crowd {
		return waveEvery
	}
	return settleEvery
}

// settle settles requests with JetStream until handled is closed, and then the rest. The end of work ends a running
// call.
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

// settleBurst acknowledges requests and gives others back. A lost acknowledgement makes JetStream deliver the request
// again, which finds the work done.
func (c *Consumer) settleBurst(work context.Context, done []jetstream.Msg, back []givenBack) {
	for _, b := range back {
		_ = b.msg.NakWithDelay(max(time.Until(b.at), 0)) // otherwise it comes after AckWait
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
	err := done[last].DoubleAck(ctx) // JetStream reads them in order, so this one confirms all
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		err = nil
	}
	if err == nil || work.Err() == nil {
		c.note(partAck, began, err)
	}
}

// giveBack makes JetStream deliver a request again after a pause that grows each time. If the request's lane is
// failing, it comes back in a wave, after up to longestAway; otherwise after longestPause at most, because the next try
// may succeed.
func (c *Consumer) giveBack(msg jetstream.Msg, delivered uint64, why outcome) {
	times := int(min(delivered, 64))
	delay := backoff.Policy{First: firstPause, Longest: longestAway}.Delay(times)
	switch {
	case c.held():
		c.settling.addBack(msg, pause(times))
	case why == failing:
		c.settling.addToWave(msg, delay)
	default:
		c.settling.addBack(msg, min(delay, longestPause))
	}
}
