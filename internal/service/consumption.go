package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
)

const (
	// consumptionLook is the interval of storing news of consumers, and consumptionTimeout bounds NATS's answers for
	// that.
	consumptionLook    = 10 * time.Second
	consumptionTimeout = 5 * time.Second
	// consumptionSample is the interval of the samples.
	consumptionSample = time.Minute
)

// consumption stores the history of the consumers of fired events in NATS, for timerd status: waiting events and failed
// attempts. Its methods may be called concurrently.
type consumption struct {
	js      jetstream.JetStream
	streams streams.Config
	log     *slog.Logger

	mu    sync.Mutex
	known streams.Consumers
	news  bool
}

func newConsumption(js jetstream.JetStream, conf streams.Config, instance string, log *slog.Logger) *consumption {
	return &consumption{js: js, streams: conf, log: log, known: streams.Consumers{Instance: instance}}
}

// noteFailed counts a failed attempt.
func (c *consumption) noteFailed(f streams.Failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.CountFailed(f)
	c.news = true
}

// run samples and stores from time to time, until ctx ends.
func (c *consumption) run(ctx context.Context) {
	look := time.NewTicker(consumptionLook)
	defer look.Stop()
	var sampled time.Time
	for ended := false; !ended; {
		if time.Since(sampled) >= consumptionSample {
			sampled = time.Now()
			c.ask(ctx, c.sample)
		}
		c.ask(context.WithoutCancel(ctx), c.store)
		select {
		case <-ctx.Done():
			ended = true
		case <-look.C:
		}
	}
	c.ask(context.WithoutCancel(ctx), c.store)
}

// ask asks NATS in bounded time. /readyz reports missing answers.
func (c *consumption) ask(ctx context.Context, question func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, consumptionTimeout)
	defer cancel()
	if err := question(ctx); err != nil {
		c.log.Debug("the past of the consumers is incomplete", "err", err)
	}
}

// sample takes the present state of the consumers, and removes the histories of dead timerds.
func (c *consumption) sample(ctx context.Context) error {
	samples, now, err := status.SampleConsumers(ctx, c.js, c.streams)
	if err != nil {
		return err
	}
	c.mu.Lock()
	for name, s := range samples {
		c.known.AddSample(name, s)
	}
	c.known.Forget(now)
	c.news = true
	c.mu.Unlock()
	return streams.PurgeConsumers(ctx, c.js, c.streams)
}

// store stores the history if it has changed.
func (c *consumption) store(ctx context.Context) error {
	c.mu.Lock()
	news, known := c.news, c.known.Copy()
	c.news = false
	c.mu.Unlock()
	if !news {
		return nil
	}
	err := streams.StoreConsumers(ctx, c.js, c.streams, known)
	if err != nil {
		c.mu.Lock()
		c.news = true
		c.mu.Unlock()
	}
	return err
}
