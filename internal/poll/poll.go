// Package poll waits for what tells nobody that it has happened.
package poll

import (
	"errors"
	"fmt"
	"time"
)

// First is the first interval, Slowest the longest.
const (
	First   = time.Millisecond
	Slowest = 25 * time.Millisecond
)

// errFalse is what a condition that is merely false reports.
var errFalse = errors.New("condition is still false")

// Condition is what Until polls: it holds once it returns nil, or true.
type Condition interface{ func() error | func() bool }

// Until polls cond until it holds, or returns cond's last error when it does not hold within
// timeout. cond is tried at once, then at growing intervals up to Slowest, and a last time at the
// deadline. It runs on the caller's goroutine and should return quickly.
func Until[C Condition](timeout time.Duration, cond C) error {
	deadline := time.Now().Add(timeout)
	for wait := First; ; wait = min(2*wait, Slowest) {
		err := try(cond)
		if err == nil {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return err
		}
		time.Sleep(min(wait, left))
	}
}

func try[C Condition](cond C) error {
	switch f := any(cond).(type) {
	case func() error:
		return f()
	case func() bool:
		if !f() {
			return errFalse
		}
		return nil
	default:
		return fmt.Errorf("unusable condition of type %T", cond)
	}
}
