package notify

import "time"

// tally counts what happens again and again, so that the log tells of it once, and then of all since, now and then. It is
// for one goroutine at a time.
type tally struct {
	every  time.Duration // how long nothing more is logged
	logged time.Time
	n      int
}

// add counts n more at a time, and returns how many are to be logged now: 0 for none.
func (t *tally) add(now time.Time, n int) int {
	t.n += n
	if t.n == 0 || now.Sub(t.logged) < t.every {
		return 0
	}
	count := t.n
	t.logged, t.n = now, 0
	return count
}
