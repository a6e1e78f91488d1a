//go:build !linux

package rig

import (
	"errors"
	"time"
)

// SlowDisk needs Linux.
func SlowDisk(time.Duration) error { return errors.New("rig: a slow disk needs Linux") }
