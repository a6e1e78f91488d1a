package listener

import (
	"bytes"
	"errors"
	"net"
	"strconv"
	"time"
)

const (
	// readSize is how much is read at once, and how much of a buffer is kept.
	readSize = 32 << 10
	// maxMessage is how long a payload may be: longer ones are not timerd's, and are not kept in memory.
	maxMessage = 1 << 20
)

// pushConn is a Redis connection that hands the messages of its subscriptions to receive as they come in, without a copy, and
// passes everything else on to its reader: the client that has made it. receive returns an error to end the connection. What it
// gets is valid until caughtUp is called. BenchmarkMessages has what it saves.
type pushConn struct {
	net.Conn
	receive func(channel, payload []byte) error
	// caughtUp is called whenever all that was read has been handed over, before more is read.
	caughtUp func()
	// lag returns how long to wait before more is read: what comes meanwhile is read at once, which costs less.
	lag func() time.Duration

	buf  []byte
	r, w int // what was read and not handed over is buf[r:w]
	pass int // how many bytes from r on are for the reader
	drop int // how many are for nobody
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

// fill reads more behind what there is.
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

// parseFrame returns how many bytes the first frame of b has, 0 if it is not complete, and of a message its channel, which
// is not nil, and its payload. The payload is nil, and need not be complete, if it is too long.
func parseFrame(b []byte) (size int, channel, payload []byte, err error) {
	// The elements of a message are bulk strings: its kind, perhaps the pattern, the channel and the payload.
	if len(b) > 1 && (b[0] == '*' || b[0] == '>') && (b[1] == '3' || b[1] == '4') {
		rest, complete := afterLine(b)
		var kind []byte
		if kind, rest, complete = bulk(rest, complete); complete && (string(kind) == "message" || string(kind) == "pmessage" || string(kind) == "smessage") {
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

// afterLine returns what follows the first line of b.
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

// bulk reads a bulk string, if what is before it was complete. It is not complete either if it is none, or null.
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

// skip returns what follows the first value of b.
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
		elements++ // the value that the attributes are about
	}
	for range elements {
		if rest, complete, err = skip(rest); !complete {
			return nil, false, err
		}
	}
	return rest, true, nil
}
