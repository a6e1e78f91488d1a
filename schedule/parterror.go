package schedule

import (
	"errors"
	"fmt"
)

// PartError says that a step failed for some of the firings that it was about.
type PartError struct {
	Left []Firing // those that it failed for
	Err  error    // why it failed for one of them
}

func (e *PartError) Error() string { return fmt.Sprintf("%d of them failed: %v", len(e.Left), e.Err) }

// Unwrap returns why the step failed.
func (e *PartError) Unwrap() error { return e.Err }

// joinPartErrors returns the error of a step on firings that was taken in two parts, each with its error or nil.
func joinPartErrors(a []Firing, errA error, b []Firing, errB error) error {
	var failed PartError
	for _, part := range []struct {
		firings []Firing
		err     error
	}{{a, errA}, {b, errB}} {
		var some *PartError
		switch {
		case part.err == nil:
			continue
		case errors.As(part.err, &some):
			failed.Left = append(failed.Left, some.Left...)
		default:
			failed.Left = append(failed.Left, part.firings...)
		}
		failed.Err = part.err
	}
	switch {
	case failed.Err == nil:
		return nil
	case len(failed.Left) == len(a)+len(b):
		return failed.Err
	}
	return &failed
}
