package keys

import (
	"slices"
	"strings"
)

// Nearest returns the known name that was probably meant by name, or "" if none is like it: the first with all its words,
// which _ or - divide; else the one that the fewest edits make of it, if half of it stays.
func Nearest(name string, known []string) string {
	best, bestEdits := "", max(2, len(name)/2)+1
	for _, candidate := range known {
		if words := wordsOf(candidate); !slices.ContainsFunc(wordsOf(name), func(w string) bool { return !slices.Contains(words, w) }) {
			return candidate
		}
		n := edits(name, candidate)
		likelier := n == bestEdits && best != "" && len(best) != len(name) && len(candidate) == len(name) // letters that changed places
		if n < bestEdits || likelier {
			best, bestEdits = candidate, n
		}
	}
	return best
}

func wordsOf(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '_' || r == '-' })
}

// edits is the Levenshtein distance.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
