//go:build !linux

package connect

import "net"

// wrapSocket returns the connection as it is.
func wrapSocket(c net.Conn) net.Conn { return c }
