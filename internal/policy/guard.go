package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/keys"
)

// Guards are keys that decide at a timer's claim whether it fires; "" is none.
type Guards struct {
	Unless string // it fires only if this key does not exist
	If     string // it fires only if this key exists
}

// ErrGuard means that a key cannot be a guard.
var ErrGuard = errors.New("want a key of 1 to 1,024 bytes")

// CheckGuard returns ErrGuard for a key that cannot be a guard.
func CheckGuard(key string) error {
	if key == "" || len(key) > keys.MaxKeyBytes {
		return ErrGuard
	}
	return nil
}

// Refusal is the answer of a firing's guards at its claim. The zero Refusal lets it fire.
type Refusal struct {
	Guard string // the key
	// Missing reports whether the key did not exist, as IF demands; otherwise it existed, against UNLESS.
	Missing bool
	// Unread means that timerd could not read the key, or that it is of another slot: the next claim asks again.
	Unread bool
}

// String returns the refusal for people to read, as in "shop:order:paid:42 was there".
func (r Refusal) String() string {
	name := keys.EncodeText(r.Guard)
	switch {
	case r.Unread:
		return "timerd may not read its guard " + name
	case r.Missing:
		return name + " was not there"
	}
	return name + " was there"
}

// GuardRule is the guards of a namespace's timers, with placeholders for the parts of a timer's key; "" is none.
type GuardRule struct{ Unless, If string }

// The words before the keys of a rule.
const wordUnless, wordIf = "unless", "if"

// String returns the rule in the form that ParseGuards reads.
func (g GuardRule) String() string {
	var words []string
	for _, guard := range [][2]string{{wordUnless, g.Unless}, {wordIf, g.If}} {
		if guard[1] != "" {
			words = append(words, guard[:]...)
		}
	}
	return strings.Join(words, " ")
}

// ParseGuards reads a list such as
//
//	shop:order:timeout=unless shop:order:paid:%id; pay=if pay:live:%module:%id
//
// of namespaces as for keys.ParseNamespace with guards: unless and a key, if and a key, or both. In a key %app,
// %module, %type and %id stand for the parts of the timer's, and %% for a percent sign. Empty entries are
// ignored, and an empty list has no rules. The error joins one for each fault.
func ParseGuards(s string) (Rules[GuardRule], error) {
	var rules Rules[GuardRule]
	var faults []error
	for entry := range strings.SplitSeq(s, ";") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, text, ok := strings.Cut(entry, "=")
		if !ok {
			faults = append(faults, fmt.Errorf("%q: want namespace=unless KEY, namespace=if KEY, or both", entry))
			continue
		}
		namespace, err := keys.ParseNamespace(strings.TrimSpace(name))
		if err != nil {
			faults = append(faults, err)
		}
		rule, errs := parseGuardRule(strings.Fields(text))
		for _, err := range errs {
			faults = append(faults, fmt.Errorf("%q: %w", entry, err))
		}
		rules = append(rules, Rule[GuardRule]{namespace, rule})
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rules, nil
}

// parseGuardRule reads pairs of a word and a key, and returns every fault.
func parseGuardRule(words []string) (rule GuardRule, faults []error) {
	if len(words) == 0 || len(words)%2 > 0 {
		return rule, []error{errors.New("want unless and a key, if and a key, or both, such as " +
			"unless shop:order:paid:%id")}
	}
	for pair := range slices.Chunk(words, 2) {
		var key *string
		switch strings.ToLower(pair[0]) {
		case wordUnless:
			key = &rule.Unless
		case wordIf:
			key = &rule.If
		default:
			faults = append(faults, fmt.Errorf("%q: want unless or if, and a key", pair[0]))
			continue
		}
		if *key != "" {
			faults = append(faults, fmt.Errorf("%s can be given once", strings.ToLower(pair[0])))
		}
		*key = pair[1]
		if err := CheckGuard(pair[1]); err != nil {
			faults = append(faults, err)
		}
		faults = append(faults, checkPlaceholders(pair[1])...)
	}
	return rule, faults
}

// checkPlaceholders returns a fault for each unknown placeholder of a key.
func checkPlaceholders(key string) (faults []error) {
	for {
		_, rest, ok := strings.Cut(key, "%")
		if !ok {
			return faults
		}
		if key, ok = strings.CutPrefix(rest, "%"); ok {
			continue
		}
		end := strings.IndexFunc(rest, func(r rune) bool { return r < 'a' || r > 'z' })
		if end < 0 {
			end = len(rest)
		}
		if !slices.Contains([]string{"app", "module", "type", "id"}, rest[:end]) {
			faults = append(faults, fmt.Errorf("unknown placeholder %q: want %%app, %%module, %%type, %%id or %%%%",
				"%"+rest[:end]))
		}
		key = rest[end:]
	}
}
