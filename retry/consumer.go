package retry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Durable names the durable consumer of the retry requests, which every timerd shares.
const Durable = "timerd"

const (
	defaultWindow = 32
	// defaultAckWait is the longest delay of the requests that a crashed timerd had fetched: that of the timers that it
	// had claimed.
	defaultAckWait      = 10 * time.Second
	defaultDrainTimeout = 3 * time.Second
	maxAckPending       = 1024

	// fetchTime is how long one fetch waits for requests, and shortFetch how long while something does not work, so
	// that a recovery shows soon. JetStream says that it is there every fetchHeartbeat; a loss goes unnoticed for twice
	// that.
	fetchTime      = 10 * time.Second
	shortFetch     = 2500 * time.Millisecond
	fetchHeartbeat = time.Second
	bindTimeout    = 5 * time.Second

	// callTimeout bounds one call to Redis or NATS for a request.
	callTimeout = 3 * time.Second
	// holdTime is how long a request is tried before it is given back, so that another timerd may do better.
	holdTime = 5 * time.Second
	// firstPause and longestPause bound the pause before the next try.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second

	// The ids of events whose retry was set more than rememberRetried ago are forgotten every trimEvery, and whenever
	// trimAfter retries have been set.
	trimEvery       = time.Minute
	trimAfter       = 500
	rememberRetried = 24 * time.Hour
)

// Retrier sets timers again. A schedule.Schedule is one.
type Retrier interface {
	// Retry sets a timer again, once per event id; see schedule.Schedule.
	Retry(ctx context.Context, r schedule.Retry) (due schedule.Millis, ok bool, err error)
	// TrimRetried forgets event ids whose retry was set longer than age ago.
	TrimRetried(ctx context.Context, age time.Duration) error
}

// Consumer carries out retry requests. Each one ends in exactly one of these:
//
//   - The timer is set again with the next attempt, once per event id. It is due a delay after JetStream stored the
//     request: that of the header Timer-Delay, a Go duration from 0 to MaxDelay, or else the policy's.
//   - The policy allows no further attempt. The event becomes a dead letter with the DeadReason event.ReasonExhausted
//     and the header Timer-Error as its LastError.
//   - The request is malformed. It becomes a dead letter that says why and keeps its content.
//
// Only then the request is acknowledged. While Redis or NATS is away, requests wait in the stream. A request may come
// again, because timerd died before it could acknowledge it or because it was published twice. Its timer is then found
// set; that is known for at least 24 hours.
//
// JetStream's clock says when a request was stored, and Redis's when the timer is due, so the delay is as exact as
// these two agree. Counted from when the request was stored, and rounded up to milliseconds, the timer is never early.
//
// NewConsumer sets the fields; change them before Run only.
type Consumer struct {
	Names    keys.Names
	Policies Policies
	// MaxPayload is how many bytes of payload a timer may have: schedule.DefaultMaxPayload.
	MaxPayload int

	// Window is how many requests are worked on at once at most: 32.
	Window int
	// AckWait is how soon JetStream hands a request to another timerd when this one has died: 10 s. The timerds that
	// share the stream should agree on it.
	AckWait time.Duration
	// DrainTimeout bounds how long Run goes on after its context has ended: 3 s.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default()

	// Wake is called for each timer that was set again, so that somebody claims it as soon as it is due. By default it
	// does nothing, and the next sweep finds the timer.
	Wake func(key keys.Key, due schedule.Millis)

	// The On functions are for metrics; by default they do nothing. They may run concurrently and must return quickly.

	// OnRetried is called for each timer that was set again.
	OnRetried func()
	// OnIgnored is called for each request whose timer had been set again before.
	OnIgnored func()
	// OnBuried is called for each request that became a dead letter.
	OnBuried func(class DeadClass)

	js      jetstream.JetStream
	retrier Retrier
	ensure  func(context.Context) error
	trims   chan struct{} // wakes trim

	set atomic.Int64 // how many timers were set again

	mu     sync.Mutex
	state  state
	faults [parts]fault
}

type state int

const (
	starting state = iota
	bound          // it has found its consumer in JetStream
	stopped
)

// part is one of the things that a Consumer depends on, each with a fault of its own.
type part int

const (
	partConsumer part = iota
	partRedis
	partDead
	partAck
	partTrim
	parts
)

// fault is why a part does not work; the zero value says that it does.
type fault struct {
	err    error
	since  time.Time
	worked time.Time // when the last call that worked began
}

// NewConsumer returns a Consumer that reads requests from js and sets timers through retrier. It calls ensureStreams,
// which makes the streams that are missing, when it finds one gone.
func NewConsumer(js jetstream.JetStream, retrier Retrier, ensureStreams func(context.Context) error) *Consumer {
	return &Consumer{
		MaxPayload:   schedule.DefaultMaxPayload,
		Window:       defaultWindow,
		AckWait:      defaultAckWait,
		DrainTimeout: defaultDrainTimeout,
		Logger:       slog.Default(),
		Wake:         func(keys.Key, schedule.Millis) {},
		OnRetried:    func() {},
		OnIgnored:    func() {},
		OnBuried:     func(DeadClass) {},

		js:      js,
		retrier: retrier,
		ensure:  ensureStreams,
		trims:   make(chan struct{}, 1),
	}
}

// Run carries out requests until ctx ends. Then it fetches no more, and finishes or gives back those it has, for at
// most DrainTimeout. It makes the streams and the consumer in JetStream if they are missing or vanish. Call it once.
func (c *Consumer) Run(ctx context.Context) {
	defer c.enter(stopped)
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { c.trim(ctx) })
	c.feed(ctx, work, &running)
	defer time.AfterFunc(c.DrainTimeout, cancel).Stop()
	running.Wait()
}

func (c *Consumer) enter(s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

// feed fetches requests until ctx ends, and handles each one in a goroutine of handlers.
func (c *Consumer) feed(ctx, work context.Context, handlers *sync.WaitGroup) {
	slots := make(chan struct{}, c.Window)
	var consumer jetstream.Consumer
	var err error
	failures := 0
	for ctx.Err() == nil {
		began, fetched := time.Now(), 0
		if consumer == nil {
			if consumer, err = c.bind(ctx); err == nil {
				c.enter(bound)
			}
		}
		if consumer != nil {
			fetched, err = c.fetch(ctx, consumer, slots, func(msg jetstream.Msg) {
				handlers.Go(func() {
					defer func() { <-slots }()
					c.handle(ctx, work, msg)
				})
			})
		}
		if ctx.Err() != nil {
			return
		}
		c.note(partConsumer, began, err)
		if err == nil && fetched == 0 && len(slots) == 0 {
			// Nothing waits, so nothing is held up: another timerd has done it.
			for _, part := range []part{partRedis, partDead, partAck} {
				c.note(part, began, nil)
			}
		}
		if err != nil {
			consumer = nil
		} else if !c.troubled() {
			failures = 0
			continue
		}
		failures++
		if !backoff.Sleep(ctx, pause(failures)) {
			return
		}
	}
}

// pause returns how long to wait after that many failures in a row.
func pause(failures int) time.Duration {
	return backoff.Policy{First: firstPause, Longest: longestPause}.Delay(failures)
}

// bind finds the consumer in JetStream and brings its settings in line, or makes it, and the streams too.
func (c *Consumer) bind(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	stream := c.Names.RetryStream()
	config := jetstream.ConsumerConfig{
		Durable:       Durable,
		Description:   "timerd: carries out retry requests",
		FilterSubject: c.Names.SubjectAll(keys.Retry),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: maxAckPending,
	}
	consumer, err := c.js.CreateOrUpdateConsumer(ctx, stream, config)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := c.ensure(ctx); err != nil {
			return nil, err
		}
		consumer, err = c.js.CreateOrUpdateConsumer(ctx, stream, config)
	}
	var api *jetstream.APIError
	switch {
	case err == nil:
		return consumer, nil
	case errors.Is(err, jetstream.ErrNotPullConsumer) || errors.As(err, &api) && api.Code == 400:
		return nil, fmt.Errorf("stream %s: the consumer %q cannot be made or brought in line: %w; "+
			"to fix it: nats consumer ls %s, then nats consumer rm %s with what is not timerd's, or with %q",
			stream, Durable, err, stream, stream, Durable)
	}
	return nil, fmt.Errorf("consumer %q of stream %s: %w", Durable, stream, err)
}

// fetch hands requests to handle and returns how many. Each one takes a slot, which handle must free. fetch returns
// once as many have come as there were free slots, or after fetchTime. While something does not work it fetches one
// request, which is enough to see whether it works again.
func (c *Consumer) fetch(ctx context.Context, consumer jetstream.Consumer, slots chan struct{}, handle func(jetstream.Msg)) (int, error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0, nil
	}
	taken, patience := 1, fetchTime
	more := !c.troubled()
	if !more {
		patience = shortFetch
	}
	for more {
		select {
		case slots <- struct{}{}:
			taken++
		default:
			more = false
		}
	}
	defer func() {
		for range taken {
			<-slots
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	batch, err := consumer.Fetch(taken, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(fetchHeartbeat))
	if err != nil {
		return 0, err
	}
	fetched := 0
	for msg := range batch.Messages() {
		taken--
		fetched++
		handle(msg)
	}
	return fetched, batch.Error()
}

// trim forgets old event ids now and then, until ctx ends.
func (c *Consumer) trim(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-c.trims:
		}
		began := time.Now()
		err := c.trimOnce(ctx)
		if ctx.Err() == nil {
			c.note(partTrim, began, err)
		}
	}
}

// trimOnce forgets ids of events whose retry was set more than a day ago. If requests wait in the stream, it counts the
// day back from when the oldest of them was stored, because they may ask for a retry that was set then.
func (c *Consumer) trimOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stream, err := c.js.Stream(ctx, c.Names.RetryStream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", c.Names.RetryStream(), err)
	}
	info, age := stream.CachedInfo(), rememberRetried
	if info.State.Msgs > 0 {
		age += max(info.TimeStamp.Sub(info.State.FirstTime), 0)
	}
	return c.retrier.TrimRetried(ctx, age)
}

// countRetry counts a retry, and wakes trim so that old event ids are forgotten as fast as new ones come.
func (c *Consumer) countRetry(key keys.Key, due schedule.Millis) {
	if c.set.Add(1)%trimAfter == 0 {
		select {
		case c.trims <- struct{}{}:
		default:
		}
	}
	c.Wake(key, due)
	c.OnRetried()
}

// note keeps whether a part works, by a call that began at the given time, and logs each change. A failure tells
// nothing if a later call has worked.
func (c *Consumer) note(part part, began time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fault := &c.faults[part]
	switch {
	case err != nil && began.Before(fault.worked):
		return
	case err != nil && fault.err == nil:
		fault.since = time.Now()
		c.Logger.Warn("retry consumer is held up, requests wait", "source", part.String(), "err", err)
	case err == nil && fault.err != nil:
		c.Logger.Info("retry consumer goes on", "source", part.String(), "after", time.Since(fault.since).Round(time.Millisecond))
	}
	if fault.err = err; err == nil && began.After(fault.worked) {
		fault.worked = began
	}
}

// String names what a part does, for the log.
func (p part) String() string {
	return [parts]string{
		partConsumer: "fetching requests",
		partRedis:    "setting timers in Redis",
		partDead:     "publishing dead letters",
		partAck:      "acknowledging requests",
		partTrim:     "forgetting old retries",
	}[p]
}

// troubled tells whether something does not work that every retry needs. Dead letters are not among that.
func (c *Consumer) troubled() bool { return c.fault(partConsumer, partRedis, partAck) != nil }

// fault returns what is wrong with the first of some parts that does not work.
func (c *Consumer) fault(parts ...part) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, part := range parts {
		if err := c.faults[part].err; err != nil {
			return err
		}
	}
	return nil
}

// Healthy returns nil while retry requests are carried out as far as is known, and otherwise what does not work. It
// answers from memory and may be called at any time.
func (c *Consumer) Healthy() error {
	c.mu.Lock()
	state := c.state
	c.mu.Unlock()
	fault := c.fault(partConsumer, partRedis, partDead, partAck)
	switch {
	case state == stopped:
		return errors.New("the retry consumer has stopped")
	case fault == nil && state == starting:
		return errors.New("the retry consumer has not found its consumer yet")
	}
	return fault
}
