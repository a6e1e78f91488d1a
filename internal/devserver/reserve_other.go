//go:build !linux

package devserver

import "net"

// reserve returns an error unless it could bind the port just now. Another process may take it before the caller does.
func reserve(port int) error {
	l, err := net.Listen("tcp", Address(port))
	if err != nil {
		return err
	}
	return l.Close()
}
