//go:build !linux

package reconciler

import "time"

// nap sleeps for a short while.
func nap(d time.Duration) { time.Sleep(d) }
