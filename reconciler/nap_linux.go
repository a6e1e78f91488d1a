package reconciler

import (
	"syscall"
	"time"
)

// nap sleeps for a short while, and more precisely than time.Sleep: that is up to a
// millisecond late where the process has nothing else to do. A signal may end it
// early.
func nap(d time.Duration) {
	ts := syscall.NsecToTimespec(d.Nanoseconds())
	_ = syscall.Nanosleep(&ts, nil)
}
