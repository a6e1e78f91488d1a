package consume

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// longestAnswer bounds a line of the command's output, in bytes. A longer one is noise.
	longestAnswer = 64 << 10
	// shownNoise is how much of a line of noise the log shows, in bytes.
	shownNoise = 200
	// lastOutput is for how long the output of a command that has ended is read: processes that it left behind may
	// hold it open.
	lastOutput = time.Second
)

// child is one run of the command: a process that reads events and writes answers, a line each. Its methods may be
// called concurrently.
type child struct {
	process *exec.Cmd
	input   *os.File
	// killAfter is how long the process may ignore SIGTERM.
	killAfter time.Duration
	log       *slog.Logger

	writing sync.Mutex    // one line at a time
	exited  chan struct{} // closed once the process has ended
	ended   chan struct{} // closed once its last answers were read, too
	err     error         // the reason for the end; set before ended is closed

	mu      sync.Mutex
	inHand  []*waiter
	stopped error // why it is being stopped; the first reason counts
	noise   int   // lines that are no answers
}

// waiter is an event in the command's hand.
type waiter struct {
	id       string
	answered chan struct{} // closed once answer is set
	answer   answer
}

// start runs the command. Its standard error is that of this process, so that nobody has to collect it. It leads a
// process group of its own: a Ctrl-C in the terminal reaches this process alone, which lets the command finish.
func start(command []string, killAfter time.Duration, log *slog.Logger) (*child, error) {
	in, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	output, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), input.Close())
	}
	c := &child{
		process: exec.Command(command[0], command[1:]...), //nolint:noctx // stop ends it, with time to finish
		input:   input, killAfter: killAfter, log: log,
		exited: make(chan struct{}), ended: make(chan struct{}),
	}
	c.process.Stdin, c.process.Stdout, c.process.Stderr = in, out, os.Stderr
	c.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = c.process.Start()
	_ = errors.Join(in.Close(), out.Close()) // the process has its own
	if err != nil {
		return nil, errors.Join(err, input.Close(), output.Close())
	}
	read := make(chan struct{})
	go func() {
		c.read(output)
		close(read)
		if !within(lastOutput, c.exited) {
			c.stop(errors.New("the command closed its output"))
		}
	}()
	go c.wait(output, read)
	return c, nil
}

// wait waits for the end of the process, kills the processes that it left behind, and reads the rest of its output.
func (c *child) wait(output *os.File, read <-chan struct{}) {
	err := c.process.Wait()
	close(c.exited)
	c.signal(syscall.SIGKILL)
	_ = output.SetReadDeadline(time.Now().Add(lastOutput))
	<-read
	_ = errors.Join(output.Close(), c.input.Close())
	c.mu.Lock()
	c.err = c.reason(err)
	noise := c.noise
	c.mu.Unlock()
	if noise > 1 {
		c.log.Warn("lines of the command's output that are no answers", "count", noise)
	}
	close(c.ended)
}

// reason returns why the process has ended with a status. c.mu is held.
func (c *child) reason(status error) error {
	switch {
	case c.stopped != nil && status != nil:
		return fmt.Errorf("%w: %w", c.stopped, status)
	case c.stopped != nil:
		return c.stopped
	case status != nil:
		return fmt.Errorf("the command ended: %w", status)
	}
	return errors.New("the command ended: exit status 0")
}

// signal signals the process and those that it started. One that has ended gets none.
func (c *child) signal(s syscall.Signal) { _ = syscall.Kill(-c.process.Process.Pid, s) }

// stop ends the process, for a reason: with the end of its input and SIGTERM, and killAfter later with SIGKILL. It does
// not wait for the end.
func (c *child) stop(reason error) {
	c.mu.Lock()
	first := c.stopped == nil
	if first {
		c.stopped = reason
	}
	c.mu.Unlock()
	if !first {
		return
	}
	_ = c.input.Close()
	if within(0, c.exited) {
		return // another process may have its number
	}
	c.signal(syscall.SIGTERM)
	go func() {
		if !within(c.killAfter, c.exited) {
			c.signal(syscall.SIGKILL)
		}
	}()
}

// hand takes an event into the command's hand and writes its line. It blocks while the command does not read. A command
// to which the line cannot be written is stopped.
func (c *child) hand(id string, line []byte) *waiter {
	w := &waiter{id: id, answered: make(chan struct{})}
	c.mu.Lock()
	c.inHand = append(c.inHand, w)
	c.mu.Unlock()
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.input.Write(line); err != nil {
		c.stop(fmt.Errorf("the command closed its input: %w", err))
	}
	return w
}

// read takes answers from the output until its end.
func (c *child) read(output io.Reader) {
	lines := bufio.NewReaderSize(output, longestAnswer)
	for {
		line, err := lines.ReadSlice('\n')
		tooLong := false
		for errors.Is(err, bufio.ErrBufferFull) {
			tooLong = true
			_, err = lines.ReadSlice('\n')
		}
		if err != nil { // the rest is no whole line
			if len(line) > 0 {
				c.note(line)
			}
			return
		}
		if a, ok := readAnswer(line); tooLong || !ok || !c.take(a) {
			c.note(line)
		}
	}
}

// take hands an answer to the event that it is about. It reports false if there is none in hand: the id is unknown, or
// was answered before. An answer without an id is about the only event in hand.
func (c *child) take(a answer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, w := range c.inHand {
		if w.id == a.ID || a.ID == "" && len(c.inHand) == 1 {
			c.inHand = append(c.inHand[:i], c.inHand[i+1:]...)
			w.answer = a
			close(w.answered)
			return true
		}
	}
	return false
}

// note counts a line that is no answer, and logs the first one.
func (c *child) note(line []byte) {
	c.mu.Lock()
	c.noise++
	first := c.noise == 1
	c.mu.Unlock()
	if first {
		c.log.Warn("a line of the command's output is no answer to an event in its hand; further ones are counted",
			"line", string(line[:min(len(line), shownNoise)]))
	}
}

// within reports whether c is closed before d is over.
func within(d time.Duration, c <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}
