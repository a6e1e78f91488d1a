package policy

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Limit is a limit on lateness: a timer claimed later than that after its due time does not fire. The zero Limit is not
// given: then the rules for the timer's namespace count.
type Limit struct {
	Given bool          // a limit is given, even if it is "no limit"
	Most  time.Duration // in whole milliseconds; 0 for no limit
	Drop  bool          // a late timer is dropped, without a dead letter
}

// Exceeded reports whether a timer claimed by after its due time is too late.
func (l Limit) Exceeded(by time.Duration) bool { return l.Most > 0 && by > l.Most }

// String returns the limit in the form that ParseLimits reads.
func (l Limit) String() string {
	if l.Drop {
		return l.Most.String() + " " + dropWord
	}
	return l.Most.String()
}

// dropWord follows a limit in a rule: then late timers are dropped.
const dropWord = "drop"

// ParseLimits reads a list such as
//
//	shop:otp=30s drop; pay=5m; *=0
//
// of namespaces as for keys.ParseNamespace with Go durations, rounded to milliseconds; 0 is no limit. Empty entries are
// ignored, and an empty list has no rules. The error joins one for each fault.
func ParseLimits(s string) (Rules[Limit], error) {
	var rules Rules[Limit]
	var faults []error
	for entry := range strings.SplitSeq(s, ";") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, text, ok := strings.Cut(entry, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("%q: want namespace=duration, such as pay=5m or shop:otp=30s drop",
				entry))
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
		rules = append(rules, Rule[Limit]{namespace, limit})
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rules, nil
}

// parseLimit reads a duration, with or without the word drop behind it.
func parseLimit(text string) (Limit, error) {
	words := strings.Fields(text)
	limit := Limit{Given: true, Drop: len(words) == 2 && strings.EqualFold(words[1], dropWord)}
	if len(words) == 0 || len(words) > 2 || len(words) == 2 && !limit.Drop {
		return Limit{}, fmt.Errorf("want a duration such as 5m, then nothing or %s", dropWord)
	}
	most, err := time.ParseDuration(words[0])
	if err != nil || most != 0 && most < time.Millisecond || most > Longest {
		return Limit{}, errors.New("want a duration from 1ms to 87600h, such as 30s or 5m, or 0 for no limit")
	}
	limit.Most = most.Round(time.Millisecond)
	return limit, nil
}
