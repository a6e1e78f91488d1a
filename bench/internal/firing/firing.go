// Package firing has the common parts of the measured systems and the workloads: the timers, and a worker process's
// report of a firing.
package firing

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Sizes of a timer. Redis's allocator rounds a key of up to 30 bytes to 32 bytes, and one of up to 44 bytes to 48.
const (
	KeyBytes     = 30
	PayloadBytes = 200
)

const keyPrefix = "bench:load:timer:"

// Timer is one timer to set. N is unique within a run of a system.
type Timer struct {
	N   int64
	Due time.Time // a whole millisecond
}

// Key returns the timer's key, of KeyBytes bytes.
func (t Timer) Key() string {
	return keyPrefix + fmt.Sprintf("%0*d", KeyBytes-len(keyPrefix), t.N)
}

// Payload returns the timer's payload: a JSON object of PayloadBytes bytes.
func (t Timer) Payload() []byte {
	head := `{"n":` + strconv.FormatInt(t.N, 10) + `,"pad":"`
	return append(append(make([]byte, 0, PayloadBytes), head...), strings.Repeat("x", PayloadBytes-len(head)-2)+`"}`...)
}

// OfKey returns the N of the timer with a key.
func OfKey(key string) (int64, error) {
	digits, ok := strings.CutPrefix(key, keyPrefix)
	if !ok {
		return 0, fmt.Errorf("key %q is not a key of the benchmark", key)
	}
	return strconv.ParseInt(digits, 10, 64)
}

// OfPayload returns the N of the timer with a payload. data may have more text after the payload.
func OfPayload(data []byte) (int64, error) {
	_, rest, ok := bytes.Cut(data, []byte(`"n":`))
	digits, _, ended := bytes.Cut(rest, []byte(","))
	if !ok || !ended {
		return 0, fmt.Errorf("payload %.100q is not a payload of the benchmark", data)
	}
	return strconv.ParseInt(string(digits), 10, 64)
}

// Firing is a firing that a worker received.
type Firing struct {
	N         int64
	Received  time.Time
	Published time.Time // its stored time at the server; zero if it is not stored
	Due       time.Time // the due time in the event; zero if the event has none
}

// ready is the line that a worker writes when it begins to receive.
const ready = "ready"

// flushInterval is the time for which reports wait for further ones, so that they cost the worker little.
const flushInterval = 20 * time.Millisecond

// Reporter writes a worker's firings. Each line has N and the three times of a firing in unix µs. Its methods may be
// called from any goroutine.
type Reporter struct {
	mu   sync.Mutex
	w    *bufio.Writer
	line []byte
	err  error
}

// NewReporter returns a reporter on w. It flushes by itself until the program ends.
func NewReporter(w io.Writer) *Reporter {
	r := &Reporter{w: bufio.NewWriterSize(w, 1<<16)}
	go func() {
		for range time.Tick(flushInterval) {
			r.mu.Lock()
			r.err = errors.Join(r.err, r.w.Flush())
			failed := r.err != nil
			r.mu.Unlock()
			if failed {
				return
			}
		}
	}()
	return r
}

// Ready reports that the worker receives from now on.
func (r *Reporter) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.w.WriteString(ready + "\n"); err != nil {
		return err
	}
	return r.w.Flush()
}

// Fired reports a firing. Its error may be about an earlier report.
func (r *Reporter) Fired(f Firing) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line = strconv.AppendInt(r.line[:0], f.N, 10)
	for _, t := range []time.Time{f.Received, f.Published, f.Due} {
		micros := int64(0)
		if !t.IsZero() {
			micros = t.UnixMicro()
		}
		r.line = strconv.AppendInt(append(r.line, ' '), micros, 10)
	}
	_, err := r.w.Write(append(r.line, '\n'))
	r.err = errors.Join(r.err, err)
	return r.err
}

// Read reads a worker's reports until the reader ends. It calls started for the line of Ready.
func Read(from io.Reader, started func(), fired func(Firing)) error {
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		if lines.Text() == ready {
			started()
			continue
		}
		f, err := parse(lines.Text())
		if err != nil {
			return err
		}
		fired(f)
	}
	return lines.Err()
}

func parse(line string) (Firing, error) {
	const fields = 4
	var n [fields]int64
	parts := strings.Fields(line)
	if len(parts) != fields {
		return Firing{}, fmt.Errorf("a worker reported %q; want %d numbers", line, fields)
	}
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseInt(part, 10, 64); err != nil {
			return Firing{}, fmt.Errorf("a worker reported %q: %w", line, err)
		}
	}
	at := func(micros int64) time.Time {
		if micros == 0 {
			return time.Time{}
		}
		return time.UnixMicro(micros)
	}
	return Firing{N: n[0], Received: at(n[1]), Published: at(n[2]), Due: at(n[3])}, nil
}
