package rig

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notification is the kernel's notice of a waiting call: struct seccomp_notif.
type notification struct {
	id         uint64
	pid, flags uint32
	call       struct {
		number, arch uint32
		pointer      uint64
		args         [6]uint64
	}
}

// permission lets a waiting call go on: struct seccomp_notif_resp.
type permission struct {
	id    uint64
	value int64
	code  int32
	flags uint32
}

// SlowDisk delays each fsync of this process from now on, one after the other, like a disk that makes one sync at a
// time. The kernel notifies a thread of each call, and the thread releases the call after the delay.
func SlowDisk(delay time.Duration) error {
	// The number of the call is the first field of a filter's input.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_FSYNC, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC |
		unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("rig: slow disk: %w", err)
	}
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags,
		uintptr(unsafe.Pointer(&program))) //nolint:gosec // the kernel's interface
	if errno != 0 {
		return fmt.Errorf("rig: slow disk: seccomp: %w", errno)
	}
	go delayCalls(listener, delay)
	return nil
}

// delayCalls releases waiting calls. A call is released one delay after the call before it, or one delay after its own
// beginning if that is later.
func delayCalls(listener uintptr, delay time.Duration) {
	runtime.LockOSThread()
	pause := unix.NsecToTimespec(delay.Nanoseconds())
	for {
		var n notification
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&n))) //nolint:gosec // the kernel's interface
		if errno != 0 {
			continue // the calling thread was interrupted
		}
		// The pause is on this thread, because the runtime's own timers are late by about the delay of a disk.
		for left := pause; errors.Is(unix.Nanosleep(&left, &left), unix.EINTR); {
			continue
		}
		p := permission{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		//nolint:gosec // the kernel's interface
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&p)))
	}
}
