package console

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
)

const (
	// lettersRead is the number of dead letters whose errors are counted: one search's.
	lettersRead = 200
	// errorRows limits the errors of a namespace, and errorBytes the text of each.
	errorRows  = 3
	errorBytes = 250
	// findBytes limits the text of a search for letters, as its field does.
	findBytes = 200
)

// LettersView are the dead letters of a namespace.
type LettersView struct {
	status.Letters
	Errors []ErrorView `json:"errors"` // the most frequent ones of the newest letters
}

// ErrorView is an error of dead letters of a namespace. Errors that differ only by their numbers are one.
type ErrorView struct {
	Text    string    `json:"error"`   // of the newest one: its last error or, without one, its reason
	Letters int       `json:"letters"` // among the newest letters
	Last    time.Time `json:"last"`
	Find    string    `json:"find"` // part of all of these errors: the text= of their list

	whole bool // all have the same text
}

// letterErrors are the errors of the newest letters.
type letterErrors struct {
	away        string // why no more letters were read
	read        int
	byNamespace map[string]map[string]*ErrorView // by the text without its numbers
}

// readErrors counts the errors of the newest letters.
func (s *shared) readErrors(ctx context.Context) *letterErrors {
	all := &letterErrors{byNamespace: map[string]map[string]*ErrorView{}}
	found, err := s.sources.History.Search(ctx, history.Query{Kind: keys.Dead}, "", lettersRead)
	if err != nil {
		all.away = err.Error()
	}
	for _, r := range found.Records {
		all.add(r)
	}
	return all
}

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// add counts a letter: newer ones come first.
func (l *letterErrors) add(r history.Record) {
	l.read++
	text := cmp.Or(r.Event.LastError, r.Event.DeadReason)
	if r.Fault != "" || text == "" {
		return
	}
	namespace := keys.Namespace{App: r.Key.App, Module: r.Key.Module, Type: r.Key.Type}.String()
	if l.byNamespace[namespace] == nil {
		l.byNamespace[namespace] = map[string]*ErrorView{}
	}
	same := strings.Join(strings.FieldsFunc(text, isDigit), "0")
	one := l.byNamespace[namespace][same]
	if one == nil {
		one = &ErrorView{Text: text, Last: r.Stored.UTC(), whole: true}
		l.byNamespace[namespace][same] = one
	}
	one.Letters++
	one.whole = one.whole && one.Text == text
}

// errors returns the most frequent errors of a namespace.
func (l *letterErrors) errors(namespace string) []ErrorView {
	all := []ErrorView{}
	for _, e := range l.byNamespace[namespace] {
		all = append(all, *e)
	}
	slices.SortFunc(all, func(a, b ErrorView) int {
		return cmp.Or(cmp.Compare(b.Letters, a.Letters), b.Last.Compare(a.Last), cmp.Compare(a.Text, b.Text))
	})
	all = all[:min(len(all), errorRows)]
	for i := range all {
		e := &all[i]
		e.Find, e.Text = longestPart(e.Text, func(r rune) bool {
			return unicode.IsControl(r) || !e.whole && isDigit(r)
		}), clip(e.Text, errorBytes)
	}
	return all
}

// longestPart returns the longest part of a text without some characters, fit for a field.
func longestPart(text string, without func(rune) bool) (longest string) {
	for _, part := range strings.FieldsFunc(text, without) {
		if part = strings.TrimSpace(part); len(part) > len(longest) {
			longest = part
		}
	}
	return strings.TrimSpace(strings.ToValidUTF8(longest[:min(len(longest), findBytes)], ""))
}

// addLetters adds the dead letters with their errors.
func (v *Consumers) addLetters(letters []status.Letters, errors *letterErrors) {
	if errors == nil {
		errors = &letterErrors{away: "they were not read in time"}
	}
	for _, l := range letters {
		v.Newest, v.NoErrors = errors.read, errors.away
		v.Letters = append(v.Letters, LettersView{Letters: l, Errors: errors.errors(l.Namespace)})
	}
}
