package docs_test

import (
	"go/scanner"
	"go/token"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// longestLine limits the lines of code and comments, in columns with tabs of four.
const longestLine = 120

// clumsy returns phrases in which a relative clause stands for a noun, and words that technical English does not use.
// Name the thing instead: "the omitted timers", not "what is left out"; "reports whether", not "tells whether".
// CONTRIBUTING.md has the words of the field.
func clumsy() []string {
	return []string{
		"tell whether", "tells whether", "what is", "what was", "what it", "what they", "what has", "those that",
		"of which", "that which", "is how long", "is how many", "is how much", "is how often", "is how far", "lest",
		"whyever", "on the sly", "for who is",
	}
}

// ruled returns the files of code, by name.
func ruled(t *testing.T) map[string]string {
	t.Helper()
	return files(t, ".go", ".lua", ".sh", ".ts", ".js")
}

// words returns a text in small letters, with one space for each break of a line and for the marks of a comment there.
func words(text string) string {
	fields := slices.DeleteFunc(strings.Fields(strings.ToLower(text)), func(field string) bool {
		return strings.Trim(field, "/*-#") == ""
	})
	return strings.Join(fields, " ")
}

// stands reports whether a text of words has a phrase that is no part of longer words.
func stands(text, phrase string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	for {
		before, after, found := strings.Cut(text, phrase)
		if !found {
			return false
		}
		if !strings.ContainsAny(before[max(0, len(before)-1):], letters) &&
			!strings.ContainsAny(after[:min(1, len(after))], letters) {
			return true
		}
		text = after
	}
}

// TestWordsNameThings checks comments and messages of the module for clumsy phrases.
func TestWordsNameThings(t *testing.T) {
	t.Parallel()
	all := ruled(t)
	delete(all, "docs/words_test.go")
	for name, text := range all {
		whole := words(text)
		for _, phrase := range clumsy() {
			if !stands(whole, phrase) {
				continue
			}
			lines := append(strings.Split(text, "\n"), "")
			for i := range len(lines) - 1 {
				both := words(lines[i] + "\n" + lines[i+1])
				if stands(both, phrase) && !stands(words(lines[i+1]), phrase) {
					t.Errorf("%s:%d: %q: name the thing instead", name, i+1, phrase)
				}
			}
		}
	}
}

// TestLinesFit checks the length of each line, except lines of a text in backquotes, whose form is part of it, and of
// tables in shell scripts.
func TestLinesFit(t *testing.T) {
	t.Parallel()
	for name, text := range ruled(t) {
		var texts []bool // by line
		for i, line := range strings.Split(text, "\n") {
			tabs := strings.Count(line, "\t")
			if len(line)+3*tabs <= longestLine || utf8.RuneCountInString(line)+3*tabs <= longestLine {
				continue
			}
			if texts == nil {
				texts = backquoted(name, text)
			}
			pipes := strings.HasSuffix(name, ".sh") && strings.Count(line, " | ") > 1
			if !texts[i] && !pipes {
				t.Errorf("%s:%d: more than %d columns", name, i+1, longestLine)
			}
		}
	}
}

// backquoted reports, by line from 0 on, whether a part of it is a text in backquotes in Go.
func backquoted(name, text string) []bool {
	lines := make([]bool, strings.Count(text, "\n")+1)
	if !strings.HasSuffix(name, ".go") {
		return lines
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile(name, -1, len(text))
	s.Init(file, []byte(text), nil, 0)
	for {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return lines
		}
		if kind == token.STRING && literal[0] == '`' {
			for i := range strings.Count(literal, "\n") + 1 {
				lines[file.Line(at)-1+i] = true
			}
		}
	}
}
