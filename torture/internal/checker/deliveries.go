package checker

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// logged checks that the log has a record of each answered call and of each event, and no other records. timerd deliver
// writes the record first, before it acts on the result. So a call may lack its record only if the process was killed
// before that.
func (w *hooks) logged(o *origin) {
	used := make([]bool, len(o.records))
	take := func(fits func(history.Delivery) bool) bool {
		first := -1 // the earliest that fits: later records belong to later calls
		for i, r := range o.records {
			if !used[i] && fits(r) && (first < 0 || r.Stored < o.records[first].Stored) {
				first = i
			}
		}
		if first >= 0 {
			used[first] = true
		}
		return first >= 0
	}
	of := func(c history.Call, r history.Delivery) bool {
		return r.ID == c.EventID && r.Host == c.Host && r.Time <= c.At+1
	}
	var left []history.Call
	for _, c := range o.calls {
		if c.Status != 0 && !take(func(r history.Delivery) bool {
			return of(c, r) && r.Status == c.Status &&
				c.At <= r.Stored
		}) {
			left = append(left, c)
		}
	}
	for _, c := range left {
		// The answer may have been lost, or may have come too late. Or the call may have arrived after its caller had
		// stopped waiting.
		if w.hampered(c.Deliverer, c.Host, w.begun(o, c), c.Answered) && take(func(r history.Delivery) bool {
			return of(c, r) && r.Status == 0 && (r.Took > 0 || r.Result != history.Postponed)
		}) {
			continue
		}
		if !w.forgotten(c) {
			w.fault(Unlogged, c.Key,
				"a call at %d with %s, answered with %d, by deliverer %d, which nothing had kept from writing it down",
				c.At, c.EventID, c.Status, c.Deliverer)
			continue
		}
		w.report.Webhooks.Unlogged++
	}
	for i, r := range o.records {
		w.record(o, r, used[i])
	}
	w.written(o)
}

// begun returns the begin of the delivery that made a call, by its record; the time of the call without one. A call may
// arrive long after the begin, and late for its caller, where the machine was busy.
func (w *hooks) begun(o *origin, c history.Call) int64 {
	from := int64(0)
	for _, r := range o.records {
		if r.ID == c.EventID && r.Host == c.Host && r.Time <= c.At {
			from = max(from, r.Time)
		}
	}
	return cmp.Or(from, c.At)
}

// written checks that the log has each event's result, and the timer's end.
func (w *hooks) written(o *origin) {
	for _, m := range o.events {
		if !slices.ContainsFunc(o.records, func(r history.Delivery) bool { return r.ID == m.EventID }) {
			w.fault(Unlogged, m.Key, "nothing is written down about %s", m.EventID)
			return
		}
	}
	if slices.ContainsFunc(o.calls, succeeded) && len(o.letters) == 0 && !w.lost(o) &&
		!slices.ContainsFunc(o.records, func(r history.Delivery) bool { return r.Result == history.Delivered }) {
		w.fault(Unlogged, o.events[0].Key, "%s was delivered, which is not written down", o.id)
	}
}

// record judges a record by itself. called is set if it has a call.
func (w *hooks) record(o *origin, r history.Delivery, called bool) {
	m, ok := w.events[r.ID]
	if !ok || m.Key != r.Key || m.Attempt != r.Attempt {
		w.fault(WrongRecord, r.Key, "%s of %s, attempt %d, at %d, which is no event", r.Result, r.ID, r.Attempt, r.Time)
		return
	}
	failed := r.Status == 0 || r.Status >= http.StatusInternalServerError // the host, which is no fault of a delivery
	spent := r.Attempt >= m.Max
	fits := map[history.Result]bool{
		history.Delivered: r.Status == http.StatusOK,
		history.Retried:   r.Status != http.StatusOK && r.Status != http.StatusGone && !spent && r.Host != "",
		history.Postponed: failed,
		history.Died: r.Status == http.StatusGone || r.Status != http.StatusOK && spent || r.Took == 0 &&
			m.Status != "",
	}
	switch {
	case !fits[r.Result]:
		w.fault(WrongRecord, r.Key, "%s of %s at %d, status %d, attempt %d of %d", r.Result, r.ID, r.Time, r.Status,
			r.Attempt, m.Max)
	case r.Status != 0 && !called:
		w.fault(WrongRecord, r.Key, "%s of %s at %d, status %d, and no such call came", r.Result, r.ID, r.Time,
			r.Status)
	case r.Status == 0 && m.Status == "" && (r.Result == history.Retried || r.Result == history.Died) && !called &&
		!w.unanswered(o, r):
		w.fault(Charged, r.Key, "%s as attempt %d at %d, and its host had not failed: %s", r.ID, r.Attempt, r.Time,
			r.Error)
	}
}

// unanswered reports whether a delivery had a reason to get no answer.
func (w *hooks) unanswered(o *origin, r history.Delivery) bool {
	return w.hampered(anyone, r.Host, r.Time, r.Stored) || slices.ContainsFunc(o.calls, func(c history.Call) bool {
		return c.EventID == r.ID && c.Status == 0 && r.Time <= c.At+1 && c.At <= r.Stored
	})
}

// repeats checks calls of a host after a success. They are allowed only after a fault that kept JetStream from learning
// that the delivery had ended.
func (w *hooks) repeats(o *origin) {
	success := never
	for _, c := range o.calls {
		if c.At > success {
			if w.disturbedBefore(o, c) {
				w.report.Webhooks.Repeated++
			} else {
				w.fault(Repeated, c.Key, "called with %s at %d by deliverer %d, and had answered with success at %d",
					c.EventID, c.At, c.Deliverer, success)
			}
		}
		if succeeded(c) {
			success = min(success, c.Answered)
		}
	}
}

// disturbedBefore reports whether a fault disturbed the process that makes the call, or an earlier delivery of the
// event. Then the earlier delivery may have ended unnoticed.
func (w *hooks) disturbedBefore(o *origin, again history.Call) bool {
	if w.kept(again.Deliverer, again.At-callDelay, again.At) || w.away(again.Host, again.At, again.At) {
		return true
	}
	for _, c := range o.calls {
		if c.At < again.At && (w.hampered(c.Deliverer, c.Host, w.begun(o, c), c.Answered) ||
			w.kept(c.Deliverer, c.At-callDelay, w.settled(c.Deliverer, c.Answered))) {
			return true
		}
	}
	return slices.ContainsFunc(o.records, func(r history.Delivery) bool {
		return r.Time < again.At && w.kept(anyone, r.Time, w.settled(anyone, r.Stored))
	})
}

// punctual notes the delay of the first call to a host that always answers. It skips events that a disturbed timerd
// deliver may have had.
func (w *hooks) punctual(o *origin) {
	first, calls := o.events[0], o.calls
	if len(calls) == 0 || !slices.Contains(w.h.Run.Steady, calls[0].Host) || w.taken(first.Stored, calls[0].At) {
		return
	}
	late := calls[0].At - first.Stored
	if slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
		return f.Host != "" && f.Host != calls[0].Host && w.during(f, first.Stored, first.Stored)
	}) {
		w.report.Webhooks.Beside = append(w.report.Webhooks.Beside, late)
	} else {
		w.report.Webhooks.Calm = append(w.report.Webhooks.Calm, late)
	}
	if excess := w.without(first.Stored, calls[0].At); excess > innocentMost {
		w.fault(HeldUp, first.Key, "%s was called %d ms after its event, %d of them without need", calls[0].Host, late,
			excess)
	}
}

// circuitOpens is the number of failed calls in a row after which a host is left alone.
const circuitOpens = 20

// circuits checks the calls to an absent host: each timerd deliver may fail only as many attempts as open its circuit.
func (w *hooks) circuits() {
	for _, f := range w.h.Faults {
		if f.Host == "" {
			continue
		}
		failed, starts := 0, w.h.Run.Deliverers
		for _, other := range w.h.Faults {
			if (other.Effect == history.Forgets || other.Effect == history.Hurries) &&
				w.during(other, f.From, f.Healed) {
				starts += len(other.Deliverers)
			}
		}
		for _, r := range w.h.Deliveries {
			if r.Host == f.Host && (r.Result == history.Retried || r.Result == history.Died) && f.From <= r.Time &&
				r.Time+r.Took <= f.Healed {
				failed++
			}
		}
		if most := starts * circuitOpens; failed > most {
			w.fault(Charged, "all",
				"%d attempts failed at %s, which was away from %d to %d; its circuit opens after %d", failed, f.Host,
				f.From, f.Healed, most)
		}
	}
}
