//go:build unix && !linux

package devserver

import "syscall"

// attributes has no counterpart to Pdeathsig: if this program is killed, the process survives it.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
