package deliver

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/keys"
)

// grant gives a group the events of a namespace, from a sequence of the stream on.
type grant struct {
	Match string `json:"match"`
	From  uint64 `json:"from,omitempty"` // 0: from the group's beginning

	namespace keys.Namespace
}

// coverage has a group's events: the events that its file has matched ever since they were stored, by whichever
// entries. An added entry does not bring back earlier events. Moving an entry, or replacing it by a wider or narrower
// one, loses nothing.
type coverage []grant

// covers reports whether an event, by its timer and its sequence in the stream, is the group's.
func (c coverage) covers(k keys.Key, seq uint64) bool {
	return slices.ContainsFunc(c, func(g grant) bool { return seq >= g.From && g.namespace.Match(k) })
}

// begin returns the coverage of a new group whose file matches these namespaces, for events from a sequence on.
func begin(matches keys.Namespaces, from uint64) coverage {
	return coverage(nil).next(matches, from)
}

// next returns the coverage after the group's file changes to one with these matches; from is the sequence of the next
// event to fire. The present coverage stays where the new file matches it.
func (c coverage) next(matches keys.Namespaces, from uint64) coverage {
	earliest := map[keys.Namespace]uint64{}
	add := func(n keys.Namespace, from uint64) {
		if at, ok := earliest[n]; !ok || from < at {
			earliest[n] = from
		}
	}
	for _, n := range matches {
		add(n, from)
		for _, g := range c {
			if both, ok := n.Overlap(g.namespace); ok {
				add(both, g.From)
			}
		}
	}
	var all coverage
	for n, from := range earliest {
		all = append(all, grant{n.String(), from, n})
	}
	return all.least()
}

// settled returns the coverage without obsolete bounds: no event up to a sequence comes again.
func (c coverage) settled(upTo uint64) coverage {
	all := slices.Clone(c)
	for i := range all {
		if all[i].From <= upTo+1 {
			all[i].From = 0
		}
	}
	return all.least()
}

// least returns the coverage without grants that others include, in a fixed order.
func (c coverage) least() coverage {
	all := slices.Clone(c)
	slices.SortFunc(all, func(a, b grant) int {
		return cmp.Or(cmp.Compare(a.From, b.From),
			cmp.Compare(a.Match, b.Match))
	})
	var kept coverage
	for i, g := range all {
		included := func(by grant) bool { return by.From <= g.From && by.namespace.Covers(g.namespace) }
		wider := func(by grant) bool { return by.namespace != g.namespace && included(by) }
		if !slices.ContainsFunc(kept, included) && !slices.ContainsFunc(all[i+1:], wider) {
			kept = append(kept, g)
		}
	}
	return kept
}
