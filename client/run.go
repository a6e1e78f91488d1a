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

	"github.com/timerd-io/timerd/internal/backoff"
)

const (
	// lastCall is the time for handlers to return after their context has ended.
	lastCall = time.Second

	// goneAfter is the time for which a server must keep reporting a missing stream or durable consumer before Consume
	// gives up: a cluster that has just started may say so in error.
	goneAfter = 5 * time.Second

	// warnEvery is the least interval between log lines about the same failure to fetch.
	warnEvery = 30 * time.Second

	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
	callTimeout  = 5 * time.Second // of one request to JetStream
)

// run is one call of Consume: a source of events, and Concurrency lanes. Each lane takes one event, calls the handler,
// settles the event, and takes the next.
type run struct {
	*Consumer // with every field set
	handler   Handler
	source    *source
	seen      *redeliveries

	unfinished atomic.Int64 // handlers left behind by lanes that had to end
}

// run consumes until ctx ends. Three contexts end one after the other. fetching ends with ctx, or when nothing can be
// fetched any more. handlers, the context of handlers, ends StopTimeout later, and settle lastCall after that. A lane
// ends when its event is settled, and with settle at the latest.
func (r *run) run(ctx context.Context) error {
	fetching, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	handlers, endHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer endHandlers()
	settle, endSettle := context.WithCancel(context.WithoutCancel(ctx))
	defer endSettle()

	var parts sync.WaitGroup
	parts.Go(func() {
		if err := r.feed(fetching); err != nil {
			fail(err)
		}
		r.source.close(context.WithoutCancel(ctx))
	})
	for range r.Concurrency {
		parts.Go(func() { r.lane(fetching, handlers, settle) })
	}
	ended := make(chan struct{})
	go func() {
		parts.Wait()
		close(ended)
	}()

	<-fetching.Done()
	if !backoff.Within(r.StopTimeout, ended) {
		endHandlers()
		if !backoff.Within(lastCall, ended) {
			endSettle()
			<-ended
		}
	}

	err := context.Cause(fetching)
	if errors.Is(err, context.Cause(ctx)) {
		err = nil
	}
	if n := r.unfinished.Load(); n > 0 {
		err = errors.Join(err,
			fmt.Errorf("%d handlers still run %v after their context ended; their events are delivered again", n,
				lastCall))
	}
	return err
}

// lane handles one event after the other until fetching ends.
func (r *run) lane(fetching, handlers, settle context.Context) {
	for fetching.Err() == nil {
		r.source.want()
		select {
		case msg := <-r.source.events:
			if fetching.Err() != nil {
				r.source.giveBack(msg)
				return
			}
			r.work(handlers, settle, msg)
		case <-fetching.Done():
		}
	}
}

// feed keeps the source fetching until fetching ends. It returns an error if nothing can be fetched any more.
func (r *run) feed(fetching context.Context) error {
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
			case <-fetching.Done():
				return nil
			case <-statuses:
				// A reconnect may have lost the requests.
				fault = r.source.renew()
			case fault = <-r.source.faults:
			case <-tick.C:
				fault = r.source.tend()
			}
		}
		if time.Since(warned) > warnEvery {
			warned = time.Now()
			r.Logger.Warn("timerd client: fetching events failed, trying again", "durable", r.Durable, "err", fault)
		}
		if err := r.await(fetching, statuses); err != nil {
			return err
		}
	}
}

// await waits until events can be fetched again. It returns an error if they never will be, and nil once fetching has
// ended.
func (r *run) await(fetching context.Context, statuses <-chan nats.Status) error {
	var gone time.Time
	for failures := 1; ; failures++ {
		select {
		case <-time.After(pause(failures)):
		case <-statuses:
		case <-fetching.Done():
			return nil
		}
		if r.js.Conn().IsClosed() {
			return nats.ErrConnectionClosed
		}
		asking, cancel := context.WithTimeout(fetching, callTimeout)
		_, err := r.js.Consumer(asking, r.Stream, r.Durable)
		cancel()
		switch {
		case err == nil || fetching.Err() != nil:
			return nil //nolint:nilerr // asked to stop meanwhile
		case !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound):
			gone = time.Time{}
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > goneAfter:
			return fmt.Errorf("the durable consumer %q was deleted, or its stream %q; start the consumer again to "+
				"make a new one: %w", r.Durable, r.Stream, err)
		}
	}
}

// pause returns the pause after that many failures in a row.
func pause(failures int) time.Duration {
	return backoff.Policy{First: firstPause, Longest: longestPause}.Delay(failures)
}
