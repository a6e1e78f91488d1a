// Package consume hands timerd's events to a child process, in any language: a line of JSON each on its standard input,
// and a line of JSON each as the answer on its standard output. Everything else is in package client: durable
// consumers, retries, dead letters, deadlines, reconnects.
package consume

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/backoff"
)

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
	// defaultKillAfter leaves a handler time to finish, and fits within the limits of service managers.
	defaultKillAfter = 10 * time.Second
	// endsInARow is the number of times that the command may end without an answer to the same event. After the last of
	// them the worker requests a retry of the event.
	endsInARow = 3
	// mostEnds bounds the events whose ends are remembered. Some of these events may have been answered in other
	// processes.
	mostEnds = 10_000
)

// Worker runs a command, and hands it the events of a namespace. Set the fields before Run.
type Worker struct {
	// Command is the program, by path or by name in PATH, and its arguments.
	Command []string
	// Env is the command's environment, in the form of os.Environ. nil: the environment of this process.
	Env []string
	// Timeout limits the wait for an answer. A command that exceeds it is ended. 0: no limit.
	Timeout time.Duration
	// KillAfter is the time between SIGTERM and SIGKILL. Default: 10 s.
	KillAfter time.Duration
	Logger    *slog.Logger

	mu   sync.Mutex
	ends map[string]int // by event id: ends of the command in a row with the event in hand
}

// Run consumes the events of a namespace with the command until ctx ends. Then it takes no more events, gives the
// command c's StopTimeout for answers to the events in its hand, and ends it: end of input and SIGTERM, SIGKILL after
// KillAfter.
//
// With a Concurrency of 1 the command may leave out the id of an answer.
//
// If the command ends by itself, its events are given back and it is started again, after a growing pause. An event
// that it had in hand at three ends in a row becomes a retry request. Without a running command no events are fetched,
// so other processes get them.
//
// Run returns an error if the command cannot be started at first, or if c cannot consume then. Later it tries on.
func (w *Worker) Run(ctx context.Context, c *client.Consumer, namespace string) error {
	w.ends = map[string]int{}
	failing := backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: w.Logger}
	for first := true; ; first = false {
		command, err := start(w.Command, w.Env, c.Concurrency == 1, cmp.Or(w.KillAfter, defaultKillAfter), w.Logger)
		switch {
		case err != nil && first:
			return fmt.Errorf("start the command: %w", err)
		case err == nil:
			var answered bool
			answered, err = w.session(ctx, command, c, namespace)
			if _, ended := errors.AsType[*endError](err); !ended && (err == nil || first) {
				return err
			}
			if answered {
				failing.Succeed()
			}
		}
		pause := failing.Fail("the command has ended, or events cannot be fetched; starting it again", err)
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
	}
}

// endError is the reason why a command has ended by itself.
type endError struct{ reason error }

func (e *endError) Error() string { return e.reason.Error() }
func (e *endError) Unwrap() error { return e.reason }

// session consumes with one run of the command. It returns an *endError if the command ends by itself, and nil if ctx
// ends. It reports whether the command has answered an event.
func (w *Worker) session(
	ctx context.Context, command *child, c *client.Consumer, namespace string,
) (answered bool, err error) {
	consuming, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-command.ended:
			end()
		case <-consuming.Done():
		}
	}()
	var some atomic.Bool
	err = c.Consume(consuming, namespace, func(ctx context.Context, e client.Event) error {
		ok, result := w.handle(ctx, command, e)
		if ok {
			some.Store(true)
		}
		return result
	})
	command.stop(errStopping)
	<-command.ended
	if err == nil && !errors.Is(command.err, errStopping) {
		err = &endError{command.err}
	}
	return some.Load(), err
}

// errStopping is the reason for the end of a command that was asked to end because timerd stops.
var errStopping = errors.New("timerd stops")

// handle hands one event to the command and returns its answer as a handler's result. It reports whether there is an
// answer.
func (w *Worker) handle(ctx context.Context, command *child, e client.Event) (answered bool, result error) {
	if w.Timeout > 0 {
		late := fmt.Errorf("the command has not answered an event for %v", w.Timeout)
		defer time.AfterFunc(w.Timeout, func() { command.stop(late) }).Stop()
	}
	defer context.AfterFunc(ctx, func() { command.stop(errStopping) })()
	held := command.hand(e.ID, line(e))
	select {
	case <-held.answered:
	case <-command.ended:
	case <-ctx.Done():
		return false, client.GiveBack(ctx.Err())
	}
	select {
	case <-held.answered:
		w.forget(e.ID)
		return true, held.answer.verdict()
	default:
	}
	if errors.Is(command.err, errStopping) {
		return false, client.GiveBack(command.err)
	}
	if n := w.ended(e.ID); n >= endsInARow {
		w.forget(e.ID)
		return false, fmt.Errorf("the command ended %d times in a row with this event in hand: %w", n, command.err)
	}
	return false, client.GiveBack(command.err)
}

// ended counts an end of the command with an event in hand, and returns the number of ends in a row.
func (w *Worker) ended(id string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ends) >= mostEnds {
		clear(w.ends)
	}
	w.ends[id]++
	return w.ends[id]
}

// forget resets the count of the command's ends during an event.
func (w *Worker) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.ends, id)
}

// line returns an event as one line of JSON. A payload may have line breaks between its own tokens.
func line(e client.Event) []byte {
	text := e.AppendJSON(nil)
	if bytes.ContainsAny(text, "\r\n") {
		var compact bytes.Buffer
		if json.Compact(&compact, text) == nil { // AppendJSON writes valid JSON
			text = compact.Bytes()
		}
	}
	return append(text, '\n')
}
