package consume

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
)

const (
	// shownNoise bounds the part of a noisy line that the log shows, in bytes.
	shownNoise = 200
	// lastOutput bounds the read of an ended command's output: its child processes may hold it open.
	lastOutput = time.Second
)

// child is one run of the command: a process that reads events and writes answers, a line each. Its methods may be
// called concurrently.
type child struct {
	process *exec.Cmd
	input   input
	output  *output
	// alone means that the command has one event in hand at a time, and may answer it without its id.
	alone bool
	// killAfter is the time between SIGTERM and SIGKILL.
	killAfter time.Duration
	log       *slog.Logger

	exited chan struct{} // closed once the process has ended
	ended  chan struct{} // closed once its last answers are read, too
	err    error         // the reason for the end; set before ended is closed

	mu      sync.Mutex
	inHand  map[string]*waiter // by event id
	current *waiter            // if alone, the event that an answer without an id belongs to; nil if there is none
	stopped error              // the reason for stopping it; the first one counts
	noise   int                // lines without an answer
}

// waiter is an event in the command's hand.
type waiter struct {
	id       string
	next     *waiter       // another one with this id
	answered chan struct{} // closed once answer is set
	answer   answer
}

// start runs the command in an environment, this process's if nil. Its standard error is that of this process, so that
// nobody has to collect it. It leads a process group of its own: a Ctrl-C in the terminal reaches this process alone,
// which lets the command finish.
func start(command, env []string, alone bool, killAfter time.Duration, log *slog.Logger) (*child, error) {
	in, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	theirs, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close(), ours.Close())
	}
	c := &child{
		process: exec.Command(command[0], command[1:]...), //nolint:noctx // stop ends it, with time to finish
		input:   input{file: ours}, alone: alone, killAfter: killAfter, log: log,
		exited: make(chan struct{}), ended: make(chan struct{}), inHand: make(map[string]*waiter),
	}
	c.process.Stdin, c.process.Stdout, c.process.Stderr = in, out, os.Stderr
	c.process.Env = env
	c.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.output, err = newOutput(theirs, c.take)
	if err == nil {
		err = c.process.Start()
	}
	_ = errors.Join(in.Close(), out.Close()) // the process has copies of them
	if err != nil {
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	read := make(chan struct{})
	go func() {
		c.output.read()
		close(read)
		if !backoff.Within(lastOutput, c.exited) {
			c.stop(errors.New("the command closed its output"))
		}
	}()
	go c.wait(read)
	return c, nil
}

// wait waits for the end of the process, kills its remaining child processes, and reads the rest of its output.
func (c *child) wait(read <-chan struct{}) {
	err := c.process.Wait()
	close(c.exited)
	c.signal(syscall.SIGKILL)
	_ = c.output.file.SetReadDeadline(time.Now().Add(lastOutput))
	<-read
	_ = errors.Join(c.output.file.Close(), c.input.file.Close())
	c.mu.Lock()
	c.err = c.reason(err)
	noise := c.noise
	c.mu.Unlock()
	if noise > 1 {
		c.log.Warn("lines of the command's output without an answer", "count", noise)
	}
	close(c.ended)
}

// reason returns the reason why the process ended, given the error of its Wait. The caller holds c.mu.
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

// signal signals the process and its child processes.
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
	_ = c.input.file.Close()
	select {
	case <-c.exited:
		return // another process may have its process id by now
	default:
	}
	c.signal(syscall.SIGTERM)
	go func() {
		if !backoff.Within(c.killAfter, c.exited) {
			c.signal(syscall.SIGKILL)
		}
	}()
}

// hand takes an event into the command's hand and writes its line, with its line break. It stops a command that has
// closed its input. If the command gets one event at a time, hand returns once it reads the event.
func (c *child) hand(id string, line []byte) *waiter {
	c.mu.Lock()
	w := &waiter{id: id, next: c.inHand[id], answered: make(chan struct{})}
	c.inHand[id] = w
	c.mu.Unlock()
	var err error
	if c.alone {
		err = c.handAlone(w, line)
	} else {
		err = c.input.write(line)
	}
	if err != nil {
		c.stop(fmt.Errorf("the command closed its input: %w", err))
	}
	return w
}

// handAlone writes the line of the only event in hand in a way that no earlier output passes for its answer. A late or
// doubled answer without an id would acknowledge this event. So the line break comes last. Once the command has read
// everything before the line break, it waits for the line's end, and all of its output until then is about earlier
// events.
func (c *child) handAlone(w *waiter, line []byte) error {
	text, lineBreak := line[:len(line)-1], line[len(line)-1:]
	if err := c.input.write(text); err != nil {
		return err
	}
	c.input.awaitTaken()
	c.output.catchUp()
	c.mu.Lock()
	if c.inHand[w.id] == w { // otherwise it is answered already, by its id
		c.current = w
	}
	c.mu.Unlock()
	return c.input.write(lineBreak)
}

// take gives an answer to its event. An answer without an id is about the current event. All other output is noise: an
// unknown id, a second answer, no answer at all.
func (c *child) take(p piece) {
	a, ok := readAnswer(p.text)
	c.mu.Lock()
	w := c.inHand[a.ID]
	if a.ID == "" && !p.stale {
		w = c.current
	}
	if ok && p.whole && w != nil {
		c.current = nil
		if c.inHand[w.id] = w.next; w.next == nil {
			delete(c.inHand, w.id)
		}
		w.answer = a
		close(w.answered)
		c.mu.Unlock()
		return
	}
	c.noise++
	first := c.noise == 1
	c.mu.Unlock()
	if first {
		c.log.Warn("a line of the command's output is no answer to an event in its hand; further ones are counted",
			"line", string(p.text[:min(len(p.text), shownNoise)]))
	}
}
