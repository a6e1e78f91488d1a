package checker

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// mostPostponed is the greatest delay, in ms, of the due time of a timer that is postponed as attempt 1 and set late.
// Its due time comes after the last claim of its key.
const mostPostponed = 60_000

// timeline is the sum of the operations on one key.
type timeline struct {
	hearing  *hearing
	holds    keyHolds
	ends     []*hold           // not ended yet, by their ends
	over     []*hold           // ended, or ending
	messages []history.Message // of the key
	firings  []*firing
	open     *firing   // the pending one, as of the last operation
	retries  []*firing // perhaps pending
	guard    guard
	// unheard is set if timerd may have missed an operation. Then timerd may also fire an older state of the key, at an
	// older due time, or without a payload.
	unheard  bool
	payloads map[string]int64 // of the key so far, with the earliest due time of each
	faults   []string         // impossible replies
}

func newTimeline(h *hearing, holds keyHolds, messages []history.Message) *timeline {
	t := &timeline{hearing: h, holds: holds, messages: messages, payloads: map[string]int64{},
		ends: slices.Clone(holds.all)}
	slices.SortStableFunc(t.ends, func(a, b *hold) int { return cmp.Compare(a.ended.from, b.ended.from) })
	return t
}

// ranOut reports whether timerd may have learned only from the expired event that a key had changed, because it missed
// a command that was invoked after a time. Then it fires the state of the key that it knows.
func (t *timeline) ranOut(m history.Message, after int64) bool {
	return m.Trigger == "expired" && slices.ContainsFunc(t.firings, func(f *firing) bool {
		return f.op.Invoked > after && f.force == may && f.from <= m.Due && f.payload != m.Payload &&
			t.payloads[m.Payload] > f.from
	})
}

// add adds the next operation.
func (t *timeline) add(op history.Op) {
	if op.Outcome == history.Failed {
		return
	}
	t.resumed(window{op.Invoked, cmp.Or(op.After, op.Ended)}) // its reply may come long after its effect
	if op.Kind == history.Retry {
		t.retry(op)
		return
	}
	if op.Outcome == history.Unknown {
		t.unknown(op)
		return
	}
	t.pass(op)
	switch op.Kind {
	case history.Timer:
		t.replaced(op)
		t.begin(op, must)
	case history.Repeat:
		t.repeated(op)
	case history.Set, history.Hash:
		t.replaced(op)
		t.begin(op, t.plain(op))
	case history.Expire:
		t.expire(op)
	case history.Del:
		t.deleted(op)
	case history.Cancel:
		t.cancelled(op)
	}
}

// pass forgets firings that became due before an operation: their keys have run out.
func (t *timeline) pass(op history.Op) {
	if t.open != nil && t.open.to < op.Before {
		t.open = nil
	}
	pending := t.retries[:0]
	for _, f := range t.retries {
		if f.to >= op.Before {
			pending = append(pending, f)
		}
	}
	t.retries = pending
}

// plain returns the kind of judgement for a firing requested by a plain command.
func (t *timeline) plain(op history.Op) force {
	if t.hearing.heard(op.After) <= op.Due {
		return must
	}
	t.unheard = true
	return may
}

// begin adds the firing that an operation requests.
func (t *timeline) begin(op history.Op, force force) {
	f := newFiring(op, op.Due, op.Due+t.hearing.delayed(op.Before, op.Due), force)
	if force == may {
		f.why = "unheard"
		// If the key has an earlier timer, the expired event may be taken for that timer's event.
		f.somehow = len(t.firings) == 0 && t.hearing.expired(op.Before, op.Due)
	}
	t.open = f
	t.note(f)
}

func (t *timeline) note(f *firing) {
	t.firings = append(t.firings, f)
	if at, ok := t.payloads[f.payload]; !ok || f.from < at {
		t.payloads[f.payload] = f.from
	}
	for _, h := range t.over { // a resume that still runs also releases timers that become due meanwhile
		t.release(f, h, false)
	}
}

// replaced ends the pending firing, which an operation replaces.
func (t *timeline) replaced(op history.Op) {
	t.end(op, "replaced by "+string(op.Kind))
	for _, f := range t.retries {
		f.free("set again while the retry was on its way")
	}
	t.retries = nil
}

// end ends the pending firing by an operation.
func (t *timeline) end(op history.Op, why string) {
	f := t.open
	t.open = nil
	if f == nil {
		return
	}
	atomic := op.Kind == history.Timer || op.Kind == history.Cancel
	switch {
	case f.from <= op.After+1:
		f.free("due at the moment of " + string(op.Kind))
	case atomic, t.hearing.heardAtOnce(op.After) && op.After+hearTime <= f.from:
		f.forbid(why + " at " + strconv.FormatInt(op.After, 10))
	default:
		f.free("unheard " + string(op.Kind))
		t.unheard = true
	}
}

func (t *timeline) expire(op history.Op) {
	f := t.open
	if op.Reply != "1" {
		if t.keyGone(op) {
			return
		}
		// It ran out just now, or the key is not in the state of the history.
		if f != nil && f.from > op.After+1 && !t.hearing.failover(f.op.Ended, op.Ended) {
			t.faults = append(t.faults, "PEXPIRE found no key, which was due at "+strconv.FormatInt(f.from, 10))
		}
		t.abandon(op)
		return
	}
	if f == nil {
		t.unheard = true
		for _, r := range slices.Clone(t.retries) { // one of them is in the key
			r.free("perhaps moved by expire")
			t.retries = append(t.retries, t.moved(r, op))
		}
		return
	}
	t.end(op, "replaced by expire")
	op.Payload, op.Status, op.Attempt, op.Late, op.Drop = f.payload, f.status, f.attempt, f.late, f.drop
	op.Guard = f.guard
	t.begin(op, t.plain(op))
}

// moved adds the firing that replaces another one, if an operation has moved that one.
func (t *timeline) moved(f *firing, op history.Op) *firing {
	op.Payload, op.Status, op.Attempt, op.Late, op.Drop = f.payload, f.status, f.attempt, f.late, f.drop
	op.Guard = f.guard
	to := newFiring(op, op.Due, op.Due+t.hearing.delayed(op.Before, op.Due), may)
	to.origin, to.why = f.origin, "perhaps moved by expire"
	t.note(to)
	return to
}

// keyGone reports whether an operation found no key although the timer is pending, because Redis had dropped the key.
// The timer fires all the same.
func (t *timeline) keyGone(op history.Op) bool {
	return op.Reply == "0" && t.open != nil && t.open.from > op.After+1 &&
		overlaps(t.hearing.gone, t.open.op.Ended, op.Ended)
}

func (t *timeline) deleted(op history.Op) {
	for _, f := range t.retries {
		f.free("deleted while the retry was on its way")
		t.unheard = true
	}
	t.retries = nil
	if !t.keyGone(op) {
		t.end(op, "deleted")
	}
}

func (t *timeline) cancelled(op history.Op) {
	f, retries, held := t.open, t.retries, t.heldDuring(op)
	t.open, t.retries = nil, nil
	for _, f := range t.firings {
		f.somehow = false
	}
	switch op.Reply {
	case "cancelled":
		// The reply does not name the cancelled timer, but after it none of the key's timers is pending.
		for _, r := range retries {
			if f == nil && len(retries) == 1 && r.from > op.After+1 && !t.unheard {
				r.forbid("cancelled at " + strconv.FormatInt(op.After, 10))
			} else {
				r.free("cancelled perhaps")
			}
		}
		t.open = f
		t.end(op, "cancelled")
		for _, h := range held {
			h.forbid("cancelled at " + strconv.FormatInt(op.After, 10) + " while it was held")
		}
		t.freeLate(op.Before, op.After+1)
	default:
		for _, h := range held {
			t.faults = append(t.faults,
				"timer_cancel answered "+op.Reply+" for a timer that was held, due at "+strconv.FormatInt(h.from, 10))
			h.free("cancelled with a wrong answer")
		}
		for _, r := range retries {
			r.free("cancelled while the retry was on its way")
		}
		if f == nil {
			return
		}
		if f.force == may && overlaps(t.hearing.gone, f.op.Ended, op.Ended) {
			return // Redis dropped a key that timerd had not heard of
		}
		if f.from > op.After+1 && !t.hearing.failover(f.op.Ended, op.Ended) {
			t.faults = append(t.faults, "timer_cancel answered "+op.Reply+" for a timer due at "+strconv.FormatInt(
				f.from, 10))
		}
		if f.from > op.After+1 {
			f.free("cancelled with a wrong answer")
		}
	}
}

// freeLate makes firings optional that were due by a time and had no stored message before a cancellation: they may
// have been owed, and so cancelled with the pending timer. See judge.settled.
func (t *timeline) freeLate(cancelled, due int64) {
	for _, f := range t.firings {
		if !f.dead && f.force == must && f.from <= due && !t.fired(f, cancelled) {
			f.free("due, and perhaps cancelled before it was claimed")
			f.freed = cancelled
		}
	}
}

// unknown adds an operation with an unknown outcome: it may have taken effect, and may still do so.
func (t *timeline) unknown(op history.Op) {
	if f := t.open; f != nil && f.to >= op.Invoked {
		if op.Kind == history.Expire {
			op.Payload, op.Attempt, op.Late, op.Drop, op.Guard = f.payload, f.attempt, f.late, f.drop, f.guard
		}
		t.abandon(op)
	}
	for _, f := range t.retries {
		f.free("unknown " + string(op.Kind))
	}
	t.retries = nil
	t.unheard = true
	if op.Kind == history.Cancel {
		t.freeLate(op.Invoked, op.Ended+effectDelay)
	}
	if op.Payload == "" {
		return
	}
	if op.Kind == history.Repeat {
		op.Due = op.At
		t.repeated(op)
		return
	}
	f := newFiring(op, op.Invoked+op.TTL, op.Ended+effectDelay+op.TTL, may)
	f.why = "unknown"
	if op.At != 0 {
		f.setDues(window{op.At, op.At})
	}
	t.note(f)
}

// abandon makes the pending firing optional.
func (t *timeline) abandon(op history.Op) {
	if t.open != nil {
		t.open.free("perhaps changed by " + string(op.Kind))
		t.open = nil
	}
	t.unheard = true
}

// retry adds a retry request. JetStream counts the delay from the time at which it stored the request, which lies
// within the operation.
func (t *timeline) retry(op history.Op) {
	from, to := op.Invoked+op.TTL, op.Ended+op.TTL+1
	if op.Outcome == history.Unknown {
		to += effectDelay
	}
	f := newFiring(op, from, to, must)
	f.attempt, f.origin = op.Attempt+1, op.Origin
	if op.Postponed {
		f.attempt = op.Attempt
		if op.Attempt == 1 {
			f.setDues(window{from, to + mostPostponed})
		}
	}
	switch {
	case op.Outcome == history.Unknown:
		f.free("unknown")
	case t.hearing.failover(op.Invoked-hearTime, op.Ended+hearTime):
		f.free("a failover may lose it")
	}
	t.inherit(f)
	if op.Refused || op.Attempt >= op.Max && !op.Postponed {
		// The dead letter is the event as it was published for retry.
		f.dead, f.attempt = true, op.Attempt
		f.setDues(window{op.Due, op.Due})
	} else {
		t.retries = append(t.retries, f)
	}
	t.note(f)
}

// inherit gives a retry the limit and the guard of its earlier firing. If the key ran out after a missed command, the
// event has neither the requested payload nor the requested due time. Then both are those of the namespace.
func (t *timeline) inherit(f *firing) {
	for _, before := range t.firings {
		same := (before.payload == f.op.Payload || f.op.Payload == "") && before.isDue(f.op.Due, 2)
		unheard := f.op.Status == event.StatusMissing && !before.op.Own && before.mayRunOut(f.op.Due)
		if !before.dead && before.attempt == f.op.Attempt && (same || unheard) {
			f.late, f.drop, f.guard = before.late, before.drop, before.guard
		}
	}
}
