// Package late says how late a timer may fire: the limit of a timer, and those of namespaces. It does no I/O.
package late

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// MaxLimit is the longest limit that there may be: as far ahead as a timer can be set.
const MaxLimit = 10 * 365 * 24 * time.Hour

// Limit says how long after its due time a timer may be claimed and still fire. The zero Limit says nothing: then the
// rules for the timer's namespace count.
type Limit struct {
	Given bool          // something is said, if only that there is no limit
	Most  time.Duration // in whole milliseconds; 0 for no limit
	Drop  bool          // what is later is forgotten instead of becoming a dead letter
}

// Exceeded tells whether a timer that is claimed so long after its due time is too late.
func (l Limit) Exceeded(by time.Duration) bool { return l.Most > 0 && by > l.Most }

// Rule is a limit and the timers that it is for.
type Rule struct {
	Namespace keys.Namespace
	Limit     Limit
}

// Rules is a list of limits; the first one whose namespace matches counts.
type Rules []Rule

// For returns the limit of a timer that has none of its own: the zero Limit if no rule matches.
func (r Rules) For(k keys.Key) Limit {
	for i := range r {
		if r[i].Namespace.Match(k) {
			return r[i].Limit
		}
	}
	return Limit{}
}

// String returns the list in the form that ParseRules reads.
func (r Rules) String() string {
	entries := make([]string, len(r))
	for i, rule := range r {
		entries[i] = rule.Namespace.String() + "=" + rule.Limit.Most.String()
		if rule.Limit.Drop {
			entries[i] += " " + dropWord
		}
	}
	return strings.Join(entries, "; ")
}

// dropWord says in a rule that what is later is forgotten.
const dropWord = "drop"

// ParseRules reads a list such as
//
//	shop:otp=30s drop; pay=5m; *=0
//
// of namespaces as for keys.ParseNamespace with Go durations, rounded to milliseconds; 0 is no limit. Empty entries are
// ignored, and an empty list has no rules. The error joins one for each thing that is wrong.
func ParseRules(s string) (Rules, error) {
	var rules Rules
	var faults []error
	for entry := range strings.SplitSeq(s, ";") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, text, ok := strings.Cut(entry, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("%q: want namespace=duration, such as pay=5m or shop:otp=30s drop", entry))
			continue
		}
		namespace, err := keys.ParseNamespace(strings.TrimSpace(name))
		if err != nil {
			faults = append(faults, err)
		}
		limit, err := parseLimit(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%q: %w", entry, err))
		}
		rules = append(rules, Rule{namespace, limit})
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rules, nil
}

// parseLimit reads a duration, with the word drop behind it or not.
func parseLimit(text string) (Limit, error) {
	words := strings.Fields(text)
	limit := Limit{Given: true, Drop: len(words) == 2 && strings.EqualFold(words[1], dropWord)}
	if len(words) == 0 || len(words) > 2 || len(words) == 2 && !limit.Drop {
		return Limit{}, fmt.Errorf("want a duration such as 5m, then nothing or %s", dropWord)
	}
	most, err := time.ParseDuration(words[0])
	if err != nil || most != 0 && most < time.Millisecond || most > MaxLimit {
		return Limit{}, errors.New("want a duration from 1ms to 87600h, such as 30s or 5m, or 0 for no limit")
	}
	limit.Most = most.Round(time.Millisecond)
	return limit, nil
}
