package consume

import (
	"time"

	"golang.org/x/sys/unix"
)

// The pauses between looks at a command's pipe, until the command has read the event from it.
const (
	firstLook   = 20 * time.Microsecond
	longestLook = 2 * time.Millisecond
)

// awaitTaken waits until the command has read all input. It returns at once if the input has ended, or if nobody can
// read it any more.
func (in *input) awaitTaken() {
	for pause := firstLook; in.unread() > 0; pause = min(2*pause, longestLook) {
		// Go's own timers last a millisecond at least while nothing else is to do.
		wait := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&wait, nil) // a signal interrupts it, which does no harm
	}
}

// unread returns the number of bytes that the command has not read yet; 0 if nobody can read them.
func (in *input) unread() int {
	raw, err := in.file.SyscallConn()
	if err != nil {
		return 0
	}
	bytes := 0
	_ = raw.Control(func(fd uintptr) { // fails once the input is closed
		ends := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(ends, 0); err != nil || n > 0 && ends[0].Revents&unix.POLLERR != 0 {
			return
		}
		bytes, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // fails for anything but a pipe
	})
	return bytes
}
