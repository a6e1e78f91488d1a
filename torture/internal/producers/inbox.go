package producers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// received is a fired event, as it came.
type received struct {
	event.Event
	data []byte
}

// inbox is a consumer of the stream of firings. It passes each event to the life that waits for its key.
type inbox struct {
	nc        *nats.Conn
	js        jetstream.JetStream
	consuming jetstream.ConsumeContext

	mu      sync.Mutex
	waiting map[string]chan received
}

func openInbox(ctx context.Context, url string) (*inbox, error) {
	// While disconnected, it buffers no message: the outcome of a buffered message would be recorded too early.
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond),
		nats.ReconnectBufSize(-1))
	if err != nil {
		return nil, fmt.Errorf("producers: %w", err)
	}
	in := &inbox{nc: nc, waiting: map[string]chan received{}}
	if err = in.consume(ctx); err != nil {
		nc.Close()
		return nil, fmt.Errorf("producers: consuming %s: %w", history.FiredStream, err)
	}
	return in, nil
}

func (in *inbox) consume(ctx context.Context) (err error) {
	if in.js, err = jetstream.New(in.nc); err != nil {
		return err
	}
	consumer, err := in.js.OrderedConsumer(ctx, history.FiredStream, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return err
	}
	in.consuming, err = consumer.Consume(in.receive)
	return err
}

func (in *inbox) receive(msg jetstream.Msg) {
	e, err := event.Parse(msg.Data())
	if err != nil {
		return // the checker reports it
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if c := in.waiting[e.Key.String()]; c != nil {
		select {
		case c <- received{e, msg.Data()}:
		default: // more events than any life waits for
		}
	}
}

// expect returns the channel for the events of a key, from now on until forget.
func (in *inbox) expect(key string) <-chan received {
	in.mu.Lock()
	defer in.mu.Unlock()
	c := make(chan received, 8)
	in.waiting[key] = c
	return c
}

func (in *inbox) forget(key string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	delete(in.waiting, key)
}

func (in *inbox) close() {
	in.consuming.Stop()
	in.nc.Close()
}
