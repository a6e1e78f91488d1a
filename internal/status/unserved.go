package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// Unserved says that no living timerd serves any of a namespace, as when its name is misspelt. It is empty if one does, if none is
// alive, and if that is not known.
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
	return fmt.Sprintf("no timerd serves %s; they serve %s: keys with a TTL there are no timers, unless timer_set sets them", n, strings.Join(served, "; "))
}
