package listener

import (
	"context"
	"sync"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// maxHints is how many hints may wait: some seconds' worth at full speed, and
// a few hundred MB with the longest keys. Beyond it an audit is cheaper.
const maxHints = 500_000

// hintBuffer holds hints between the reader, which must never wait lest Redis
// cut it off, and the schedule. Of several hints of one kind in a row for a key
// it keeps one: a hint has the state read that all of them led to.
type hintBuffer struct {
	mu     sync.Mutex
	hints  []schedule.Hint
	heard  time.Time // when what the first of hints tells of happened at the earliest
	last   map[string]schedule.HintKind
	signal chan struct{}
}

func newHintBuffer() hintBuffer {
	return hintBuffer{last: map[string]schedule.HintKind{}, signal: make(chan struct{}, 1)}
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
	}
	b.last[h.Key] = h.Kind
	b.hints = append(b.hints, h)
	select {
	case b.signal <- struct{}{}:
	default:
	}
	return true
}

// wait returns what has gathered, as soon as there is something, and when the
// first of it happened at the earliest; nil when ctx ends.
func (b *hintBuffer) wait(ctx context.Context) ([]schedule.Hint, time.Time) {
	for {
		select {
		case <-ctx.Done():
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
