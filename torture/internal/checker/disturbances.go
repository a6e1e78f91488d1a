package checker

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/torture/internal/history"
)

const (
	// anyone is whatever timerd deliver.
	anyone = -1
	// settles is how long, in ms, one may take after a call to write it down and have its event acknowledged, if nothing
	// keeps it.
	settles = 2000
	// waits is how long one may have an event before it calls.
	waits = 500
	// stumbles is how long the machine may stall, in ms, without keeping a call from its answer.
	stumbles = 500
)

// hits tells whether a fault concerns a timerd deliver.
func hits(f history.Fault, deliverer int) bool {
	return len(f.Deliverers) > 0 && (deliverer == anyone || slices.Contains(f.Deliverers, deliverer))
}

// kept tells whether a fault concerned a timerd deliver between two times.
func (w *hooks) kept(deliverer int, from, to int64) bool {
	return slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool { return hits(f, deliverer) && w.during(f, from, to) })
}

// taken tells whether an event may have been with a timerd deliver that was disturbed between two times. One that is gone gets
// none, if another one is there.
func (w *hooks) taken(from, to int64) bool {
	return slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
		if gone := f.Effect == history.Forgets || f.Effect == history.Hurries; gone && len(f.Deliverers) < w.h.Run.Deliverers {
			f.Ready = f.From
		}
		return hits(f, anyone) && w.during(f, from, to)
	})
}

// settled returns until when a timerd deliver is done for certain with what was answered at a time: it was hindered by nothing
// for long enough.
func (w *hooks) settled(deliverer int, answered int64) int64 {
	to := answered + settles
	for {
		end := answered + settles + w.stalled(answered, to)
		for _, f := range w.h.Faults {
			if f.Effect == history.Delays && hits(f, deliverer) && w.during(f, answered, to) {
				end = max(end, cmp.Or(f.Ready, w.h.End.At)+after+settles)
			}
		}
		if end <= to {
			return to
		}
		to = end
	}
}

// away tells whether a host was away between two times. What was sent to it may come when it is back.
func (w *hooks) away(host string, from, to int64) bool {
	return slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool { return f.Host != "" && f.Host == host && w.during(f, from, to) })
}

// hampered tells whether an answer of a host may have been lost on its way to a timerd deliver, or have come too late.
func (w *hooks) hampered(deliverer int, host string, from, to int64) bool {
	return w.stalled(from, to) > stumbles || w.away(host, from, to) || slices.ContainsFunc(w.h.Faults, func(f history.Fault) bool {
		return f.Effect == history.Delays && hits(f, deliverer) && w.during(f, from, to)
	})
}

// forgotten tells whether a timerd deliver was killed before it had to have written down a call; or was to stop, while NATS
// was away.
func (w *hooks) forgotten(c history.Call) bool {
	by := w.settled(c.Deliverer, c.Answered)
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
