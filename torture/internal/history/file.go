package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// History is the content of a file, sorted by kind of line.
type History struct {
	Run      Run
	Ops      []Op // one key's in their order
	Faults   []Fault
	Messages []Message // in the order of their stream
	Holds    []HoldOp  // one namespace's in their order
	Stalls   []Stall   // in their order, apart
	Calls    []Call    // in the order of their answers
	// Deliveries are in the order of their stream.
	Deliveries []Delivery
	End        End
}

// Add adds a record.
func (h *History) Add(r Record) {
	switch {
	case r.Run != nil:
		h.Run = *r.Run
	case r.Op != nil:
		h.Ops = append(h.Ops, *r.Op)
	case r.Fault != nil:
		h.Faults = append(h.Faults, *r.Fault)
	case r.Message != nil:
		h.Messages = append(h.Messages, *r.Message)
	case r.Hold != nil:
		h.Holds = append(h.Holds, *r.Hold)
	case r.Stall != nil:
		h.Stalls = append(h.Stalls, *r.Stall)
	case r.Call != nil:
		h.Calls = append(h.Calls, *r.Call)
	case r.Delivery != nil:
		h.Deliveries = append(h.Deliveries, *r.Delivery)
	case r.End != nil:
		h.End = *r.End
	}
}

// Read reads a history. A history without its last line is an error: the run did not finish, so a missing message
// proves no loss.
func Read(r io.Reader) (*History, error) {
	h := &History{}
	lines := json.NewDecoder(r)
	for n := 1; ; n++ {
		var line Record
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("history: record %d: %w", n, err)
		}
		h.Add(line)
	}
	if h.End.At == 0 {
		return nil, errors.New("history: it has no end: the run was broken off")
	}
	return h, nil
}

// Writer writes a file. Its methods may be called from any goroutine.
type Writer struct {
	mu   sync.Mutex
	file *os.File
	buf  *bufio.Writer
	err  error // the first one, which Close returns
}

// Create makes a file.
func Create(path string) (*Writer, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return &Writer{file: f, buf: bufio.NewWriter(f)}, nil
}

// Write appends a record, with the digests of its payloads.
func (w *Writer) Write(r Record) {
	if r.Op != nil {
		op := *r.Op
		op.Payload = Digest(op.Payload)
		r.Op = &op
	}
	if r.Message != nil {
		m := *r.Message
		m.Payload = Digest(m.Payload)
		r.Message = &m
	}
	line, err := json.Marshal(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.err == nil {
		_, err = w.buf.Write(append(line, '\n'))
	}
	if w.err == nil {
		w.err = err
	}
}

// Close returns the first error of all writing.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.err, w.buf.Flush(), w.file.Close())
}
