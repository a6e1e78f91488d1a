package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/event"
)

// RetryAfter returns an error by which a handler asks for its event again after d, in place of the delay of timerd's
// retry policy: for an HTTP answer with Retry-After, say. A negative d is 0. err, which may be nil, says why. The
// number of attempts is still limited by the policy.
func RetryAfter(d time.Duration, err error) error {
	return &retryAfterError{delay: max(d, 0), err: err}
}

// Postpone returns an error by which a handler puts its event off without trying: it comes again after d, as the same attempt. So
// it may be put off as often as need be; Event.First says since when it is. A negative d is 0. err, which may be nil, says why. The
// limit of client.Late counts from the new due time. A timerd of a version that does not know of it counts an attempt: let all be
// of this version first.
func Postpone(d time.Duration, err error) error { return &postponeError{delay: max(d, 0), err: err} }

// Dead returns an error by which a handler gives up on its event for good: it goes to the dead letters at once. err,
// which may be nil, says why and is kept there.
func Dead(err error) error { return &deadError{err: err} }

type retryAfterError struct {
	delay time.Duration
	err   error
}

func (e *retryAfterError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("try again after %v", e.delay)
	}
	return e.err.Error()
}

func (e *retryAfterError) Unwrap() error { return e.err }

type postponeError struct {
	delay time.Duration
	err   error
}

func (e *postponeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("postponed by %v", e.delay)
	}
	return e.err.Error()
}

func (e *postponeError) Unwrap() error { return e.err }

type deadError struct{ err error }

func (e *deadError) Error() string {
	if e.err == nil {
		return "given up"
	}
	return e.err.Error()
}

func (e *deadError) Unwrap() error { return e.err }

// verdict is what is to be done with an event after its handler.
type verdict int

const (
	verdictRetry      verdict = iota // by the policy
	verdictRetryAfter                // after a delay of the handler's own
	verdictPostpone                  // likewise, as the same attempt
	verdictDead
	verdictDone
	verdictReturn // to JetStream, at no cost: the handler was cut short
)

// outcome is what came of a handler.
type outcome struct {
	verdict verdict
	delay   time.Duration // of verdictRetryAfter and verdictPostpone
	err     string        // the handler's error, as event.ErrorText writes it
	stack   []byte        // of a panic
}

// judge reads a handler's error. cutShort says that the handler's context had ended before it returned: a plain error
// then tells nothing about the event.
func judge(err error, cutShort bool) outcome {
	if err == nil {
		return outcome{verdict: verdictDone}
	}
	o := outcome{err: event.ErrorText(fmt.Sprint(err))}
	if _, dead := errors.AsType[*deadError](err); dead {
		o.verdict = verdictDead
	} else if later, ok := errors.AsType[*postponeError](err); ok {
		o.verdict, o.delay = verdictPostpone, later.delay
	} else if later, ok := errors.AsType[*retryAfterError](err); ok {
		o.verdict, o.delay = verdictRetryAfter, later.delay
	} else if cutShort {
		o.verdict = verdictReturn
	}
	return o
}
