package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// Unserved returns a sentence if no living timerd serves any part of a namespace, for example because the namespace is
// misspelt. The sentence is empty if a timerd serves a part, if no timerd is alive, or if that is unknown.
func Unserved(members []query.Member, n keys.Namespace) string {
	var served []string
	for _, m := range members {
		if !m.Alive {
			continue
		}
		text := m.Settings["TIMERD_NAMESPACES"]
		all, err := keys.ParseNamespaces(text)
		if err != nil || strings.HasSuffix(text, ")") { // from an earlier version, or abridged
			return ""
		}
		for _, one := range all {
			if _, both := one.Overlap(n); both {
				return ""
			}
		}
		if text = clean(text); !slices.Contains(served, text) {
			served = append(served, text)
		}
	}
	if len(served) == 0 {
		return ""
	}
	return fmt.Sprintf("no timerd serves %s; they serve %s: keys with a TTL there are no timers, unless timer_set "+
		"sets them", n, strings.Join(served, "; "))
}
