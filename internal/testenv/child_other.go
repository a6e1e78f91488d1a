//go:build !linux

package testenv

import "syscall"

// dieWithParent has no counterpart outside Linux: a test binary that is killed there leaves its
// servers behind.
func dieWithParent() *syscall.SysProcAttr { return nil }
