package listener

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// maxHints is how many hints may wait: some seconds' worth at full speed, and
// a few hundred MB with the longest keys. Beyond it an audit is cheaper.
const maxHints = 500_000

// linger is how long expired events wait for others to be taken in with them.
// Nearly all are of timers that have been claimed by then, and need nothing more.
// Other hints take them along at once.
const linger = 10 * time.Millisecond

// hintBuffer holds hints between the reader, which must never wait lest Redis
// cut it off, and the schedule. Of several hints of one kind in a row for a key
// it keeps one: a hint has the state read that all of them led to. It must not be
// copied.
type hintBuffer struct {
	mu     sync.Mutex
	hints  []schedule.Hint
	heard  time.Time // when what the first of hints tells of happened at the earliest
	last   map[string]schedule.HintKind
	signal chan struct{}
}

func newHintBuffer() *hintBuffer {
	return &hintBuffer{last: map[string]schedule.HintKind{}, signal: make(chan struct{}, 1)}
}

// add appends a hint of something that happened at heard or later. Where there
// is no room it drops them all, and returns false.
func (b *hintBuffer) add(h schedule.Hint, heard time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last[h.Key] == h.Kind {
		return true
	}
	if len(b.hints) >= maxHints {
		b.hints = nil
		clear(b.last)
		return false
	}
	if len(b.hints) == 0 {
		b.heard = heard
		if h.Kind == schedule.Expired {
			time.AfterFunc(linger, b.wake)
		}
	}
	b.last[h.Key] = h.Kind
	b.hints = append(b.hints, h)
	if h.Kind != schedule.Expired {
		b.wake()
	}
	return true
}

// wake has wait look for hints.
func (b *hintBuffer) wake() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// wait returns what has gathered, as soon as there is something, and when the
// first of it happened at the earliest; nil when ctx ends or when the time is over.
func (b *hintBuffer) wait(ctx context.Context, most time.Duration) ([]schedule.Hint, time.Time) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, time.Time{}
		case <-timer.C:
			return nil, time.Time{}
		case <-b.signal:
		}
		b.mu.Lock()
		hints, heard := b.hints, b.heard
		b.hints = nil
		clear(b.last)
		b.mu.Unlock()
		if len(hints) > 0 {
			return hints, heard
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

// append holds back those of newer hints that are of a key that has late ones, and
// returns the others.
func (q *lateHints) append(hints []schedule.Hint) []schedule.Hint {
	if len(q.hints) == 0 {
		return hints
	}
	return slices.DeleteFunc(hints, func(h schedule.Hint) bool {
		if q.keys[h.Key] {
			q.hints = append(q.hints, h)
		}
		return q.keys[h.Key]
	})
}

// pause returns for how long nothing is to be tried again.
func (q *lateHints) pause() time.Duration {
	if len(q.hints) == 0 {
		q.since = time.Time{}
		return longestPause
	}
	return time.Until(q.next)
}

// longestPause stands for no end.
const longestPause = time.Hour

// take returns the hints, to be tried again, and when the first of them happened at
// the earliest.
func (q *lateHints) take() ([]schedule.Hint, time.Time) {
	hints := q.hints
	for i := range hints {
		hints[i].Held = time.Since(q.since)
	}
	q.hints = nil
	clear(q.keys)
	return hints, q.heard
}
