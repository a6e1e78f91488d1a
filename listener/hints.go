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

// maxWaiting is how many expired events may wait for a claim: some 40 MB of keys of usual length.
const maxWaiting = 200_000

// maxReleased is how many of them are taken out at once when there is no backlog any more, so that newer hints are not held
// up by them.
const maxReleased = 4096

// hintBuffer holds hints between the reader, which must never wait because Redis would cut it off, and the schedule. Of
// several hints of one kind in a row for a key it keeps one: a hint only has the key read, which is in the state that
// all of them led to. Hints of one key keep their order. It must not be copied.
type hintBuffer struct {
	busy   func() bool // tells whether timers are being fired as fast as possible
	signal chan struct{}
	// maxHints and maxWaiting; tests set less.
	most, mostWaiting int

	mu      sync.Mutex
	urgent  hintList
	expired hintList        // may wait; no older than those of urgent for the same keys
	waiting hintList        // expired events of timers that were due in the schedule, which wait for their claim
	asked   map[string]bool // the keys of hints that were taken out and may come back: whether others of the key have come since
	resting bool            // whatever was taken out has been taken in
	news    bool            // hints have come of which wait was not told
}

// hintList is a list of hints in their order.
type hintList struct {
	hints []schedule.Hint
	prev  []int          // of each of hints the index of the one before it of the same key, or -1
	last  map[string]int // of each key the index of its last hint
	moot  int            // how many of hints were forgotten: these are empty
	heard time.Time      // when what the first of hints tells of happened at the earliest
	since time.Time      // when the first of hints came
}

func newHintBuffer() *hintBuffer {
	b := &hintBuffer{busy: func() bool { return false }, signal: make(chan struct{}, 1), most: maxHints, mostWaiting: maxWaiting}
	b.clear()
	return b
}

// clear drops all hints. b.mu is held.
func (b *hintBuffer) clear() {
	b.urgent.clear()
	b.expired.clear()
	b.waiting.clear()
	b.asked = nil
}

// size returns how many hints there are, with those forgotten that still take room. b.mu is held.
func (b *hintBuffer) size() int {
	return len(b.urgent.hints) + len(b.expired.hints) + len(b.waiting.hints)
}

func (l *hintList) clear() {
	*l = hintList{last: map[string]int{}}
}

// lastOf returns the kind of a key's last hint, or 0.
func (l *hintList) lastOf(key string) schedule.HintKind {
	if at, ok := l.last[key]; ok {
		return l.hints[at].Kind
	}
	return 0
}

// forget drops the hints of a key.
func (l *hintList) forget(key []byte) {
	if len(l.last) == 0 {
		return
	}
	at, ok := l.last[string(key)]
	if !ok {
		return
	}
	for ; at >= 0; at = l.prev[at] {
		l.hints[at] = schedule.Hint{}
		l.moot++
	}
	delete(l.last, string(key))
	l.tidy()
}

// tidy gives back the room of forgotten hints once they are the greater part.
func (l *hintList) tidy() {
	if l.moot == len(l.hints) {
		l.clear()
	} else if l.moot > 1000 && l.moot > len(l.hints)/2 {
		old := *l
		l.clear()
		l.heard, l.since = old.heard, old.since
		for _, h := range old.all() {
			l.push(h)
		}
	}
}

// forgetLast drops the last hint of a key.
func (l *hintList) forgetLast(key string) {
	at, ok := l.last[key]
	if !ok {
		return
	}
	if l.prev[at] >= 0 {
		l.last[key] = l.prev[at]
	} else {
		delete(l.last, key)
	}
	if at == len(l.hints)-1 { // as nearly always: so nothing piles up
		l.hints, l.prev = l.hints[:at], l.prev[:at]
	} else {
		l.hints[at] = schedule.Hint{}
		l.moot++
	}
	l.tidy()
}

// all returns the hints that were not forgotten.
func (l *hintList) all() []schedule.Hint {
	if l.moot == 0 {
		return l.hints
	}
	return slices.DeleteFunc(l.hints, func(h schedule.Hint) bool { return h.Kind == 0 })
}

// append adds a hint of something that happened at heard or later.
func (l *hintList) append(h schedule.Hint, heard time.Time) {
	if len(l.hints) == 0 {
		l.heard, l.since = heard, time.Now()
	}
	l.push(h)
}

// push adds a hint, as old as the others.
func (l *hintList) push(h schedule.Hint) {
	before, ok := l.last[h.Key]
	if !ok {
		before = -1
	}
	l.last[h.Key] = len(l.hints)
	l.hints, l.prev = append(l.hints, h), append(l.prev, before)
}

// add takes a hint of something that happened at heard or later. It tells whether it has appended it: the key may have one
// that says the same. Where there is no room it drops them all, and fits is false.
func (b *hintBuffer) add(h schedule.Hint, heard time.Time) (appended, fits bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.size() >= b.most {
		b.clear()
		return false, false
	}
	if _, out := b.asked[h.Key]; out {
		b.asked[h.Key] = true
	}
	b.overtake(h.Key)
	waits := b.expired.lastOf(h.Key) != 0
	switch {
	case h.Kind != schedule.Expired:
		if waits {
			b.join(&b.expired)
		}
		if b.urgent.lastOf(h.Key) == h.Kind {
			return false, true
		}
		b.urgent.append(h, heard)
		b.news = true
	case waits || b.urgent.lastOf(h.Key) == h.Kind:
		return false, true
	default:
		b.expired.append(h, heard)
		b.news = b.news || len(b.expired.hints) == 1
	}
	return true, true
}

// forget drops the hints of keys whose timers have been claimed since: whatever they tell of has been decided.
func (b *hintBuffer) forget(claimed []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range keys.ParseClaimed(claimed) {
		b.urgent.forget(key)
		b.expired.forget(key)
		b.waiting.forget(key)
		if len(b.asked) > 0 {
			delete(b.asked, string(key))
		}
	}
}

// overtake has what waits for the claim of a key's timer wait no longer. b.mu is held.
func (b *hintBuffer) overtake(key string) {
	if at, ok := b.waiting.last[key]; ok {
		b.urgent.add(b.waiting.hints[at], b.waiting.heard)
		b.waiting.forgetLast(key)
	}
}

// release has some of what waits for claims wait no longer. b.mu is held.
func (b *hintBuffer) release() {
	var some []string
	for _, h := range b.waiting.hints {
		if h.Kind != 0 {
			some = append(some, h.Key)
		}
		if len(some) == maxReleased {
			break
		}
	}
	for _, key := range some {
		b.overtake(key)
	}
}

// keep takes back expired events of timers that the schedule had due at a time: nothing explained them then, and they need nothing
// more if the timers are claimed before anything else is heard of their keys. It returns those of which something has been
// heard already.
func (b *hintBuffer) keep(due []schedule.Hint, at time.Time) (overtaken []schedule.Hint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range due {
		switch more, out := b.asked[h.Key]; {
		case more:
			overtaken = append(overtaken, h)
		case out:
			b.waiting.append(h, at)
		}
		delete(b.asked, h.Key)
	}
	return overtaken
}

// forgetLast drops the last hint of a key, unless it has been taken out.
func (b *hintBuffer) forgetLast(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.urgent.forgetLast(key)
}

// join has expired events wait no longer. b.mu is held.
func (b *hintBuffer) join(events *hintList) {
	for _, h := range events.all() {
		b.urgent.add(h, events.heard)
	}
	events.clear()
}

// add adds a hint of something that happened at heard or later, perhaps before what the others tell of.
func (l *hintList) add(h schedule.Hint, heard time.Time) {
	l.append(h, heard)
	if heard.Before(l.heard) {
		l.heard = heard
	}
}

// flush has nothing wait any longer, and nothing come back that was taken out.
func (b *hintBuffer) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.asked {
		b.asked[key] = true
	}
	b.join(&b.waiting)
	b.join(&b.expired)
	b.wake()
}

// wakeUp has wait look for the hints that came since it was called last. What follows an event at once may make its hint
// needless.
func (b *hintBuffer) wakeUp() {
	b.mu.Lock()
	news := b.news && b.size() > 0
	b.news = false
	b.mu.Unlock()
	if news {
		b.wake()
	}
}

// wake has wait look for hints.
func (b *hintBuffer) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// take takes out the hints whose time has come, and tells when the first of them
// happened at the earliest. If there are none, pause is how long to wait for more.
func (b *hintBuffer) take() (hints []schedule.Hint, heard time.Time, pause time.Duration) {
	busy := b.busy()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = nil
	pause = noEnd
	full := len(b.waiting.hints) >= b.mostWaiting // also if all of them are asked about now, and come back
	if len(b.waiting.hints) > 0 {
		if !busy {
			b.release()
		} else if time.Since(b.waiting.since) >= askAgain {
			b.ask(&b.waiting)
		}
		pause = linger
	}
	if len(b.expired.hints) > 0 {
		waited := time.Since(b.expired.since)
		switch {
		case waited >= longestLinger && busy && !full:
			b.ask(&b.expired)
		case waited >= longestLinger, !busy && (waited >= linger || len(b.urgent.hints) > 0):
			b.join(&b.expired)
		case waited < linger:
			pause = linger - waited
		default:
			pause = linger
		}
	}
	if len(b.urgent.hints) == 0 {
		return nil, time.Time{}, pause
	}
	hints, heard = b.urgent.all(), b.urgent.heard
	b.urgent.clear()
	b.resting = false
	return hints, heard, pause
}

// ask has expired events taken in, except for those of timers that are due in the schedule. b.mu is held.
func (b *hintBuffer) ask(events *hintList) {
	if b.asked == nil {
		b.asked = make(map[string]bool, len(events.last))
	}
	for at := range events.hints {
		if h := &events.hints[at]; h.Kind == schedule.Expired {
			h.MayWait = true
			b.asked[h.Key] = false
		}
	}
	b.join(events)
}

// idle tells whether all hints that came have been taken in.
func (b *hintBuffer) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.resting && b.size() == 0
}

// wait returns the hints, as soon as there are some, and when the
// first of them happened at the earliest; nil when ctx ends or when the time is over. Those that it returned before have
// been taken in, unless the time is limited because some are late.
func (b *hintBuffer) wait(ctx context.Context, most time.Duration) ([]schedule.Hint, time.Time) {
	b.mu.Lock()
	b.resting = most == noEnd
	b.mu.Unlock()
	end := time.Now().Add(most)
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		hints, heard, pause := b.take()
		left := time.Until(end)
		if len(hints) > 0 || left <= 0 || ctx.Err() != nil {
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

// latePause is the pause before hints are tried again whose slots were moving.
const latePause = 100 * time.Millisecond

// lateHints holds hints of keys whose slots are moving from one server of a cluster
// to another. Those of other keys overtake them.
type lateHints struct {
	hints []schedule.Hint
	keys  map[string]bool
	heard time.Time // when what the first of hints tells of happened at the earliest
	since time.Time // when the first of them became late
	next  time.Time // when they are to be tried again
}

func newLateHints() *lateHints { return &lateHints{keys: map[string]bool{}} }

// add takes hints that were refused, heard at the given instant or later. Where
// there is no room it drops them all, and returns false.
func (q *lateHints) add(hints []schedule.Hint, heard time.Time) bool {
	now := time.Now()
	if len(q.hints) == 0 {
		q.heard = heard
		if q.since.IsZero() {
			q.since = now
		}
	}
	q.age(heard)
	q.next = now.Add(latePause)
	for _, h := range hints {
		q.keys[h.Key] = true
	}
	q.hints = append(q.hints, hints...)
	if len(q.hints) > maxHints {
		q.take()
		return false
	}
	return true
}

// age notes that one of hints was heard at the given instant or later. Expired events
// wait before they are taken in, so it may be older than the others.
func (q *lateHints) age(heard time.Time) {
	if heard.Before(q.heard) {
		q.heard = heard
	}
}

// append holds back those of newer hints, heard at the given instant or later, that
// are of a key that has late ones, and returns the others.
func (q *lateHints) append(hints []schedule.Hint, heard time.Time) []schedule.Hint {
	if len(q.hints) == 0 {
		return hints
	}
	return slices.DeleteFunc(hints, func(h schedule.Hint) bool {
		if q.keys[h.Key] {
			q.hints = append(q.hints, h)
			q.age(heard)
		}
		return q.keys[h.Key]
	})
}

// pause returns for how long nothing is to be tried again.
func (q *lateHints) pause() time.Duration {
	if len(q.hints) == 0 {
		q.since = time.Time{}
		return noEnd
	}
	return time.Until(q.next)
}

// noEnd is a pause that only an event ends.
const noEnd = time.Hour

// take returns the hints, to be tried again, and when the first of them happened at the earliest.
func (q *lateHints) take() ([]schedule.Hint, time.Time) {
	hints := q.hints
	for i := range hints {
		hints[i].Held = time.Since(q.since)
	}
	q.hints = nil
	clear(q.keys)
	return hints, q.heard
}
