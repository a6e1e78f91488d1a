package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// pullExpiry is how long a fetch waits at the server, and heartbeat how often
	// the server says meanwhile that it still knows of it.
	pullExpiry = 30 * time.Second
	heartbeat  = 5 * time.Second

	// drainTimeout bounds the wait for events that were on their way when their
	// fetch was withdrawn.
	drainTimeout = 2 * time.Second

	// lastCall is what handlers get to return once their context has ended.
	lastCall = time.Second

	// goneAfter is for how long a server must say that the stream or the durable
	// consumer does not exist until that is believed: a cluster that has just
	// started may say so in error.
	goneAfter = 10 * time.Second

	// warnEvery limits the lines in the log about one trouble with fetching.
	warnEvery = 30 * time.Second

	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	callTimeout  = 5 * time.Second // of one request to JetStream
)

// run is one call of Consume: Concurrency lanes, each of which fetches one event,
// has it handled and settled, and fetches the next. A fetch asks for one event, so
// none waits in this process for a handler while its ack deadline passes.
type run struct {
	*Consumer // with every field set
	handler   Handler
	durable   jetstream.Consumer
	conn      *nats.Conn

	unfinished atomic.Int64 // handlers left behind by lanes that had to end

	mu      sync.Mutex // guards the fields below
	fetches context.Context
	renew   context.CancelFunc // ends fetches

	checking sync.Mutex // held by the lane that asks for the durable consumer
	warned   time.Time  // guarded by checking
}

// run consumes until ctx ends. It goes through three phases, each with a context:
// intake is ctx, or ends with the first lane that cannot go on; handlers ends
// StopTimeout after it, and settle ends lastCall after that. Lanes end when their
// event is settled, and with settle at the latest.
func (r *run) run(ctx context.Context) error {
	intake, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer endHandlers()
	settle, endSettle := context.WithCancel(context.WithoutCancel(ctx))
	defer endSettle()

	var watch sync.WaitGroup
	defer watch.Wait()
	r.withdraw(intake)
	reconnects := r.conn.StatusChanged(nats.CONNECTED)
	defer r.conn.RemoveStatusListener(reconnects)
	watch.Go(func() {
		// A fetch that was lost in a reconnect, or that the server kept and that
		// would be asked for again, is withdrawn and made anew.
		for range reconnects {
			r.withdraw(intake)
		}
	})

	var lanes sync.WaitGroup
	for range r.Concurrency {
		lanes.Go(func() {
			if err := r.lane(intake, handlers, settle); err != nil {
				fail(err)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		lanes.Wait()
		close(ended)
	}()

	<-intake.Done()
	if !within(r.StopTimeout, ended) {
		endHandlers()
		if !within(lastCall, ended) {
			endSettle()
			<-ended
		}
	}
	r.flush(ctx)

	err := context.Cause(intake)
	if errors.Is(err, context.Cause(ctx)) {
		err = nil
	}
	if n := r.unfinished.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d handlers still run %v after their context ended; their events are delivered again", n, lastCall))
	}
	return err
}

// within tells whether c is closed before d is over.
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

// withdraw ends the fetches that wait, and so makes the lanes ask anew.
func (r *run) withdraw(intake context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.renew != nil {
		r.renew()
	}
	r.fetches, r.renew = context.WithCancel(intake)
}

// fetching returns the context of fetches that begin now.
func (r *run) fetching() context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fetches
}

// lane handles one event after the other until intake ends. Its error says why
// nothing can be consumed any more.
func (r *run) lane(intake, handlers, settle context.Context) error {
	for intake.Err() == nil {
		fetches := r.fetching()
		events, err := r.durable.Messages(
			jetstream.PullMaxMessages(1),
			jetstream.PullExpiry(pullExpiry),
			jetstream.PullHeartbeat(heartbeat),
		)
		if err == nil {
			err = r.receive(intake, fetches, handlers, settle, events)
			r.release(settle, events)
		}
		if intake.Err() != nil || errors.Is(err, context.Canceled) {
			continue
		}
		if err := r.check(intake, err); err != nil {
			return err
		}
	}
	return nil
}

// receive handles events until no more can be fetched here, and returns why.
func (r *run) receive(intake, fetches, handlers, settle context.Context, events jetstream.MessagesContext) error {
	for {
		msg, err := events.Next(jetstream.NextContext(fetches))
		if err != nil {
			return err
		}
		if intake.Err() != nil {
			r.giveBack(msg)
			return intake.Err()
		}
		if r.work(handlers, settle, msg); settle.Err() != nil {
			return settle.Err()
		}
	}
}

// release withdraws a fetch. Events that are on their way go back to JetStream,
// which hands them out again at once.
func (r *run) release(settle context.Context, events jetstream.MessagesContext) {
	if !r.conn.IsConnected() {
		events.Stop()
		return
	}
	events.Drain()
	ctx, cancel := context.WithTimeout(settle, drainTimeout)
	defer cancel()
	for {
		msg, err := events.Next(jetstream.NextContext(ctx))
		if err != nil {
			return
		}
		r.giveBack(msg)
	}
}

// giveBack hands an event back to JetStream, at no cost to its attempts. Should it
// not get there, the event is delivered again after AckWait.
func (r *run) giveBack(msg jetstream.Msg) {
	if err := msg.Nak(); err != nil {
		r.Logger.Warn("timerd client: event could not be given back, it comes again later", "subject", msg.Subject(), "err", err)
	}
}

// check waits until a fetch that failed because of cause can be made again. It
// returns an error if it never can, and nil once intake has ended.
func (r *run) check(intake context.Context, cause error) error {
	r.checking.Lock()
	defer r.checking.Unlock()
	var gone time.Time
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		if time.Since(r.warned) > warnEvery {
			r.warned = time.Now()
			r.Logger.Warn("timerd client: fetching events failed, trying on", "durable", r.Durable, "err", cause)
		}
		if !wait(intake, pause) {
			return nil
		}
		if r.conn.IsClosed() {
			return nats.ErrConnectionClosed
		}
		cause = r.lookUp(intake)
		switch {
		case cause == nil || intake.Err() != nil:
			return nil
		case !errors.Is(cause, jetstream.ErrConsumerNotFound) && !errors.Is(cause, jetstream.ErrStreamNotFound):
			gone = time.Time{}
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > goneAfter:
			return fmt.Errorf("the durable consumer %q was deleted, or its stream %q: %w", r.Durable, r.Stream, cause)
		}
	}
}

// lookUp asks JetStream for the durable consumer.
func (r *run) lookUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := r.js.Consumer(ctx, r.Stream, r.Durable)
	return err
}

// flush sends what was given back before the caller closes the connection.
func (r *run) flush(ctx context.Context) {
	if !r.conn.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	if err := r.conn.FlushWithContext(ctx); err != nil {
		r.Logger.Warn("timerd client: events given back may come again later", "err", err)
	}
}

// wait waits for d, and tells whether ctx went on for that long.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
