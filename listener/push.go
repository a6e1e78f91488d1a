package listener

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"time"
)

const (
	// readSize is the size of a read, and of the buffer between large messages.
	readSize = 32 << 10
	// maxMessage limits a payload, in bytes. A longer payload is not timerd's, and is not kept in memory.
	maxMessage = 1 << 20
)

// pushConn is a Redis connection. It passes the messages of its subscriptions to receive as they come, without a copy,
// and everything else to the client that reads from it. An error of receive ends the connection. The arguments of
// receive are valid until the next call of caughtUp. BenchmarkMessages measures the gain.
type pushConn struct {
	net.Conn
	receive func(channel, payload []byte) error
	// caughtUp is called before each read, once all bytes read so far are passed on.
	caughtUp func()
	// lag returns the wait before a read. Fewer and larger reads cost less.
	lag func() time.Duration

	buf  []byte
	r, w int // buf[r:w] was read and not passed on
	pass int // bytes from r on that go to the client
	drop int // bytes from r on that are dropped
}

var errNotRESP = errors.New("listener: the server sent something that is not RESP")

// Read implements net.Conn for one reader at a time.
func (c *pushConn) Read(p []byte) (int, error) {
	for {
		if n := copy(p, c.buf[c.r:min(c.r+c.pass, c.w)]); n > 0 {
			c.r += n
			c.pass -= n
			return n, nil
		}
		if c.drop > 0 {
			n := min(c.drop, c.w-c.r)
			c.r += n
			if c.drop -= n; c.drop > 0 {
				if err := c.fill(); err != nil {
					return 0, err
				}
				continue
			}
		}
		switch size, channel, payload, err := parseFrame(c.buf[c.r:c.w]); {
		case err != nil:
			return 0, err
		case size == 0:
			if err := c.fill(); err != nil {
				return 0, err
			}
		case channel == nil:
			c.pass = size
		case payload == nil:
			c.drop = size
		default:
			if err := c.receive(channel, payload); err != nil {
				return 0, err
			}
			c.r += size
		}
	}
}

// fill appends a read to the buffer.
func (c *pushConn) fill() error {
	c.caughtUp()
	if lag := c.lag(); lag > 0 {
		time.Sleep(lag)
	}
	left := c.buf[c.r:c.w]
	size := len(c.buf)
	switch {
	case 2*len(left) > size:
		size *= 2
	case len(left) < readSize/2:
		size = readSize
	}
	if size != len(c.buf) {
		c.buf = make([]byte, size)
	}
	c.r, c.w = 0, copy(c.buf, left)
	n, err := c.Conn.Read(c.buf[c.w:])
	c.w += n
	if n > 0 {
		return nil
	}
	return err
}

// parseFrame returns the size of the first frame of b, or 0 for an incomplete one, and the channel and payload of a
// message. The channel of a message is not nil. A payload over maxMessage is nil and need not be complete.
func parseFrame(b []byte) (size int, channel, payload []byte, err error) {
	// The elements of a message are bulk strings: its kind, perhaps the pattern, the channel and the payload.
	if len(b) > 1 && (b[0] == '*' || b[0] == '>') && (b[1] == '3' || b[1] == '4') {
		rest, complete := afterLine(b)
		var kind []byte
		kind, rest, complete = bulk(rest, complete)
		if complete && (string(kind) == "message" || string(kind) == "pmessage" || string(kind) == "smessage") {
			if string(kind) == "pmessage" {
				_, rest, complete = bulk(rest, complete)
			}
			channel, rest, complete = bulk(rest, complete)
			if n, after, ok := number(rest); complete && ok && rest[0] == '$' && n > maxMessage {
				return len(b) - len(after) + n + len("\r\n"), channel, nil, nil
			}
			payload, rest, complete = bulk(rest, complete)
			if complete {
				return len(b) - len(rest), channel, payload, nil
			}
		}
	}
	rest, complete, err := skip(b)
	if !complete {
		return 0, nil, nil, err
	}
	return len(b) - len(rest), nil, nil, nil
}

// afterLine returns the bytes after the first line of b.
func afterLine(b []byte) (rest []byte, complete bool) {
	_, rest, complete = bytes.Cut(b, []byte("\n"))
	return rest, complete
}

// number reads the line after the type of a frame.
func number(b []byte) (n int, rest []byte, complete bool) {
	at := bytes.IndexByte(b, '\n')
	if at < 2 {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(b[1 : at-1]))
	return n, b[at+1:], err == nil
}

// bulk reads a bulk string if the elements before it were complete. Another type, or null, counts as incomplete.
func bulk(b []byte, before bool) (text, rest []byte, complete bool) {
	if !before || len(b) == 0 || b[0] != '$' {
		return nil, nil, false
	}
	n, rest, complete := number(b)
	if !complete || n < 0 || len(rest) < n+2 {
		return nil, nil, false
	}
	return rest[:n:n], rest[n+2:], true
}

// skip returns the bytes after the first value of b.
func skip(b []byte) (rest []byte, complete bool, err error) {
	if len(b) == 0 {
		return nil, false, nil
	}
	var elements int
	switch b[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		rest, complete = afterLine(b)
		return rest, complete, nil
	case '$', '!', '=':
		n, rest, complete := number(b)
		switch {
		case !complete || n < 0:
			return rest, complete, nil
		case len(rest) < n+2:
			return nil, false, nil
		}
		return rest[n+2:], true, nil
	case '*', '>', '~':
		elements = 1
	case '%', '|':
		elements = 2
	default:
		return nil, false, errNotRESP
	}
	n, rest, complete := number(b)
	if !complete {
		return nil, false, nil
	}
	elements *= max(n, 0)
	if b[0] == '|' {
		elements++ // the value that these attributes describe
	}
	for range elements {
		if rest, complete, err = skip(rest); !complete {
			return nil, false, err
		}
	}
	return rest, true, nil
}
