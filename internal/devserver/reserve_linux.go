package devserver

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// reserve keeps a port for this process. As long as this process runs, no other process finds the port free, and this
// process does not find it free a second time. reserve binds a socket that never listens. Servers set SO_REUSEADDR, so
// they can bind the port beside that socket. The error for a taken port wraps syscall.EADDRINUSE.
func reserve(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("devserver: %w", err)
	}
	// Without SO_REUSEADDR, binding fails if any other socket has the port, a reservation included. The option is set
	// afterwards, so that a server can bind the port.
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("devserver: %s: %w", Address(port), err), unix.Close(fd))
	}
	return nil
}
