package consume

import (
	"time"

	"golang.org/x/sys/unix"
)

// While a command has not taken an event out of its pipe, its pipe is looked at again after these pauses.
const (
	firstLook   = 20 * time.Microsecond
	longestLook = 2 * time.Millisecond
)

// awaitTaken waits until the command has read all that was written. It returns at once after the end of the input, and
// once nobody can read it any more.
func (in *input) awaitTaken() {
	for pause := firstLook; in.unread() > 0; pause = min(2*pause, longestLook) {
		// Go's own timers last a millisecond at least while nothing else is to do.
		wait := unix.NsecToTimespec(int64(pause))
		_ = unix.Nanosleep(&wait, nil) // a signal cuts it short, which does no harm
	}
}

// unread returns how many bytes the command has not read yet. It returns 0 if nobody can read them.
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
		bytes, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // fails for no pipe
	})
	return bytes
}
