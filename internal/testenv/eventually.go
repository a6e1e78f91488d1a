package testenv

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

const (
	firstPoll   = time.Millisecond
	slowestPoll = 25 * time.Millisecond
)

// errFalse is what a condition that is merely false reports.
var errFalse = errors.New("condition is still false")

// Condition is what Eventually polls: it holds once it returns nil, or true.
type Condition interface{ func() error | func() bool }

// Eventually polls cond until it holds and ends the test with msg, and cond's last error, when it
// does not hold within timeout. cond is tried at once, then at growing intervals up to 25 ms, and a
// last time at the deadline. It runs on the caller's goroutine and should return quickly.
func Eventually[C Condition](t testing.TB, timeout time.Duration, cond C, msg string) {
	t.Helper()
	if err := poll(timeout, cond); err != nil {
		t.Fatalf("%s: not within %v: %v", msg, timeout, err)
	}
}

func poll[C Condition](timeout time.Duration, cond C) error {
	deadline := time.Now().Add(timeout)
	for wait := firstPoll; ; wait = min(2*wait, slowestPoll) {
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
