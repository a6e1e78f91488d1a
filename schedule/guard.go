package schedule

import (
	"errors"
	"fmt"
	"strings"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// ErrGuardSlot says that a guard is of another slot of the cluster than its timer.
var ErrGuardSlot = errors.New("a guard is of another slot than the timer")

// Options of a record: the keys of its guards; of a firing: the guard that has said no.
const optionUnless, optionIf, optionRefused = "U", "I", "G"

// In the value of optionRefused, unread precedes the guard that timerd may not read, and byRules follows the letter of
// one of TIMERD_GUARD, before its key.
const unread, byRules = "?", "="

// escapeGuard returns the key of a guard as a record has it: with three bytes escaped, as lua/lib/guards.lua does.
func escapeGuard(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(key, "%", "%25"), ":", "%3A"), ";", "%3B")
}

// guardOptions returns the options of a record with guards, as they stand before its colon.
func guardOptions(g policy.Guards) (options string) {
	if g.Unless != "" {
		options = ";" + optionUnless + "=" + escapeGuard(g.Unless)
	}
	if g.If != "" {
		options += ";" + optionIf + "=" + escapeGuard(g.If)
	}
	return options
}

// readGuard is the inverse of escapeGuard.
func readGuard(value string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(value, "%3B", ";"), "%3A", ":"), "%25", "%")
}

// Refusal returns the answer of a firing's guards.
func (r *Record) Refusal() policy.Refusal {
	answer, isUnread := strings.CutPrefix(r.refused, unread)
	letter, text, isByRules := strings.Cut(answer, byRules)
	given := r.Guards
	if isByRules {
		given = policy.Guards{Unless: readGuard(text), If: readGuard(text)}
	}
	switch letter {
	case optionUnless:
		return policy.Refusal{Guard: given.Unless, Unread: isUnread}
	case optionIf:
		return policy.Refusal{Guard: given.If, Missing: !isUnread, Unread: isUnread}
	}
	return policy.Refusal{}
}

// checkSlots returns an ErrGuardSlot, which names the hash tag to use, if a guard of a timer is of another slot.
func (s *Schedule) checkSlots(key string, g policy.Guards) error {
	for _, guard := range []string{g.Unless, g.If} {
		if !s.cluster || guard == "" || keys.Slot(guard) == keys.Slot(key) {
			continue
		}
		fix := "give it the hash tag {" + keys.EncodeText(key) + "}, or both keys one"
		if _, rest, has := strings.Cut(key, "{"); has || strings.Contains(key, "}") {
			fix = "give both keys one hash tag"
			if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
				fix = "give it the hash tag {" + keys.EncodeText(tag) + "}"
			}
		}
		return fmt.Errorf("%w: %s: %s", ErrGuardSlot, keys.EncodeText(guard), fix)
	}
	return nil
}

// guardRules returns the rules in the form that lua/lib/judging.lua reads.
func guardRules(rules policy.Rules[policy.GuardRule]) string {
	// A placeholder is the capture of its part of the key.
	parts := strings.NewReplacer("%%", "%%", "%app", "%1", "%module", "%2", "%type", "%3", "%id", "%4")
	var b strings.Builder
	for _, rule := range rules {
		pattern := "^" + luaPattern(rule.Namespace.App) + luaPattern(rule.Namespace.Module) +
			luaPattern(rule.Namespace.Type) + "(.*)$"
		unless, only := parts.Replace(rule.Is.Unless), parts.Replace(rule.Is.If)
		fmt.Fprintf(&b, "%d,%d,%d:%s%s%s", len(pattern), len(unless), len(only), pattern, unless, only)
	}
	return b.String()
}

// luaPattern returns the pattern that captures a part of a key, with the colon behind it; "" is any part.
func luaPattern(part string) string {
	if part == "" {
		return "([^:]*):"
	}
	var b strings.Builder
	b.WriteByte('(')
	for i := range len(part) {
		switch c := part[i]; {
		case c == 0:
			b.WriteString("%z")
		case strings.IndexByte("^$()%.[]*+-?", c) >= 0:
			b.WriteByte('%')
			fallthrough
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + "):"
}
