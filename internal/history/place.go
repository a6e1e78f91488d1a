package history

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrPlace means that a text is not the place of any page.
var ErrPlace = errors.New("not a place in the streams: begin at the newest event again")

// parsePlace reads a place: for each stream the sequence of the first message searched. A stream missing in it begins
// at its end.
func parsePlace(s string, streams int) ([]uint64, error) {
	next := make([]uint64, streams)
	for i := range next {
		next[i] = fromEnd
	}
	if s == "" {
		return next, nil
	}
	numbers := strings.Split(s, ".")
	if len(numbers) > streams {
		return nil, fmt.Errorf("%.100q: %w", s, ErrPlace)
	}
	for i, number := range numbers {
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%.100q: %w", s, ErrPlace)
		}
		next[i] = n
	}
	return next, nil
}

// formatPlace is the inverse of parsePlace.
func formatPlace(next []uint64) string {
	numbers := make([]string, len(next))
	for i, n := range next {
		numbers[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(numbers, ".")
}
