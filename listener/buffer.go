package listener

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// maxHints limits the waiting hints: some seconds' worth at full speed, and a few hundred MB with the longest keys.
// Beyond this number an audit costs less.
const maxHints = 500_000

const (
	// linger is the time for which expired events wait for further ones. longestLinger is the longest such time while
	// timers are fired as fast as possible. By then a claim has explained nearly all of the events; earlier, the
	// schedule would have to note each event. If a timer is due and not claimed, the schedule leaves its expired event
	// in the buffer, to wait for the claim. Every askAgain the schedule is asked about such events again: an event must
	// not grow so old that it proves nothing, or that nothing explains it any more.
	linger        = 10 * time.Millisecond
	longestLinger = 500 * time.Millisecond
	askAgain      = 1500 * time.Millisecond
)

const (
	// maxAwaiting limits the expired events that wait for a claim: some 40 MB of keys of usual length.
	maxAwaiting = 200_000
	// maxReleased limits the awaiting events that become urgent at once after a backlog, so that they do not delay
	// newer hints.
	maxReleased = 4096
	// deferredPause is the pause before the next try of hints whose slots were moving.
	deferredPause = 100 * time.Millisecond
	// noEnd is a pause without an end of its own; an event ends it.
	noEnd = time.Hour
)

// state says on what a hint in the buffer waits. A collected hint has no state: either the schedule takes it in,
// or the buffer takes it back.
//
//	verb                     | from              | to
//	-------------------------|-------------------|----------------------
//	hear                     | an event          | urgent or coalescing
//	join, ask                | coalescing        | urgent
//	urge, release, join, ask | awaiting          | urgent
//	collect                  | urgent            | collected
//	await                    | collected         | awaiting
//	putOff, holdBack         | collected         | deferred
//	retry                    | deferred          | collected
//	explain                  | all but deferred  | dropped
//	retract                  | urgent            | dropped
type state int

const (
	urgent     state = iota // waits for nothing
	coalescing              // an expired event waits for others; it is no older than the urgent hints of its key
	awaiting                // an expired event of a due timer waits for the claim
	deferred                // waits for the end of a slot's move, or for older hints of its key
	states
)

// buffer holds hints between the reader and the schedule: the reader must never wait, because Redis would cut it off.
// The buffer keeps one of several consecutive hints of one kind for a key. That is enough, because a hint only causes a
// read of the key, which shows the result of all changes. Hints of one key keep their order. A buffer must not be
// copied.
type buffer struct {
	busy   func() bool // reports whether timers are being fired as fast as possible
	signal chan struct{}
	// maxHints and maxAwaiting; tests set less.
	most, mostAwaiting int

	mu      sync.Mutex
	in      [states]hintList
	asked   map[string]bool // keys of collected hints that may come back; true: a newer hint has come
	resting bool            // all collected hints have been taken in
	news    bool            // hints have come since wait was last woken

	deferredSince time.Time // arrival of the first deferred hint; zero without one
	retryAt       time.Time // of their next try
}

func newBuffer() *buffer {
	b := &buffer{
		busy: func() bool { return false }, signal: make(chan struct{}, 1), most: maxHints, mostAwaiting: maxAwaiting,
	}
	b.clear()
	b.in[deferred].clear()
	return b
}

// clear drops all hints except the deferred ones. b.mu is held.
func (b *buffer) clear() {
	for s := range deferred {
		b.in[s].clear()
	}
	b.asked = nil
}

// size returns the number of hints, without the deferred ones. b.mu is held.
func (b *buffer) size() (n int) {
	for s := range deferred {
		n += len(b.in[s].hints)
	}
	return n
}

// hear adds a hint of a change that happened at heard or later, unless the key's last hint is of the same kind. Without
// room it drops all hints, and fits is false.
func (b *buffer) hear(h schedule.Hint, heard time.Time) (added, fits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size() >= b.most {
		b.clear()
		return false, false
	}
	if _, out := b.asked[h.Key]; out {
		b.asked[h.Key] = true
	}
	b.urge(h.Key)
	waits := b.in[coalescing].kind(h.Key) != 0
	switch {
	case h.Kind != schedule.Expired:
		if waits {
			b.join(coalescing)
		}
		if b.in[urgent].kind(h.Key) == h.Kind {
			return false, true
		}
		b.in[urgent].add(heardHint{h, heard})
		b.news = true
	case waits || b.in[urgent].kind(h.Key) == h.Kind:
		return false, true
	default:
		b.in[coalescing].add(heardHint{h, heard})
		b.news = b.news || len(b.in[coalescing].hints) == 1
	}
	return true, true
}

// explain drops the hints of keys whose timers were claimed after the hints: the claim has read the keys.
func (b *buffer) explain(claimed []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range keys.ParseClaimed(claimed) {
		for s := range deferred {
			b.in[s].drop(key)
		}
		if len(b.asked) > 0 {
			delete(b.asked, string(key))
		}
	}
}

// retract drops the last hint of a key, unless it has been collected.
func (b *buffer) retract(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.in[urgent].dropLast(key)
}

// urge makes a key's last hint urgent if it awaits a claim. b.mu is held.
func (b *buffer) urge(key string) {
	if at, ok := b.in[awaiting].last[key]; ok {
		b.in[urgent].add(b.in[awaiting].hints[at])
		b.in[awaiting].dropLast(key)
	}
}

// release makes up to maxReleased awaiting hints urgent. b.mu is held.
func (b *buffer) release() {
	var some []string
	for _, h := range b.in[awaiting].hints {
		if h.Kind != 0 {
			some = append(some, h.Key)
		}
		if len(some) == maxReleased {
			break
		}
	}
	for _, key := range some {
		b.urge(key)
	}
}

// join makes all hints of a state urgent. b.mu is held.
func (b *buffer) join(s state) {
	for _, h := range b.in[s].all() {
		b.in[urgent].add(h)
	}
	b.in[s].clear()
}

// ask makes all hints of a state urgent. For expired events of due timers, the schedule may return the event; see
// await. b.mu is held.
func (b *buffer) ask(s state) {
	if b.asked == nil {
		b.asked = make(map[string]bool, len(b.in[s].last))
	}
	for at := range b.in[s].hints {
		if h := &b.in[s].hints[at]; h.Kind == schedule.Expired {
			h.MayWait = true
			b.asked[h.Key] = false
		}
	}
	b.join(s)
}

// flush makes all coalescing and awaiting hints urgent. Collected hints do not wait for a claim either.
func (b *buffer) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.asked {
		b.asked[key] = true
	}
	b.join(awaiting)
	b.join(coalescing)
	b.wake()
}

// collect removes and returns the urgent hints. If there are none, pause is the time to wait for further ones.
func (b *buffer) collect() (hints []heardHint, pause time.Duration) {
	busy := b.busy()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = nil
	pause = noEnd
	// counted before the schedule is asked: all of them may come back
	full := len(b.in[awaiting].hints) >= b.mostAwaiting
	if len(b.in[awaiting].hints) > 0 {
		if !busy {
			b.release()
		} else if time.Since(b.in[awaiting].since) >= askAgain {
			b.ask(awaiting)
		}
		pause = linger
	}
	if len(b.in[coalescing].hints) > 0 {
		waited := time.Since(b.in[coalescing].since)
		switch {
		case waited >= longestLinger && busy && !full:
			b.ask(coalescing)
		case waited >= longestLinger, !busy && (waited >= linger || len(b.in[urgent].hints) > 0):
			b.join(coalescing)
		case waited < linger:
			pause = linger - waited
		default:
			pause = linger
		}
	}
	if len(b.in[urgent].hints) == 0 {
		return nil, pause
	}
	hints = b.in[urgent].all()
	b.in[urgent].clear()
	b.resting = false
	return hints, pause
}

// await takes back expired events of timers due and unclaimed at a time. They wait for the claims. It returns the
// events whose keys have a newer hint.
func (b *buffer) await(due []schedule.Hint, at time.Time) (overtaken []schedule.Hint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range due {
		switch more, out := b.asked[h.Key]; {
		case more:
			overtaken = append(overtaken, h)
		case out:
			b.in[awaiting].add(heardHint{h, at})
		}
		delete(b.asked, h.Key)
	}
	return overtaken
}

// putOff takes back hints that were refused because their slots are moving. heard is a lower bound of their times.
// Without room it drops all deferred hints, and returns false.
func (b *buffer) putOff(hints []schedule.Hint, heard time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.deferredSince.IsZero() {
		b.deferredSince = now
	}
	b.retryAt = now.Add(deferredPause)
	for _, h := range hints {
		b.in[deferred].add(heardHint{h, heard})
	}
	if len(b.in[deferred].hints) > b.most {
		b.in[deferred].clear()
		return false
	}
	return true
}

// holdBack takes back the hints of keys with deferred hints, and returns the others. heard is a lower bound of their
// times.
func (b *buffer) holdBack(hints []schedule.Hint, heard time.Time) []schedule.Hint {
	b.mu.Lock()
	defer b.mu.Unlock()
	older := &b.in[deferred]
	if len(older.hints) == 0 {
		return hints
	}
	return slices.DeleteFunc(hints, func(h schedule.Hint) bool {
		if older.kind(h.Key) == 0 {
			return false
		}
		older.add(heardHint{h, heard})
		return true
	})
}

// retry takes out the deferred hints.
func (b *buffer) retry() (hints []heardHint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hints = b.in[deferred].hints
	for i := range hints {
		hints[i].Held = time.Since(b.deferredSince)
	}
	b.in[deferred].clear()
	return hints
}

// untilRetry returns the time until the next try of the deferred hints.
func (b *buffer) untilRetry() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.in[deferred].hints) == 0 {
		return noEnd
	}
	return time.Until(b.retryAt)
}

// idle reports whether all hints are in the schedule.
func (b *buffer) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.resting && b.size() == 0
}

// rest notes that all collected hints are in the schedule or back in the buffer.
func (b *buffer) rest() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resting = len(b.in[deferred].hints) == 0; b.resting {
		b.deferredSince = time.Time{}
	}
}

// wait returns the urgent hints, or the deferred ones once it is their time. It waits until there are some, and returns
// nil when ctx ends. The caller must have passed on, or given back, the hints of the last call.
func (b *buffer) wait(ctx context.Context) []heardHint {
	b.rest()
	timer := time.NewTimer(noEnd)
	defer timer.Stop()
	for {
		left := b.untilRetry()
		if left <= 0 {
			return b.retry()
		}
		hints, pause := b.collect()
		if len(hints) > 0 || ctx.Err() != nil {
			return hints
		}
		timer.Reset(min(pause, left))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-b.signal:
		}
	}
}

// caughtUp wakes wait if hints have come. Call it before each read from the connection, and not earlier: the next
// message may make a hint needless.
func (b *buffer) caughtUp() {
	b.mu.Lock()
	news := b.news && b.size() > 0
	b.news = false
	b.mu.Unlock()
	if news {
		b.wake()
	}
}

// wake wakes wait.
func (b *buffer) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}
