// Package policy holds the rules of namespaces: when and how often a timer fires again, and how late it may fire. It does no
// I/O.
package policy

import (
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Longest bounds delays and limits: no timer can be set further ahead.
const Longest = 10 * 365 * 24 * time.Hour

// Rule says what holds for the timers of a namespace.
type Rule[T fmt.Stringer] struct {
	Namespace keys.Namespace
	Is        T
}

// Rules is a list of rules; the first one whose namespace matches counts.
type Rules[T fmt.Stringer] []Rule[T]

// For returns what holds for a timer: the zero T if no rule matches.
func (r Rules[T]) For(k keys.Key) T {
	for i := range r {
		if r[i].Namespace.Match(k) {
			return r[i].Is
		}
	}
	var none T
	return none
}

// String returns the list in the form in which it is parsed.
func (r Rules[T]) String() string {
	entries := make([]string, len(r))
	for i, rule := range r {
		entries[i] = rule.Namespace.String() + "=" + rule.Is.String()
	}
	return strings.Join(entries, "; ")
}
