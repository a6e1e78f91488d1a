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
	// lastCall is what handlers get to return once their context has ended.
	lastCall = time.Second

	// goneAfter is for how long a server must say that the stream or the durable
	// consumer does not exist until that is believed: a cluster that has just
	// started may say so in error.
	goneAfter = 5 * time.Second

	// warnEvery limits the lines in the log about one trouble with fetching.
	warnEvery = 30 * time.Second

	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	callTimeout  = 5 * time.Second // of one request to JetStream
)

// run is one call of Consume: a source of events, and Concurrency lanes, each of
// which takes one event, has it handled and settled, and takes the next.
type run struct {
	*Consumer // with every field set
	handler   Handler
	source    *source
	ledger    *ledger

	unfinished atomic.Int64 // handlers left behind by lanes that had to end
}

// run consumes until ctx ends. It goes through three phases, each with a context:
// intake is ctx, or ends when nothing can be fetched any more; handlers ends
// StopTimeout after it, and settle ends lastCall after that. Lanes end when their
// event is settled, and with settle at the latest.
func (r *run) run(ctx context.Context) error {
	intake, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer endHandlers()
	settle, endSettle := context.WithCancel(context.WithoutCancel(ctx))
	defer endSettle()

	var parts sync.WaitGroup
	parts.Go(func() {
		if err := r.feed(intake); err != nil {
			fail(err)
		}
		r.source.close(context.WithoutCancel(ctx))
	})
	for range r.Concurrency {
		parts.Go(func() { r.lane(intake, handlers, settle) })
	}
	ended := make(chan struct{})
	go func() {
		parts.Wait()
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

	err := context.Cause(intake)
	if errors.Is(err, context.Cause(ctx)) {
		err = nil
	}
	if n := r.unfinished.Load(); n > 0 {
		err = errors.Join(err, fmt.Errorf("%d handlers still run %v after their context ended; their events are delivered again", n, lastCall))
	}
	return err
}

// lane handles one event after the other until intake ends.
func (r *run) lane(intake, handlers, settle context.Context) {
	for intake.Err() == nil {
		r.source.want()
		select {
		case msg := <-r.source.events:
			if intake.Err() != nil {
				r.source.giveBack(msg)
				return
			}
			r.work(handlers, settle, msg)
		case <-intake.Done():
		}
	}
}

// feed keeps the source going until intake ends. Its error says why nothing can be
// fetched any more.
func (r *run) feed(intake context.Context) error {
	conn := r.js.Conn()
	statuses := conn.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer conn.RemoveStatusListener(statuses)
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()

	var warned time.Time
	for {
		fault := r.source.renew()
		for fault == nil {
			select {
			case <-intake.Done():
				return nil
			case <-statuses:
				// What was asked for may be lost in a reconnect, or not.
				fault = r.source.renew()
			case fault = <-r.source.faults:
			case <-tick.C:
				fault = r.source.tend()
			}
		}
		if time.Since(warned) > warnEvery {
			warned = time.Now()
			r.Logger.Warn("timerd client: fetching events failed, trying on", "durable", r.Durable, "err", fault)
		}
		if err := r.await(intake, statuses); err != nil {
			return err
		}
	}
}

// await waits until events can be fetched again. It returns an error if they
// never can, and nil once intake has ended.
func (r *run) await(intake context.Context, statuses <-chan nats.Status) error {
	var gone time.Time
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		select {
		case <-time.After(pause):
		case <-statuses:
		case <-intake.Done():
			return nil
		}
		if r.js.Conn().IsClosed() {
			return nats.ErrConnectionClosed
		}
		switch err := r.lookUp(intake); {
		case err == nil || intake.Err() != nil:
			return nil //nolint:nilerr // asked to stop meanwhile
		case !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound):
			gone = time.Time{}
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > goneAfter:
			return fmt.Errorf("the durable consumer %q was deleted, or its stream %q: %w", r.Durable, r.Stream, err)
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

// wait waits for d, and tells whether ctx went on for that long.
func wait(ctx context.Context, d time.Duration) bool { return !within(d, ctx.Done()) }
