package deliver

import (
	"cmp"
	"slices"

	"github.com/timerd-io/timerd/keys"
)

// grant says that the events of a namespace are a group's, from a sequence of the stream on.
type grant struct {
	Match string `json:"match"`
	From  uint64 `json:"from,omitempty"` // 0: from wherever the group began

	namespace keys.Namespace
}

// coverage says which events are a group's: those that its file has matched ever since they were stored, whatever entries
// that was by. An entry that is added does not bring back what fired before it, and one that is replaced by a wider or a
// narrower one, or moved, loses nothing.
type coverage []grant

// covers tells whether an event of a timer, with a place in the stream, is the group's.
func (c coverage) covers(k keys.Key, seq uint64) bool {
	return slices.ContainsFunc(c, func(g grant) bool { return seq >= g.From && g.namespace.Match(k) })
}

// begin returns the coverage of a group that begins with a file that matches all this, for events from a sequence on.
func begin(matches keys.Namespaces, from uint64) coverage {
	return coverage(nil).next(matches, from)
}

// next returns the coverage once the group's file matches all this, where the first event that fires then gets a
// sequence. What c covers is kept as far as the new file matches it.
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

// settled returns the coverage without bounds that bound nothing any more: no event up to a sequence comes again.
func (c coverage) settled(upTo uint64) coverage {
	all := slices.Clone(c)
	for i := range all {
		if all[i].From <= upTo+1 {
			all[i].From = 0
		}
	}
	return all.least()
}

// least returns the coverage without grants that others include, in one order.
func (c coverage) least() coverage {
	all := slices.Clone(c)
	slices.SortFunc(all, func(a, b grant) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Match, b.Match)) })
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
