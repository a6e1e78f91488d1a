package keys

import (
	"slices"
	"strings"
)

// Nearest returns the known name that is most like name, or "" if none is like it. The first known name with all words
// of name, divided by _ or -, is the most like. Otherwise it is the known name with the fewest edits, if half of name
// stays.
func Nearest(name string, known []string) string {
	best, bestEdits := "", max(2, len(name)/2)+1
	for _, candidate := range known {
		if words := wordsOf(candidate); !slices.ContainsFunc(wordsOf(name),
			func(w string) bool { return !slices.Contains(words, w) }) {
			return candidate
		}
		n := edits(name, candidate)
		// swapped letters
		likelier := n == bestEdits && best != "" && len(best) != len(name) && len(candidate) == len(name)
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
