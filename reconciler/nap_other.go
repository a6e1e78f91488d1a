//go:build !linux

package reconciler

import "time"

// napper sleeps for short whiles.
type napper struct{}

func newNapper() (*napper, error) { return nil, nil }

func (*napper) close() error { return nil }

func (*napper) nap(d time.Duration) { time.Sleep(d) }
