package schedule

import (
	"strings"

	"github.com/timerd-io/timerd/internal/policy"
)

// Options of a record with the keys of its guards, and of a firing with the guard that has said no.
const optionUnless, optionIf, optionRefused = "U", "I", "G"

// unread precedes, in the value of optionRefused, the guard that timerd may not read.
const unread = "?"

// guardSigns are the bytes of a key that a record escapes, as lua/lib/guards.lua does.
func guardSigns() []string { return []string{"%", "%25", ":", "%3A", ";", "%3B"} }

// guardOptions returns the options of a record with guards, as they stand before its colon.
func guardOptions(g policy.Guards) (options string) {
	escape := strings.NewReplacer(guardSigns()...)
	if g.Unless != "" {
		options = ";" + optionUnless + "=" + escape.Replace(g.Unless)
	}
	if g.If != "" {
		options += ";" + optionIf + "=" + escape.Replace(g.If)
	}
	return options
}

// readGuard reads an option with the key of a guard.
func readGuard(value string) string {
	if !strings.Contains(value, "%") {
		return value
	}
	signs := guardSigns()
	for i := 0; i < len(signs); i += 2 {
		signs[i], signs[i+1] = signs[i+1], signs[i]
	}
	return strings.NewReplacer(signs...).Replace(value)
}

// Refusal returns the answer of a firing's guards.
func (r *Record) Refusal() policy.Refusal {
	letter, isUnread := strings.CutPrefix(r.refused, unread)
	switch letter {
	case optionUnless:
		return policy.Refusal{Guard: r.Guards.Unless, Unread: isUnread}
	case optionIf:
		return policy.Refusal{Guard: r.Guards.If, Missing: !isUnread, Unread: isUnread}
	}
	return policy.Refusal{}
}
