package devserver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// firstInterval and longestInterval are the first and the longest interval between tries.
const (
	firstInterval   = time.Millisecond
	longestInterval = 25 * time.Millisecond
)

// errFalse is the error of a condition that is false.
var errFalse = errors.New("condition is still false")

// Condition is a condition for Until: it holds once it returns nil, or true.
type Condition interface{ func() error | func() bool }

// Until polls cond until it holds, and then returns nil. Once timeout is over or ctx has ended, it returns cond's last
// error. An error made by Permanent ends the polling at once. cond is tried at once, then at growing intervals up to
// slowest, and a last time at the deadline. It runs on the caller's goroutine and should return quickly.
func Until[C Condition](ctx context.Context, timeout time.Duration, cond C) error {
	deadline := time.Now().Add(timeout)
	for wait := firstInterval; ; wait = min(2*wait, longestInterval) {
		err := try(cond)
		if err == nil {
			return nil
		}
		if p := (*permanent)(nil); errors.As(err, &p) {
			return p.cause
		}
		left := time.Until(deadline)
		if left <= 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(min(wait, left)):
		}
	}
}

// Permanent marks err as an error that further polling cannot change. For such an error, [Until] stops and returns err
// itself, without the mark.
func Permanent(err error) error { return &permanent{err} }

type permanent struct{ cause error }

func (p *permanent) Error() string { return p.cause.Error() }

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
