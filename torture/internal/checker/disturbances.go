package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

const (
	// anyone stands for any timerd deliver.
	anyone = -1
	// settleTime is the time, in ms, in which an undisturbed timerd deliver logs a call and acknowledges its event.
	settleTime = 2000
	// callDelay is the longest time, in ms, for which a timerd deliver holds an event before the call.
	callDelay = 500
	// tolerableStall is the longest stall of the machine, in ms, that cannot delay an answer too much.
	tolerableStall = 500
)

// hits reports whether a fault concerns a timerd deliver.
func hits(f history.Fault, deliverer int) bool {
	return len(f.Deliverers) > 0 && (deliverer == anyone || slices.Contains(f.Deliverers, deliverer))
}

// kept reports whether a fault concerned a timerd deliver between two times.
func (w *hooks) kept(deliverer int, from, to int64) bool {
	return slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
		return hits(f, deliverer) &&
			w.during(f, from, to)
	})
}

// taken reports whether a disturbed timerd deliver may have had an event between two times. A dead timerd deliver gets
// no event while another one lives.
func (w *hooks) taken(from, to int64) bool {
	return slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
		if gone := f.Effect == history.Forgets || f.Effect == history.Hurries; gone &&
			len(f.Deliverers) < w.h.Run.Deliverers {
			f.Ready = f.From
		}
		return hits(f, anyone) && w.during(f, from, to)
	})
}

// settled returns the time by which a timerd deliver has certainly settled a call that was answered at the given time:
// by then it had no fault for long enough.
func (w *hooks) settled(deliverer int, answered int64) int64 {
	to := answered + settleTime
	for {
		end := answered + settleTime + w.stalled(answered, to)
		for _, f := range w.h.Faults {
			if f.Effect == history.Delays && hits(f, deliverer) && w.during(f, answered, to) {
				end = max(end, cmp.Or(f.Ready, w.h.End.At)+after+settleTime)
			}
		}
		if end <= to {
			return to
		}
		to = end
	}
}

// away reports whether a host was away between two times. A call sent to it may arrive once it is back.
func (w *hooks) away(host string, from, to int64) bool {
	return slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
		return f.Host != "" && f.Host == host &&
			w.during(f, from, to)
	})
}

// hampered reports whether an answer of a host may have been lost on its way to a timerd deliver, or may have come too
// late.
func (w *hooks) hampered(deliverer int, host string, from, to int64) bool {
	return w.stalled(from, to) > tolerableStall || w.away(host, from, to) ||
		slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
			return f.Effect == history.Delays && hits(f, deliverer) && w.during(f, from, to)
		})
}

// arrived returns the latest arrival of a call's answer: while a host is silent, its network holds the answer back.
func (w *hooks) arrived(c history.Call) int64 {
	latest := c.Answered
	for _, f := range w.h.Faults {
		if f.Host != "" && f.Host == c.Host && w.during(f, c.At, c.Answered) {
			latest = max(latest, cmp.Or(f.Ready, w.h.End.At))
		}
	}
	return latest
}

// forgotten reports whether a timerd deliver may have lost the record of a call: it was killed before the latest time
// to log the call, or had to stop while NATS was away.
func (w *hooks) forgotten(c history.Call) bool {
	by := w.settled(c.Deliverer, w.arrived(c))
	var killed, stopped, away bool
	for _, f := range w.h.Faults {
		if hits(f, c.Deliverer) && w.during(f, c.At, by) {
			killed = killed || f.Effect == history.Forgets
			stopped = stopped || f.Effect == history.Hurries
			away = away || f.Effect == history.Delays
		}
	}
	return killed || stopped && away
}
