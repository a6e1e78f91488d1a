//go:build unix && !linux

package devserver

import "syscall"

// attributes has no counterpart to Pdeathsig: where this program is killed, the process stays behind.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
