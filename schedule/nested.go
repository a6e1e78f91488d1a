package schedule

import (
	"github.com/timerd-io/timerd/keys"
)

// Holds may overlap. A timer is free when none covers it, and of several resumes that may cover it the narrowest
// namespace decides.

// isNarrower reports whether a namespace decides before another one: it has more parts, or comes first by name.
func isNarrower(a, b keys.Namespace) bool {
	parts := func(n keys.Namespace) (given int) {
		for _, part := range []string{n.App, n.Module, n.Type} {
			if part != "" {
				given++
			}
		}
		return given
	}
	if parts(a) != parts(b) {
		return parts(a) > parts(b)
	}
	return a.String() < b.String()
}

// Keeping returns the other holds that may keep timers of h from firing.
func (l *HoldList) Keeping(h *Hold) (others []Hold) {
	for _, o := range l.Holds {
		if _, both := o.Namespace.Overlap(h.Namespace); both && o.Namespace != h.Namespace && o.Lasts(l.Now) {
			others = append(others, o)
		}
	}
	return others
}

// Nested reports whether other holds, in force or being resumed, may cover timers of h.
func (l *HoldList) Nested(h *Hold) bool { return len(l.Keeping(h)) > 0 || len(l.rivals(h)) > 0 }

// rivals returns the other resumes that may be of timers of one, as the scripts take them (lua/lib/held.lua).
func (l *HoldList) rivals(h *Hold) (args []any) {
	for _, o := range l.Holds {
		if _, both := o.Namespace.Overlap(h.Namespace); both && o.Namespace != h.Namespace && o.Resume != nil {
			args = append(args, o.Namespace.App, o.Namespace.Module, o.Namespace.Type, int64(o.Resume.At),
				isNarrower(o.Namespace, h.Namespace))
		}
	}
	return args
}
