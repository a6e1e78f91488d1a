//go:build !linux

package devserver

import "net"

// reserve tells whether a port could be bound a moment ago. Another process may take it before the caller does.
func reserve(port int) error {
	l, err := net.Listen("tcp", Address(port))
	if err != nil {
		return err
	}
	return l.Close()
}
