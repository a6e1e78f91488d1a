package listener

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// stream is a connection that reads from r.
type stream struct {
	net.Conn
	r io.Reader
}

func (s stream) Read(p []byte) (int, error) { return s.r.Read(p) }

// byteByByte reads one byte at a time, except in the midst of a long run of one letter, which would take a megabyte.
type byteByByte struct{ r *bufio.Reader }

func (b byteByByte) Read(p []byte) (int, error) {
	const run = 1000
	if next, err := b.r.Peek(2 * run); err == nil && strings.Count(string(next), "x") == 2*run && len(p) >= run {
		return io.ReadFull(b.r, p[:run])
	}
	return b.r.Read(p[:min(len(p), 1)])
}

// message returns a frame of a message.
func message(kind string, parts ...string) string {
	frame := fmt.Sprintf("%d\r\n$%d\r\n%s\r\n", 1+len(parts), len(kind), kind)
	for _, p := range parts {
		frame += fmt.Sprintf("$%d\r\n%s\r\n", len(p), p)
	}
	return frame
}

// Messages are taken out of a connection, and everything else is passed on, however both are cut into pieces.
func TestPushConn(t *testing.T) {
	t.Parallel()
	long, tooLong := strings.Repeat("x", 3*readSize), strings.Repeat("x", maxMessage+1)
	frames := []string{
		"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*0\r\n",
		"+OK\r\n", "-ERR no\r\n", ":3\r\n", "$-1\r\n", "*-1\r\n", "_\r\n", "$3\r\na\r\n\r\n",
		"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
		"*" + message("message", "c", "one"),
		">" + message("pmessage", "c*", "channel", "two\r\n*3\r\n"),
		">3\r\n$10\r\npsubscribe\r\n$2\r\nc*\r\n:2\r\n",
		"*" + message("message", "", ""),
		"*4\r\n:1\r\n$1\r\nx\r\n*2\r\n+a\r\n+b\r\n#t\r\n",
		"*3\r\n$7\r\nmessage\r\n$-1\r\n:1\r\n", // no message after all
		"|1\r\n+a\r\n:1\r\n$2\r\nhi\r\n", "$" + fmt.Sprint(len(long)) + "\r\n" + long + "\r\n",
		">" + message("message", "long", long), "*" + message("message", "too long", tooLong),
		"*" + message("message", "c", "last"), "+PONG\r\n",
	}
	all, others := strings.Join(frames, ""), ""
	for _, f := range frames {
		if !strings.Contains(f, "message\r\n") || strings.Contains(f, "$-1") {
			others += f
		}
	}
	for name, reader := range map[string]io.Reader{
		"at once": strings.NewReader(all), "byte by byte": byteByByte{bufio.NewReader(strings.NewReader(all))},
		"in halves":    iotest.HalfReader(strings.NewReader(all)),
		"with the end": iotest.DataErrReader(strings.NewReader(all)),
	} {
		var got []string
		behind := 0
		c := &pushConn{lag: func() time.Duration { return 0 }, Conn: stream{r: reader},
			receive: func(channel, payload []byte) error {
				got = append(got, fmt.Sprintf("%s=%s", channel, payload))
				behind++
				return nil
			}, caughtUp: func() { behind = 0 }}
		passed, err := io.ReadAll(c)
		if err != nil || string(passed) != others {
			t.Errorf("%s: %d bytes passed on, %v; want %d", name, len(passed), err, len(others))
		}
		want := []string{"c=one", "channel=two\r\n*3\r\n", "=", "long=" + long, "c=last"}
		if !slices.Equal(got, want) || behind != 0 {
			t.Errorf("%s: %d messages, %.100q; %d of them not told of", name, len(got), got, behind)
		}
		if len(c.buf) > readSize && name != "byte by byte" {
			t.Errorf("%s: a buffer of %d bytes is kept", name, len(c.buf))
		}
	}
}

// A message's receiver can end the connection; so does anything but RESP.
func TestPushConnEnds(t *testing.T) {
	t.Parallel()
	enough := errors.New("enough")
	read := func(text string) error {
		c := &pushConn{lag: func() time.Duration { return 0 },
			Conn: stream{r: strings.NewReader(text)}, caughtUp: func() {},
			receive: func(_, _ []byte) error { return enough },
		}
		_, err := io.ReadAll(c)
		return err
	}
	if err := read("+OK\r\n*" + message("message", "c", "x") + "+OK\r\n"); !errors.Is(err, enough) {
		t.Errorf("after a message that ends it: %v", err)
	}
	if err := read("HTTP/1.1 400 Bad Request\r\n"); !errors.Is(err, errNotRESP) {
		t.Errorf("no RESP: %v", err)
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add([]byte("*"+message("message", "c", "x")), 3)
	f.Add([]byte("*2\r\n$1\r\na\r\n:1\r\n"), 5)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		size, channel, payload, err := parseFrame(b)
		switch {
		case size > len(b) && channel != nil && payload == nil:
			return // too long
		case size < 0 || size > len(b), err != nil && size != 0, size == 0 && channel != nil:
			t.Fatalf("size %d of %d, channel %q, %v", size, len(b), channel, err)
		case size == 0 || cut < 0 || cut >= size:
			return
		}
		// A part of a frame is incomplete, and the bytes after a frame do not matter.
		if n, _, _, _ := parseFrame(b[:cut]); n != 0 {
			t.Errorf("the first %d of %d bytes are a frame of %d", cut, size, n)
		}
		n, c, p, _ := parseFrame(append(bytes.Clone(b[:size]), "+OK\r\n"...))
		if n != size || !bytes.Equal(c, channel) || !bytes.Equal(p, payload) {
			t.Errorf("followed by more it has %d bytes, not %d", n, size)
		}
	})
}
