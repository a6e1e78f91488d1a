//go:build !linux

package reconciler

import "time"

// preciseTimer sleeps for short times.
type preciseTimer struct{}

func newPreciseTimer() (*preciseTimer, error) { return nil, nil }

func (*preciseTimer) close() error { return nil }

func (*preciseTimer) sleep(d time.Duration) { time.Sleep(d) }
