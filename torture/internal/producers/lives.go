package producers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// life is one key, with its operations one after the other.
type life struct {
	*Producers
	ctx    context.Context
	random *rand.Rand
	n      int // its number
	ops    int // operations so far
	key    string
	module string
	late   int64      // limit on lateness of its timers of timer_set, in ms; 0 for none of their own
	drop   bool       // a late timer is dropped
	guard  string     // of its timers; "" for none
	last   history.Op // the last one that set the timer
}

// tale is a kind of life.
type tale struct {
	name        string
	weight      int
	app, module string
	tell        func()
}

func (l *life) tales() []tale {
	return []tale{
		{"single", 30, history.MainApp, moduleRun, func() { l.set(l.kind(), l.long()) }},
		{"short", 10, history.MainApp, moduleRun, func() { l.set(history.Timer, l.between(50, 1000)) }},
		{"elsewhere", 8, history.ElsewhereApp, moduleRun, l.elsewhere},
		{"counted", 6, history.MainApp, moduleRun, l.counted},
		{"moved", 14, history.MainApp, moduleRun, l.moved},
		{"cancelled", 14, history.MainApp, moduleRun, l.cancelled},
		{"late", 4, history.MainApp, moduleRun, l.cancelledLate},
		{"edge", 10, history.MainApp, moduleRun, l.edge},
		{"again", 6, history.MainApp, moduleRun, l.again},
		{"retried", 12, history.MainApp, moduleRun, l.retried},
		{"beside", 4, history.MainApp, moduleRun, l.beside},
		{"dead", 4, history.DyingApp, moduleBrief, l.dead},
		{"single", 3, history.NarrowApp, moduleRun, func() { l.set(l.kind(), l.long()) }},
		{"moved", 2, history.NarrowApp, moduleRun, l.moved},
		{"cancelled", 2, history.NarrowApp, moduleRun, l.cancelled},
		{"again", 1, history.NarrowApp, moduleRun, l.again},
		{"retried", 2, history.NarrowApp, moduleRun, l.retried},
		{"single", 4, history.DeniedApp, moduleRun, func() { l.set(l.kind(), l.long()) }},
		{"moved", 2, history.DeniedApp, moduleRun, l.moved},
		{"cancelled", 2, history.DeniedApp, moduleRun, l.cancelled},
		{"retried", 2, history.DeniedApp, moduleRun, l.retried},
		{"giant", 1, history.GiantApp, moduleRun, l.giant},
		{"limited", 8, history.MainApp, moduleRun, l.limited},
		{"repeated", 6, history.MainApp, moduleRun, l.repeated},
		{"guarded", 14, history.MainApp, moduleRun, l.guarded},
		{"guarded", 8, history.MainApp, history.ModuleKept, l.guarded},
		{"guarded", 1, history.NarrowApp, moduleRun, l.guarded},
		{"guarded", 1, history.NarrowApp, history.ModuleKept, l.guarded},
		{"guarded", 2, history.HeldApp, history.ModuleKept, l.guarded},
		{"any", 4, history.MainApp, modulePrompt, l.any},
		{"any", 4, history.MainApp, moduleFleeting, l.any},
		{"any", 12, history.HeldApp, moduleRun, l.any},
		{"edge", 2, history.HeldApp, moduleRun, l.edge},
		{"beside", 2, history.HeldApp, moduleRun, l.beside},
		{"forgone", 6, history.HeldApp, moduleRun, l.forgone},
		{"limited", 5, history.HeldApp, moduleRun, l.limited},
		{"any", 2, history.HeldApp, modulePrompt, l.any},
		{"any", 2, history.HeldApp, moduleFleeting, l.any},
		{"dead", 1, history.HeldApp, moduleBrief, l.dead},
		{"call", 16, history.HookApp, moduleCall, l.hook},
		{"call", 4, history.HookApp, moduleBrief, l.hook},
		{"call", 4, history.HookApp, history.ModuleFixed, l.hook},
	}
}

// name gives the life a key of its tale.
func (l *life) name(t tale) {
	l.key, l.module = fmt.Sprintf("%s:%s:%s:%d", t.app, t.module, t.name, l.n), t.module
	if t.name == "guarded" {
		l.key = fmt.Sprintf("%s:%s:%s:{%d}", t.app, t.module, t.name, l.n) // see history.GuardKey
	}
}

// between returns a time between two, in ms.
func (l *life) between(from, to int64) time.Duration {
	return time.Duration(from+l.random.Int64N(to-from+1)) * time.Millisecond
}

// long returns the delay of a timer: mostly a few seconds.
func (l *life) long() time.Duration {
	most := l.MaxDelay.Milliseconds()
	if l.random.IntN(3) > 0 {
		most = min(most, 5000)
	}
	return l.between(300, most)
}

// kind returns a kind of operation that sets a timer.
func (l *life) kind() history.Kind {
	switch n := l.random.IntN(20); {
	case n < 9 || l.ownGuard():
		return history.Timer
	case n < 18:
		return history.Set
	default:
		return history.Hash
	}
}

// set sets the timer with a new payload, and reports whether it certainly worked.
func (l *life) set(kind history.Kind, ttl time.Duration) bool {
	value := fmt.Sprintf("%d-%d", l.n, l.ops)
	switch {
	case kind == history.Hash:
		value = hashPayload(value)
	case l.random.IntN(2) == 0:
		value = `{"order":"` + value + `"}`
	}
	return l.setTo(kind, ttl, value, 1)
}

// setTo sets the timer. It repeats a timer_set with an unknown outcome, with the same due time, as a careful user
// would.
func (l *life) setTo(kind history.Kind, ttl time.Duration, payload string, attempt int) bool {
	op := history.Op{Key: l.key, Kind: kind, Payload: payload, Attempt: attempt, TTL: ttl.Milliseconds(),
		Guard: l.guard, OwnGuard: l.ownGuard()}
	switch {
	case kind == history.Timer && l.late != 0:
		op.Late, op.Drop, op.Own = l.late, l.drop, true
	case l.module == modulePrompt, l.module == moduleFleeting:
		op.Late, op.Drop = limit.Milliseconds(), l.module == moduleFleeting
	}
	if kind == history.Timer && l.random.IntN(2) == 0 {
		op.At, op.TTL = time.Now().Add(ttl).UnixMilli(), 0
	}
	done := l.do(op)
	careful := op.At != 0 && done.Outcome == history.Unknown
	for careful && done.Outcome != history.OK && time.Now().UnixMilli() < op.At {
		pause(retryPause)
		done = l.do(op)
	}
	l.last = done
	// A call that still waits in a queue must not meet other operations on this key.
	return done.Outcome == history.OK && !careful
}

func (l *life) do(op history.Op) history.Op {
	l.ops++
	return l.on(l.ctx, op)
}

// change changes the key without setting a timer, and reports whether that certainly worked.
func (l *life) change(kind history.Kind) bool {
	return l.do(history.Op{Key: l.key, Kind: kind}).Outcome == history.OK
}

// until waits until a time span before, or after, the timer's due time, by Redis's clock.
func (l *life) until(after time.Duration) {
	pause(time.Until(time.UnixMilli(l.last.Due).Add(after)))
}

// part waits for a fraction of the timer's delay.
func (l *life) part() {
	left := time.Until(time.UnixMilli(l.last.Due))
	pause(time.Duration(l.random.Float64() * 0.8 * float64(left)))
}

// elsewhere is a timer outside the namespaces. Only the function library makes such timers.
func (l *life) elsewhere() {
	if l.set(history.Timer, l.long()) && l.random.IntN(3) == 0 {
		l.part()
		l.change(history.Cancel)
	}
}

// counted is a timer whose payload or call states an attempt.
func (l *life) counted() {
	attempt := 2 + l.random.IntN(9)
	value := fmt.Sprintf("%d", l.n)
	switch l.random.IntN(3) {
	case 0:
		l.setTo(history.Timer, l.long(), value, attempt)
	case 1:
		l.setTo(history.Timer, l.long(), counting(value, attempt), firesAs(attempt))
	default:
		l.setTo(history.Set, l.long(), counting(value, attempt), firesAs(attempt))
	}
}

// moved is a timer that is rescheduled.
func (l *life) moved() {
	ok := l.set(l.kind(), l.between(1500, 6000))
	for range 1 + l.random.IntN(3) {
		if !ok {
			return
		}
		l.part()
		ttl := l.long()
		if l.random.IntN(2) == 0 {
			ok = l.set(l.kind(), ttl)
			continue
		}
		op := l.do(history.Op{Key: l.key, Kind: history.Expire, TTL: ttl.Milliseconds()})
		if ok = op.Outcome == history.OK && op.Reply == "1"; ok {
			l.last = op
		}
	}
}

// end cancels the timer in one of two ways.
func (l *life) end() bool {
	if l.random.IntN(3) == 0 {
		return l.change(history.Del)
	}
	return l.change(history.Cancel)
}

// cancelled is a timer that is cancelled, and sometimes set again after that.
func (l *life) cancelled() {
	if !l.set(l.kind(), l.between(500, 8000)) {
		return
	}
	l.part()
	if l.end() && l.random.IntN(3) == 0 {
		l.set(l.kind(), l.long())
	}
}

// cancelledLate is a timer that is cancelled just before or just after its due time.
func (l *life) cancelledLate() {
	if l.set(l.kind(), l.between(500, 3000)) {
		l.until(l.between(-30, 300))
		l.change(history.Cancel)
	}
}

// forgone is a timer that is cancelled up to 6 s after its due time. A hold may still keep it then.
func (l *life) forgone() {
	if l.set(l.kind(), l.between(300, 3000)) {
		l.until(l.between(0, 6000))
		l.change(history.Cancel)
	}
}

// limited is a timer with its own limit on lateness.
func (l *life) limited() {
	l.late, l.drop = []int64{500, 2500, 6000}[l.random.IntN(3)], l.random.IntN(2) == 0
	l.any()
}

// any is an ordinary timer.
func (l *life) any() {
	switch l.random.IntN(5) {
	case 0:
		l.moved()
	case 1:
		l.cancelled()
	case 2:
		l.retried()
	default:
		l.set(l.kind(), l.long())
	}
}

// repeated is a timer that repeats some times.
func (l *life) repeated() {
	l.repeat(l.between(100, 1500), l.between(500, 3000), l.random.IntN(3) > 0, 2+l.random.Int64N(8))
}

// repeat sets a repeating timer with a number of repetitions. It repeats a call with an unknown outcome, with the same
// grid.
func (l *life) repeat(every, first time.Duration, catchUp bool, times int64) {
	op := history.Op{
		Key: l.key, Kind: history.Repeat, Payload: fmt.Sprintf("%d-repeated", l.n), Attempt: 1,
		At: time.Now().Add(first).UnixMilli(), Every: every.Milliseconds(), CatchUp: catchUp,
		Guard: l.guard, OwnGuard: l.ownGuard(),
	}
	op.Until = op.At + op.Every*times
	for l.do(op).Outcome != history.OK && time.Now().UnixMilli() < op.At {
		pause(retryPause)
	}
}

// edge is a key that is set again at about the time it runs out, twice.
func (l *life) edge() {
	ok := l.set(l.kind(), l.between(800, 3000))
	for range 1 + l.random.IntN(2) {
		if !ok {
			return
		}
		l.until(l.between(-20, 60))
		ok = l.set(l.kind(), l.between(800, 3000))
	}
}

// patience is a consumer's wait for a due event.
const patience = 15 * time.Second

// await waits for the next event of the key.
func (l *life) await(events <-chan received) (received, bool) {
	late := time.NewTimer(time.Until(time.UnixMilli(l.last.Due)) + patience)
	defer late.Stop()
	select {
	case e := <-events:
		return e, true
	case <-late.C:
		return received{}, false
	}
}

// again is a key that is set again after its timer has fired.
func (l *life) again() {
	events := l.inbox.expect(l.key)
	defer l.inbox.forget(l.key)
	for range 2 + l.random.IntN(2) {
		if !l.set(l.kind(), l.long()) {
			return
		}
		if _, ok := l.await(events); !ok {
			return
		}
	}
}

// delay returns the delay of an event's retry, and the request for it.
func (l *life) delay(e received) (time.Duration, asking) {
	if all := delays(); l.random.IntN(3) == 0 && e.Attempt <= len(all) {
		return all[e.Attempt-1], policy
	}
	return l.between(0, 3000), delayed + asking(l.random.IntN(2))
}

// retried is a timer whose consumer fails, and which is sometimes cancelled.
func (l *life) retried() {
	events := l.inbox.expect(l.key)
	defer l.inbox.forget(l.key)
	if !l.set(l.kind(), l.between(300, 3000)) {
		return
	}
	for range 1 + l.random.IntN(3) {
		e, ok := l.await(events)
		if !ok {
			return
		}
		delay, by := l.delay(e)
		if !l.retry(l.ctx, e, delay, by) {
			return
		}
		l.last.Due = time.Now().Add(delay).UnixMilli()
		if delay > time.Second && l.random.IntN(4) == 0 {
			pause(delay / 2)
			l.change(history.Cancel)
			return
		}
	}
}

// beside is a timer that is set again before the retry of the earlier one.
func (l *life) beside() {
	events := l.inbox.expect(l.key)
	defer l.inbox.forget(l.key)
	if !l.set(l.kind(), l.between(300, 2000)) {
		return
	}
	if e, ok := l.await(events); ok && l.set(l.kind(), l.between(2000, 6000)) {
		delay, by := l.delay(e)
		l.retry(l.ctx, e, delay, by)
	}
}

// dead is a timer whose attempts are used up.
func (l *life) dead() {
	events := l.inbox.expect(l.key)
	defer l.inbox.forget(l.key)
	if !l.set(history.Timer, l.between(300, 2000)) {
		return
	}
	for {
		e, ok := l.await(events)
		if !ok || !l.retry(l.ctx, e, l.between(100, 1000), delayed) || e.Attempt >= e.MaxAttempts {
			return
		}
		l.last.Due = time.Now().UnixMilli() + 1000
	}
}
