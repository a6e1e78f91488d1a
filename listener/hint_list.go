package listener

import (
	"slices"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// heardHint is a hint of a change that happened at heard or later. The change may be older than the changes behind
// earlier hints.
type heardHint struct {
	schedule.Hint

	heard time.Time
}

// hintList is an ordered list of hints. Call clear before the first use.
type hintList struct {
	hints   []heardHint
	prev    []int          // index of the previous hint of the same key, or -1
	last    map[string]int // index of each key's last hint
	dropped int            // empty hints, of dropped ones
	since   time.Time      // arrival of the first hint
}

func (l *hintList) clear() {
	*l = hintList{last: map[string]int{}}
}

// kind returns the kind of a key's last hint, or 0.
func (l *hintList) kind(key string) schedule.HintKind {
	if at, ok := l.last[key]; ok {
		return l.hints[at].Kind
	}
	return 0
}

// add adds a hint.
func (l *hintList) add(h heardHint) {
	if len(l.hints) == 0 {
		l.since = time.Now()
	}
	before, ok := l.last[h.Key]
	if !ok {
		before = -1
	}
	l.last[h.Key] = len(l.hints)
	l.hints, l.prev = append(l.hints, h), append(l.prev, before)
}

// drop drops the hints of a key.
func (l *hintList) drop(key []byte) {
	if len(l.last) == 0 {
		return
	}
	at, ok := l.last[string(key)]
	if !ok {
		return
	}
	for ; at >= 0; at = l.prev[at] {
		l.hints[at] = heardHint{}
		l.dropped++
	}
	delete(l.last, string(key))
	l.tidy()
}

// dropLast drops the last hint of a key.
func (l *hintList) dropLast(key string) {
	at, ok := l.last[key]
	if !ok {
		return
	}
	if l.prev[at] >= 0 {
		l.last[key] = l.prev[at]
	} else {
		delete(l.last, key)
	}
	if at == len(l.hints)-1 { // nearly always, so that nothing piles up
		l.hints, l.prev = l.hints[:at], l.prev[:at]
	} else {
		l.hints[at] = heardHint{}
		l.dropped++
	}
	l.tidy()
}

// tidy frees the room of dropped hints once they outnumber the others.
func (l *hintList) tidy() {
	const few = 1000
	if len(l.hints) == 0 && cap(l.hints) < few {
		return // as after each timer_set
	}
	if l.dropped == len(l.hints) {
		l.clear()
	} else if l.dropped > few && l.dropped > len(l.hints)/2 {
		old := *l
		l.clear()
		for _, h := range old.all() {
			l.add(h)
		}
		l.since = old.since
	}
}

// all returns the hints except the dropped ones.
func (l *hintList) all() []heardHint {
	if l.dropped == 0 {
		return l.hints
	}
	return slices.DeleteFunc(l.hints, func(h heardHint) bool { return h.Kind == 0 })
}
