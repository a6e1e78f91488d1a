package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/event"
)

// RetryAfter returns an error with which a handler asks for its event again after d, in place of the delay of timerd's
// retry policy. A negative d is 0. err is the reason; it may be nil. The number of attempts is still limited by the
// policy.
func RetryAfter(d time.Duration, err error) error {
	d = max(d, 0)
	return &retryAfterError{reason: reason{err, fmt.Sprintf("try again after %v", d)}, delay: d}
}

// RetryNoSooner returns an error with which a handler asks for its event again after d, or after the delay of timerd's
// retry policy if that is longer. It is meant for the Retry-After of an HTTP answer: a host can ask for a longer delay,
// but cannot use up the attempts at once with a short one. A negative d is 0. err is the reason; it may be nil.
func RetryNoSooner(d time.Duration, err error) error {
	d = max(d, 0)
	return &retryAfterError{reason: reason{err, fmt.Sprintf("try again after %v at least", d)}, delay: d, least: true}
}

// Postpone returns an error with which a handler postpones its event: it comes again after d, as the same attempt. An
// event may be postponed any number of times; Event.First returns its first due time. A negative d is 0. err is the
// reason; it may be nil. The limit of client.Late counts from the new due time.
func Postpone(d time.Duration, err error) error {
	d = max(d, 0)
	return &postponeError{reason{err, fmt.Sprintf("postponed by %v", d)}, d}
}

// GiveBack returns an error with which a handler hands its event back to JetStream, as if it had never received it. The
// event comes again at once, to this process or another one with the same durable consumer. No attempt is used up. err
// is the reason; it may be nil.
func GiveBack(err error) error { return &giveBackError{reason{err, "given back"}} }

// Dead returns an error with which a handler gives up on its event for good: it goes to the dead letters at once. err
// is the reason, kept there; it may be nil.
func Dead(err error) error { return &deadError{reason{err, "given up"}} }

// reason is a handler's reason for another outcome than a plain retry.
type reason struct {
	err     error  // nil: none given
	without string // the text without err
}

func (r *reason) Error() string {
	if r.err == nil {
		return r.without
	}
	return r.err.Error()
}

func (r *reason) Unwrap() error { return r.err }

type retryAfterError struct {
	reason
	delay time.Duration
	least bool // the policy's delay counts if longer
}

type postponeError struct {
	reason
	delay time.Duration
}

type giveBackError struct{ reason }

type deadError struct{ reason }

// verdict is the action on an event after its handler.
type verdict int

const (
	verdictRetry      verdict = iota // by the policy
	verdictRetryAfter                // after a delay of the handler's own
	verdictNoSooner                  // after that delay, or the policy's if longer
	verdictPostpone                  // after that delay, or the policy's if longer, as the same attempt
	verdictDead
	verdictDone
	verdictReturn // to JetStream, at no cost: the handler was interrupted, or asked for that
)

// outcome is the result of a handler.
type outcome struct {
	verdict verdict
	delay   time.Duration // of verdictRetryAfter, verdictNoSooner and verdictPostpone
	err     string        // the handler's error, in the form of event.ErrorText
	stack   []byte        // of a panic
}

// judge reads a handler's error. cutShort is set if the handler's context ended before it returned: a plain error then
// says nothing about the event.
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
		if later.least {
			o.verdict = verdictNoSooner
		}
	} else if _, back := errors.AsType[*giveBackError](err); back || cutShort {
		o.verdict = verdictReturn
	}
	return o
}
