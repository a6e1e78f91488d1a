package connect

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"
)

// wrapSocket returns a connection whose reads and writes skip the scheduler's bookkeeping for blocking system calls. It
// returns other connections than sockets as they are.
func wrapSocket(c net.Conn) net.Conn {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return c
	}
	return &conn{Conn: c, raw: raw}
}

type conn struct {
	net.Conn
	raw syscall.RawConn
}

func (c *conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	var n int
	var errno syscall.Errno
	err := c.raw.Read(func(fd uintptr) bool {
		n, errno = call(syscall.SYS_READ, fd, p)
		return errno != syscall.EAGAIN
	})
	switch {
	case err != nil || errno != 0:
		return 0, c.fault("read", err, errno)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *conn) Write(p []byte) (int, error) {
	written := 0
	var errno syscall.Errno
	err := c.raw.Write(func(fd uintptr) bool {
		for written < len(p) {
			var n int
			if n, errno = call(syscall.SYS_WRITE, fd, p[written:]); errno != 0 {
				return errno != syscall.EAGAIN
			}
			written += n
		}
		return true
	})
	if err != nil || errno != 0 {
		return written, c.fault("write", err, errno)
	}
	return written, nil
}

// call reads into or writes from p, which is not empty.
func call(trap, fd uintptr, p []byte) (int, syscall.Errno) {
	for {
		//nolint:gosec // as package syscall does
		n, _, errno := syscall.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
		switch errno {
		case 0:
			return int(n), 0
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// fault returns a failure as a net.Conn's error: err from waiting for the socket, or else errno from the call.
func (c *conn) fault(op string, err error, errno syscall.Errno) error {
	fault := &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr()}
	if waiting, ok := errors.AsType[*net.OpError](err); ok {
		fault.Err = waiting.Err
	} else if err != nil {
		fault.Err = err
	} else {
		fault.Err = os.NewSyscallError(op, errno)
	}
	return fault
}
