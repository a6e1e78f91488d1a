package devserver

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// reserve keeps a port for this process: as long as it runs no other process finds the port free, and neither does this
// one a second time. It binds a socket that never listens. Servers, which set SO_REUSEADDR, can bind the port beside it.
// The error of a port that is taken wraps syscall.EADDRINUSE.
func reserve(port int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("devserver: %w", err)
	}
	// Without SO_REUSEADDR this fails beside any other socket of the port, a reservation too. Once it is bound, others may.
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("devserver: %s: %w", Address(port), err), unix.Close(fd))
	}
	return nil
}
