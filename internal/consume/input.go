package consume

import (
	"bytes"
	"os"
	"sync"
)

// input writes lines to the command. Its methods may be called concurrently.
type input struct {
	file *os.File

	mu      sync.Mutex
	waiting bytes.Buffer // lines to write
	spare   bytes.Buffer
	writing bool // one caller of write is writing for all
}

// write writes a line, or leaves it to a concurrent call, which writes all waiting lines in one piece. The reason of an
// error is the reason of the command's end.
func (in *input) write(line []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.waiting.Write(line)
	if in.writing {
		return nil
	}
	in.writing = true
	defer func() { in.writing = false }()
	for in.waiting.Len() > 0 {
		in.waiting, in.spare = in.spare, in.waiting
		in.mu.Unlock()
		_, err := in.file.Write(in.spare.Bytes())
		in.mu.Lock()
		in.spare.Reset()
		if err != nil {
			return err
		}
	}
	return nil
}
