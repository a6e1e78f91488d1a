package listener

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// maxHints is how many hints may wait: some seconds' worth at full speed, and
// a few hundred MB with the longest keys. Beyond it an audit is cheaper.
const maxHints = 500_000

// linger is how long expired events wait for others to be taken in with them, and longestLinger for how long they do
// while timers are being fired as fast as possible. Nearly all are of timers that have been claimed by then, and need
// nothing more; before, each would have to be noted in the schedule. Those of timers that the schedule has due wait for
// their claim. Every askAgain the schedule is asked whether it has them still: an event must not become so old that it
// proves nothing, or that nothing explains it any more.
const (
	linger        = 10 * time.Millisecond
	longestLinger = 500 * time.Millisecond
	askAgain      = 1500 * time.Millisecond
)

const (
	// maxAwaiting is how many expired events may wait for a claim: some 40 MB of keys of usual length.
	maxAwaiting = 200_000
	// maxReleased is how many of them become urgent at once when there is no backlog any more, so that newer hints are
	// not delayed by them.
	maxReleased = 4096
	// deferredPause is the pause before hints are tried again whose slots were moving.
	deferredPause = 100 * time.Millisecond
	// noEnd is a pause that only an event ends.
	noEnd = time.Hour
)

// state is what a hint in the buffer waits for. A hint that was collected is in no state: the schedule takes it in, or the
// buffer takes it back.
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
	urgent     state = iota // nothing
	coalescing              // others: expired events, no older than the urgent hints of the same keys
	awaiting                // the claims of their timers: expired events that the schedule had due
	deferred                // slots that are moving between servers of a cluster, or older hints of their keys that do
	states
)

// buffer holds hints between the reader, which must never wait because Redis would cut it off, and the schedule. Of
// several hints of one kind in a row for a key it keeps one: a hint only has the key read, which is in the state that
// all of them led to. Hints of one key keep their order. It must not be copied.
type buffer struct {
	busy   func() bool // tells whether timers are being fired as fast as possible
	signal chan struct{}
	// maxHints and maxAwaiting; tests set less.
	most, mostAwaiting int

	mu      sync.Mutex
	in      [states]hintList
	asked   map[string]bool // the keys of hints that were collected and may come back: whether others of the key have come since
	resting bool            // whatever was collected has been taken in
	news    bool            // hints have come since wait was woken last

	deferredSince time.Time // since when there have been deferred hints
	retryAt       time.Time // when they are to be tried again
}

func newBuffer() *buffer {
	b := &buffer{busy: func() bool { return false }, signal: make(chan struct{}, 1), most: maxHints, mostAwaiting: maxAwaiting}
	b.clear()
	b.in[deferred].clear()
	return b
}

// clear drops all hints but those that are deferred. b.mu is held.
func (b *buffer) clear() {
	for s := range deferred {
		b.in[s].clear()
	}
	b.asked = nil
}

// size returns how many hints take room, without those that are deferred. b.mu is held.
func (b *buffer) size() (n int) {
	for s := range deferred {
		n += len(b.in[s].hints)
	}
	return n
}

// hear adds a hint of something that happened at heard or later, unless the key has one that says the same. If there is no
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
		b.in[urgent].add(h, heard)
		b.news = true
	case waits || b.in[urgent].kind(h.Key) == h.Kind:
		return false, true
	default:
		b.in[coalescing].add(h, heard)
		b.news = b.news || len(b.in[coalescing].hints) == 1
	}
	return true, true
}

// explain drops the hints of keys whose timers have been claimed since: the claim has decided what they are about.
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
		b.in[urgent].add(b.in[awaiting].hints[at], b.in[awaiting].heard)
		b.in[awaiting].dropLast(key)
	}
}

// release makes some of what awaits claims urgent. b.mu is held.
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
		b.in[urgent].add(h, b.in[s].heard)
	}
	b.in[s].clear()
}

// ask makes all hints of a state urgent. Of its expired events the schedule gives those back whose timers it has due: see
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

// flush makes all hints urgent that coalesce or await a claim, and lets nothing that was collected await one.
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

// collect takes out the urgent hints. heard is when the first of them happened at the earliest. If there are none, pause is
// how long to wait for more.
func (b *buffer) collect() (hints []schedule.Hint, heard time.Time, pause time.Duration) {
	busy := b.busy()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = nil
	pause = noEnd
	full := len(b.in[awaiting].hints) >= b.mostAwaiting // also if all of them are asked about now, and come back
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
		return nil, time.Time{}, pause
	}
	hints, heard = b.in[urgent].all(), b.in[urgent].heard
	b.in[urgent].clear()
	b.resting = false
	return hints, heard, pause
}

// await takes back expired events of timers that the schedule had due at a time. A claim explains them, if it comes before
// anything else is heard of their keys. It returns those for which something else has been heard already.
func (b *buffer) await(due []schedule.Hint, at time.Time) (overtaken []schedule.Hint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range due {
		switch more, out := b.asked[h.Key]; {
		case more:
			overtaken = append(overtaken, h)
		case out:
			b.in[awaiting].add(h, at)
		}
		delete(b.asked, h.Key)
	}
	return overtaken
}

// putOff takes back hints that were refused because their slots are moving, heard at the given instant or later. Where
// there is no room it drops all that are deferred, and returns false.
func (b *buffer) putOff(hints []schedule.Hint, heard time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.deferredSince.IsZero() {
		b.deferredSince = now
	}
	b.retryAt = now.Add(deferredPause)
	for _, h := range hints {
		b.in[deferred].add(h, heard)
	}
	if len(b.in[deferred].hints) > b.most {
		b.in[deferred].clear()
		return false
	}
	return true
}

// holdBack takes back those of newer hints, heard at the given instant or later, that
// are of a key that has deferred ones, and returns the others.
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
		older.add(h, heard)
		return true
	})
}

// retry takes out the deferred hints. heard is when the first of them happened at the earliest.
func (b *buffer) retry() (hints []schedule.Hint, heard time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hints, heard = b.in[deferred].hints, b.in[deferred].heard
	for i := range hints {
		hints[i].Held = time.Since(b.deferredSince)
	}
	b.in[deferred].clear()
	return hints, heard
}

// untilRetry returns how long it is until what is deferred is to be tried again.
func (b *buffer) untilRetry() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.in[deferred].hints) == 0 {
		return noEnd
	}
	return time.Until(b.retryAt)
}

// idle tells whether all hints that came have been taken in.
func (b *buffer) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.resting && b.size() == 0
}

// rest notes that all collected hints have been taken in, or taken back.
func (b *buffer) rest() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resting = len(b.in[deferred].hints) == 0; b.resting {
		b.deferredSince = time.Time{}
	}
}

// wait returns the hints that are urgent or to be tried again, as soon as there are some, and when the first of them
// happened at the earliest; nil when ctx ends. Those that it returned before have been taken in, or taken back.
func (b *buffer) wait(ctx context.Context) ([]schedule.Hint, time.Time) {
	b.rest()
	timer := time.NewTimer(noEnd)
	defer timer.Stop()
	for {
		left := b.untilRetry()
		if left <= 0 {
			return b.retry()
		}
		hints, heard, pause := b.collect()
		if len(hints) > 0 || ctx.Err() != nil {
			return hints, heard
		}
		timer.Reset(min(pause, left))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-b.signal:
		}
	}
}

// caughtUp wakes wait if hints have come. It is called when all that was read has been heard: the message after an event may
// make its hint needless.
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
