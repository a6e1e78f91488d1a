package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// consumptionLook is how often news of consumers is stored, and consumptionTimeout how long NATS may take for it.
	consumptionLook    = 10 * time.Second
	consumptionTimeout = 5 * time.Second
	// consumptionSample is how often their state is sampled.
	consumptionSample = time.Minute
)

// consumption keeps the past of the consumers of fired events in NATS, for timerd status: how many events
// waited, and how many attempts failed. Its methods may be called concurrently.
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

// noteFailed counts an attempt that failed.
func (c *consumption) noteFailed(key keys.Key, consumer string, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known.CountFailed(key, consumer, at)
	c.news = true
}

// run says from time to time what is new, until ctx ends.
func (c *consumption) run(ctx context.Context) {
	look := time.NewTicker(consumptionLook)
	defer look.Stop()
	var sampled time.Time
	for ended := false; !ended; {
		if time.Since(sampled) >= consumptionSample {
			sampled = time.Now()
			c.ask(ctx, c.sample)
		}
		c.ask(context.WithoutCancel(ctx), c.say)
		select {
		case <-ctx.Done():
			ended = true
		case <-look.C:
		}
	}
	c.ask(context.WithoutCancel(ctx), c.say)
}

// ask asks NATS in bounded time. /readyz says if it does not answer.
func (c *consumption) ask(ctx context.Context, question func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, consumptionTimeout)
	defer cancel()
	if err := question(ctx); err != nil {
		c.log.Debug("the past of the consumers is incomplete", "err", err)
	}
}

// sample takes the present state of the consumers, and removes what timerds that are gone have said.
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

// say says what is known, if that is news.
func (c *consumption) say(ctx context.Context) error {
	c.mu.Lock()
	news, known := c.news, c.known.Copy()
	c.news = false
	c.mu.Unlock()
	if !news {
		return nil
	}
	err := streams.SayConsumers(ctx, c.js, c.streams, known)
	if err != nil {
		c.mu.Lock()
		c.news = true
		c.mu.Unlock()
	}
	return err
}
