package listener

import (
	"context"
	"sync"

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
	last   map[string]schedule.HintKind
	signal chan struct{}
}

func newHintBuffer() hintBuffer {
	return hintBuffer{last: map[string]schedule.HintKind{}, signal: make(chan struct{}, 1)}
}

// add appends a hint. Where there is no room it drops them all, and returns
// false.
func (b *hintBuffer) add(h schedule.Hint) bool {
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
	b.last[h.Key] = h.Kind
	b.hints = append(b.hints, h)
	select {
	case b.signal <- struct{}{}:
	default:
	}
	return true
}

// wait returns what has gathered, as soon as there is something; nil when ctx
// ends.
func (b *hintBuffer) wait(ctx context.Context) []schedule.Hint {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.signal:
		}
		b.mu.Lock()
		hints := b.hints
		b.hints = nil
		clear(b.last)
		b.mu.Unlock()
		if len(hints) > 0 {
			return hints
		}
	}
}
