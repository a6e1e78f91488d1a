// Package policy holds the rules of namespaces: the schedule of retries, and the limit on lateness. It does no I/O.
package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Longest bounds delays and limits: no timer can be due later.
const Longest = 10 * 365 * 24 * time.Hour

// Rule is the value for the timers of a namespace.
type Rule[T fmt.Stringer] struct {
	Namespace keys.Namespace
	Is        T
}

// Rules is a list of rules; the first one whose namespace matches counts.
type Rules[T fmt.Stringer] []Rule[T]

// For returns the value for a timer: the zero T if no rule matches.
func (r Rules[T]) For(k keys.Key) T {
	for i := range r {
		if r[i].Namespace.Match(k) {
			return r[i].Is
		}
	}
	var none T
	return none
}

// String returns the list in the form that its parser reads.
func (r Rules[T]) String() string {
	entries := make([]string, len(r))
	for i, rule := range r {
		entries[i] = rule.Namespace.String() + "=" + rule.Is.String()
	}
	return strings.Join(entries, "; ")
}
