package consume

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// longestAnswer bounds a line of the command's output, in bytes. A longer one is noise. It is also the capacity of a
// pipe.
const longestAnswer = 64 << 10

// output splits the command's output into lines. read is for one goroutine. catchUp may be called at the same time.
type output struct {
	file *os.File
	raw  syscall.RawConn
	// handle is called with each whole line, without its line break, and with the rest at the end of the output.
	// It must not keep the line.
	handle func(piece)

	mu     sync.Mutex // from reading some bytes until handle has had their lines
	buffer []byte
	begun  []byte // a line without its end; at most longestAnswer bytes
	cut    bool   // that line is longer
	stale  bool   // catchUp was called since the line began
}

// piece is a line of the output, or a part of one.
type piece struct {
	text []byte
	// whole is false for a line without its end, and for one longer than longestAnswer.
	whole bool
	// stale means that the line began before the last catchUp.
	stale bool
}

func newOutput(file *os.File, handle func(piece)) (*output, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &output{file: file, raw: raw, handle: handle, buffer: make([]byte, longestAnswer)}, nil
}

// read handles lines until the output ends, is closed, or its read deadline is over.
func (o *output) read() {
	for ended := false; !ended; {
		err := o.raw.Read(func(fd uintptr) bool {
			_, err := o.readSome(int(fd))
			ended = err != nil && !errors.Is(err, unix.EAGAIN)
			return !errors.Is(err, unix.EAGAIN)
		})
		ended = ended || err != nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.begun) > 0 {
		o.handle(piece{text: o.begun})
	}
}

// catchUp handles the output so far, as much as a pipe holds. A line that has begun by then is stale.
func (o *output) catchUp() {
	_ = o.raw.Control(func(fd uintptr) { // fails once the output is closed
		for n := 0; n < longestAnswer; {
			some, err := o.readSome(int(fd))
			if err != nil {
				break
			}
			n += some
		}
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stale = len(o.begun) > 0
}

// readSome reads some output and handles its lines. It never waits: with nothing to read the error is unix.EAGAIN.
func (o *output) readSome(fd int) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := unix.Read(fd, o.buffer)
	switch {
	case errors.Is(err, unix.EINTR):
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	for rest := o.buffer[:n]; len(rest) > 0; {
		line, behind, ends := bytes.Cut(rest, []byte{'\n'})
		rest = behind
		if ends && len(o.begun) == 0 {
			o.handle(piece{text: line, whole: true})
			continue
		}
		room := longestAnswer - len(o.begun)
		o.cut = o.cut || len(line) > room
		o.begun = append(o.begun, line[:min(len(line), room)]...)
		if ends {
			o.handle(piece{text: o.begun, whole: !o.cut, stale: o.stale})
			o.begun, o.cut, o.stale = o.begun[:0], false, false
		}
	}
	return n, nil
}
