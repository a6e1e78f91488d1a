// Package checker judges the history of a torture run: it compares required and possible firings with the actual ones.
// It is a pure function of the history.
//
// It is strict where timerd makes a promise. It is lenient where the outcome of an operation is unknown, or where
// docs/guarantees.md names a limit: for example if timerd could not receive the event of a plain command before its due
// time because of a fault. timer_set and timer_cancel need no events, so that excuse does not apply to them.
package checker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// Judge judges a history.
func Judge(h *history.History) *Report {
	r := &Report{
		Run: h.Run, Drained: h.End.Drained, Messages: len(h.Messages),
		Judged: map[history.Kind]int{}, Ops: map[history.Kind]map[history.Outcome]int{}, Faults: map[string]int{},
		Innocents: Innocents{Beside: map[string][]int64{}}, Repeating: Innocents{Beside: map[string][]int64{}},
		Holds: map[history.HoldKind]map[history.Outcome]int{},
	}
	j := &judge{
		report: r, h: h, ops: map[string][]history.Op{}, guards: map[string][]history.Op{},
		messages: map[string][]history.Message{},
		released: map[*hold][]released{},
	}
	for _, f := range h.Faults {
		r.Faults[f.Kind]++
		if f.Ready == 0 {
			r.Unready = append(r.Unready, f)
		}
	}
	for _, op := range h.Ops {
		count(r.Ops, op.Kind, op.Outcome)
		if op.Kind == history.SetGuard || op.Kind == history.DelGuard {
			j.guards[op.Key] = append(j.guards[op.Key], op)
			continue
		}
		j.ops[op.Key] = append(j.ops[op.Key], op)
	}
	for _, m := range h.Messages {
		if m.Batch {
			r.Batched++
		}
		if m.Fault != "" {
			j.fault(Malformed, m.Key, "%s %d: %s", m.Stream, m.Seq, m.Fault)
			continue
		}
		j.messages[m.Key] = append(j.messages[m.Key], m)
	}
	j.ids()
	hearing := newHearing(h)
	j.holds = newHolds(h, hearing.failovers)
	for _, op := range h.Holds {
		count(r.Holds, op.Kind, op.Outcome)
		if op.Unlisted && (!op.Unsafe || !overlaps(hearing.failovers, op.Invoked, op.Ended+hearTime)) {
			j.fault(WrongReply, op.Namespace, "%s at %d said that it is held, and it is not in the list of holds",
				op.Kind, op.Invoked)
		}
	}
	all := map[string]bool{}
	for key := range j.ops {
		all[key] = true
	}
	for key := range j.messages {
		all[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		t := newTimeline(hearing.of(key, h.Faults), holdsOf(key, j.holds), j.firsts(key))
		for _, op := range j.ops[key] {
			t.add(op)
		}
		t.resumed(window{never, never})
		t.guard = newGuard(j.guards[key], t.hearing)
		j.key(key, t)
	}
	j.resumes()
	j.innocents(&r.Innocents, "timers")
	j.innocents(&r.Repeating, "occurrences of timers that repeat")
	j.webhooks(hearing)
	if h.End.Account != "" {
		r.Violations = append(r.Violations, Violation{Class: Account, Text: h.End.Account})
	}
	return r
}

// count counts an operation by kind and outcome.
func count[K comparable](all map[K]map[history.Outcome]int, kind K, outcome history.Outcome) {
	if all[kind] == nil {
		all[kind] = map[history.Outcome]int{}
	}
	all[kind][outcome]++
}

type judge struct {
	report   *Report
	h        *history.History
	ops      map[string][]history.Op
	guards   map[string][]history.Op // on the guards of timers, by the timers' keys
	messages map[string][]history.Message
	times    []int64 // at which NATS stored messages, sorted
	holds    []*hold
	released map[*hold][]released // by hold, if there is a rule for all of its firings
}

func (j *judge) fault(class Class, key, format string, args ...any) {
	j.report.Violations = append(j.report.Violations,
		Violation{Class: class, Key: key, Text: fmt.Sprintf(format, args...), Tale: j.tale(key)})
}

// ids checks that no stream holds an id twice. Only an outage longer than JetStream's duplicate window would excuse
// that, and a run is shorter.
func (j *judge) ids() {
	type place struct{ stream, id string }
	seen := map[place]uint64{}
	for _, m := range j.h.Messages {
		p := place{m.Stream, m.ID}
		if first, ok := seen[p]; ok {
			j.fault(Duplicate, m.Key, "%s has id %s at %d and at %d", m.Stream, m.ID, first, m.Seq)
			continue
		}
		seen[p] = m.Seq
	}
}

// key judges one key.
func (j *judge) key(key string, t *timeline) {
	for _, text := range t.faults {
		j.fault(WrongReply, key, "%s", text)
	}
	for _, f := range t.firings {
		if f.freed != 0 && f.force == may && !slices.ContainsFunc(t.messages, f.isOf) && j.settled(key, f) {
			f.force = must
		}
	}
	for _, f := range t.firings {
		f.stopped = j.mayBeGuarded(key, t, f)
	}
	spare := j.match(t, t.messages)
	for _, m := range spare {
		j.stray(key, t, m)
	}
	for _, f := range t.firings {
		j.firing(key, t, f, spare)
	}
	j.occurrences(key)
}

// match assigns messages, by due time, to their firings, and returns the messages without a firing. If firings have the
// same due time, a required one gets its message first.
func (j *judge) match(t *timeline, messages []history.Message) (spare []history.Message) {
	ids := map[string]bool{}
	byDue := func(a, b history.Message) int { return cmp.Compare(a.Due, b.Due) }
	for _, m := range slices.SortedStableFunc(slices.Values(messages), byDue) {
		if ids[m.Stream+m.ID] {
			continue // reported already
		}
		ids[m.Stream+m.ID] = true
		var best *firing
		for _, f := range t.firings {
			if f.matches(m) && (best == nil || rank(f, m) > rank(best, m)) {
				best = f
			}
		}
		if best == nil {
			spare = append(spare, m)
			continue
		}
		best.seen = append(best.seen, m)
	}
	return spare
}

// rank returns how well one more message fits a firing. The exact due time counts most, because some firings have
// almost the same due time. A due time at which the firing is due for certain counts more than a possible one, and a
// firing that its guard may have stopped counts less: otherwise the occurrences of a repetition after one that was
// stopped would each count as the one before.
func rank(f *firing, m history.Message) int {
	rank := map[force]int{must: 6, may: 4, mustNot: 2}[f.force]
	if f.stopped {
		rank--
	}
	if len(f.seen) > 0 {
		rank -= 20 // even at its exact due time: an expected firing may have moved by a ms
	}
	if f.isDue(m.Due, 0) {
		rank += 10
	}
	if f.from == m.Due {
		rank += 5
	}
	return rank
}

// firing judges one firing with its messages.
func (j *judge) firing(key string, t *timeline, f *firing, spare []history.Message) {
	switch f.force {
	case must:
		j.report.Strict++
		j.report.Judged[f.op.Kind]++
	case mustNot:
		j.report.Forbidden++
	default:
		j.report.Lenient++
	}
	// A wrong message of the same due time has been reported.
	garbled := slices.ContainsFunc(spare, func(m history.Message) bool {
		return f.isOf(m)
	})
	dropped := f.drop && j.excused(key, f) || f.stopped
	if f.force == must && len(f.seen) == 0 && !garbled && !dropped {
		j.fault(Lost, key, "%s, due at %d with %q as attempt %d", f.op.Kind, f.from, f.payload, f.attempt)
	}
	if f.somehow && len(f.seen) == 0 && !dropped && !slices.ContainsFunc(spare, f.ranOut) {
		j.fault(Lost, key, "%s, due at %d with %q, not even without its payload", f.op.Kind, f.from, f.payload)
	}
	if f.force == mustNot && len(f.seen) > 0 {
		j.fault(Resurrected, key, "%s fired, %s", f.seen[0].ID, f.why)
	}
	var first *history.Message
	for _, m := range f.seen {
		due := f.from
		if t.ranOut(m, f.op.Invoked) {
			due = m.Due // timerd has not heard the command that shortened the TTL
		}
		j.message(key, m, due)
		switch {
		case isBeside(m):
		case first == nil:
			first = &m
		case j.isForgotten(*first, m):
		case f.force == must || m.Due == first.Due:
			j.fault(Duplicate, key, "%s and %s are one firing", first.ID, m.ID)
		}
	}
	j.ends(key, t, f)
	if f.force == must && len(f.seen) > 0 {
		j.neighbour(key, f.seen[0])
	}
}

// message judges one message of a firing. due is the firing's due time.
func (j *judge) message(key string, m history.Message, due int64) {
	if m.Stream != history.FiredStream {
		return
	}
	if due = max(due, m.Due); m.Time < due || m.Stored < due {
		j.fault(Early, key, "%s: due at %d, its time %d, stored at %d", m.ID, due, m.Time, m.Stored)
	}
	j.report.Lateness = append(j.report.Lateness, Sample{m.Stored - m.Due, j.phase(m)})
}

// A due time counts as within a fault from before ms before the fault to after ms after it: firings were on their way
// when the fault began, or came due before timerd noticed that it was not ready.
const before, after = 100, 2000

// phase returns the kind of the latest fault that concerns a message and includes its due time.
func (j *judge) phase(m history.Message) string {
	phase, from := Calm, int64(0)
	for _, f := range j.h.Faults {
		if !f.Seen && concerns(f, m.Key) && j.during(f, m.Due, m.Due) && f.From >= from {
			phase, from = f.Kind, f.From
		}
	}
	return phase
}

// stray judges a message without a firing.
func (j *judge) stray(key string, t *timeline, m history.Message) {
	if m.Stream == history.FiredStream && (m.Time < m.Due || m.Stored < m.Due) {
		j.fault(Early, key, "%s: its time %d, stored at %d", m.ID, m.Time, m.Stored)
		return
	}
	for _, f := range t.firings {
		if !f.isOf(m) || f.force != must || m.Payload != f.payload && f.cameApartFrom(m) {
			continue
		}
		switch {
		case m.Payload != f.payload || m.Status != f.status:
			j.fault(WrongPayload, key, "%s: %q %s, want %q", m.ID, m.Payload, m.Status, f.payload)
		default:
			j.fault(WrongAttempt, key, "%s: attempt %d of %q, want %d of %q", m.ID, m.Attempt, m.Origin, f.attempt,
				f.origin)
		}
		return
	}
	from, known := t.payloads[m.Payload]
	switch {
	case t.unheard && m.Status != "":
		j.report.Unjudged++
	case known && m.Stored < from && !t.ranOut(m, 0):
		j.fault(Early, key, "%s has %q, stored at %d, due at %d", m.ID, m.Payload, m.Stored, from)
	case t.unheard && known:
		j.report.Unjudged++
	case known && slices.ContainsFunc(t.firings, func(f *firing) bool {
		return f.payload == m.Payload &&
			len(f.seen) > 0
	}):
		j.fault(Duplicate, key, "%s is a firing with %q that came under another id too", m.ID, m.Payload)
	default:
		j.fault(Unexpected, key, "%s: attempt %d, %q %s %s", m.ID, m.Attempt, m.Payload, m.Status, m.Reason)
	}
}

// tale returns the known history of a key, in order of time.
func (j *judge) tale(key string) []string {
	type line struct {
		at   int64
		text string
	}
	var lines []line
	first, last := j.h.End.At, int64(0)
	for _, op := range append(slices.Clone(j.ops[key]), j.guards[key]...) {
		first, last = min(first, op.Invoked), max(last, op.Ended, op.Due)
		lines = append(lines,
			line{op.Invoked, fmt.Sprintf("%s %q attempt %d, ttl %d, pxat %d, every %d: %s %s %s; ran %d-%d, due %d",
				op.Kind, op.Payload, op.Attempt, op.TTL, op.At, op.Every, op.Outcome, op.Reply, op.Error, op.Before,
				op.After, op.Due)})
	}
	for _, m := range j.messages[key] {
		last = max(last, m.Stored)
		lines = append(lines, line{m.Stored, fmt.Sprintf("stored %s %d: %s %q %s attempt %d, due %d, time %d, %s %s",
			m.Stream, m.Seq, m.ID, m.Payload, m.Status, m.Attempt, m.Due, m.Time, m.Trigger, m.Reason)})
	}
	for _, c := range j.h.Calls {
		if c.Key == key {
			last = max(last, c.Answered)
			lines = append(lines, line{c.At, fmt.Sprintf("called %s%s by deliverer %d.%d: %s attempt %d, %s %d at %d",
				c.Host, c.Path, c.Deliverer, c.Start, c.EventID, c.Attempt, c.Fault, c.Status, c.Answered)})
		}
	}
	for _, r := range j.h.Deliveries {
		if r.Key == key {
			last = max(last, r.Stored)
			lines = append(lines, line{r.Time, fmt.Sprintf("delivery %s %s attempt %d to %s: %d %s, took %d, stored %d",
				r.Result, r.ID, r.Attempt, r.Host, r.Status, r.Error, r.Took, r.Stored)})
		}
	}
	for _, op := range j.h.Holds {
		if history.Matches(op.Namespace, key) && op.Invoked <= last && first-aftermath <= op.Ended {
			lines = append(lines, line{op.Invoked, fmt.Sprintf("%s %s, for %d, rate %d: %s %s; until %d, since %d",
				op.Kind, op.Namespace, op.For, op.Rate, op.Outcome, op.Error, op.Ended, op.Since)})
		}
	}
	for _, f := range j.h.Faults {
		if f.From <= last && first <= max(f.Hearing, f.Ready) {
			lines = append(lines,
				line{f.From, fmt.Sprintf(
					"fault: %s of timerds %v slots %v %s deliverers %v, healed %d, hearing %d, ready %d", f.Kind,
					f.Timerds,
					f.Slots, f.Host, f.Deliverers, f.Healed, f.Hearing, f.Ready)})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = fmt.Sprintf("%d %s", l.at, strings.TrimSpace(l.text))
	}
	return out
}
