package notify

import "time"

// tally counts repeated incidents. The log gets one line for the first incident, and now and then one line for all
// since the last line. It is for one goroutine at a time.
type tally struct {
	every  time.Duration // the shortest time between two lines
	logged time.Time
	n      int
}

// add counts n more incidents at a time, and returns the number to log now; 0 for none.
func (t *tally) add(now time.Time, n int) int {
	t.n += n
	if t.n == 0 || now.Sub(t.logged) < t.every {
		return 0
	}
	count := t.n
	t.logged, t.n = now, 0
	return count
}
