package producers

import (
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// ownGuard reports whether the life's timers are set with a guard; others have that of TIMERD_GUARD, or none.
func (l *life) ownGuard() bool { return l.guard != "" && l.module != history.ModuleKept }

// guarded is a timer with a guard, which is set, removed and expires before, at and after the due time.
func (l *life) guarded() {
	l.guard = history.Unless
	if l.module != history.ModuleKept && l.random.IntN(3) == 0 {
		l.guard = history.If
	}
	there := l.guard == history.If
	if there != (l.random.IntN(3) == 0) && !l.toggle(&there) {
		return
	}
	switch l.random.IntN(8) {
	case 0:
		l.repeat(l.between(100, 1500), l.between(500, 3000), l.random.IntN(3) > 0, 2+l.random.Int64N(8))
		for range l.random.IntN(4) {
			pause(l.between(300, 4000))
			if !l.toggle(&there) {
				return
			}
		}
	case 1, 2:
		l.guardedRetry(&there)
	case 3:
		if l.set(l.kind(), l.between(500, 4000)) && l.toggle(&there) {
			l.part()
			l.change(history.Cancel)
		}
	default:
		l.guardedOnce(&there)
	}
}

// toggle sets the guard, perhaps for a time, or removes it. It reports whether that certainly worked.
func (l *life) toggle(there *bool) bool {
	op := history.Op{Key: l.key, Kind: history.DelGuard}
	if *there = !*there; *there {
		op.Kind = history.SetGuard
		if l.random.IntN(2) == 0 {
			op.TTL = l.between(100, 5000).Milliseconds()
		}
	}
	return l.do(op).Outcome == history.OK
}

// guardedOnce is a timer that is moved now and then, and whose guard changes up to two times, at about the due time or
// at any other.
func (l *life) guardedOnce(there *bool) {
	ok := l.set(l.kind(), l.between(300, 5000))
	for range l.random.IntN(3) {
		if !ok {
			return
		}
		switch l.random.IntN(5) {
		case 0, 1:
			l.until(l.between(-20, 60))
		case 2:
			l.until(l.between(60, 4000))
		default:
			l.part()
		}
		if ok = l.toggle(there); ok && l.random.IntN(4) == 0 {
			op := l.do(history.Op{Key: l.key, Kind: history.Expire, TTL: l.long().Milliseconds()})
			if ok = op.Outcome == history.OK && op.Reply == "1"; ok {
				l.last = op
			}
		}
	}
}

// guardedRetry is a timer whose consumer fails; the guard changes before the retry.
func (l *life) guardedRetry(there *bool) {
	events := l.inbox.expect(l.key)
	defer l.inbox.forget(l.key)
	if !l.set(l.kind(), l.between(300, 3000)) {
		return
	}
	for range 1 + l.random.IntN(2) {
		e, ok := l.await(events)
		if !ok {
			return
		}
		delay, by := l.delay(e)
		if !l.retry(l.ctx, e, delay, by) {
			return
		}
		l.last.Due = time.Now().Add(delay).UnixMilli()
		if l.random.IntN(2) == 0 && !l.toggle(there) {
			return
		}
	}
}
