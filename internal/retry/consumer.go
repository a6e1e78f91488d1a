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
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Durable names the durable consumer of the retry requests, which every timerd shares.
const Durable = "timerd"

const (
	defaultWindow = 32
	// defaultAckWait is the longest delay of requests fetched by a crashed timerd.
	defaultAckWait      = 2 * time.Second
	defaultDrainTimeout = 3 * time.Second

	// fetchTime is the duration of one fetch, and shortFetch its duration during a failure, so that a recovery shows
	// soon. JetStream sends a heartbeat every fetchHeartbeat; a loss goes unnoticed for twice that.
	fetchTime      = 10 * time.Second
	shortFetch     = 2500 * time.Millisecond
	fetchHeartbeat = time.Second
	// bindTimeout leaves /readyz a second of the 5 within which it reports an outage.
	bindTimeout = 4 * time.Second
	// bindEvery is the interval at which the consumer's settings are corrected: a timerd of another version may change
	// them.
	bindEvery = time.Minute

	// callTimeout bounds one call to Redis or NATS for a request.
	callTimeout = 3 * time.Second
	// firstPause and longestPause bound the pause before the next try when nothing works.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// timerShare and letterShare limit the parts of the window for requests of unproven lanes, those of timers and
	// those of dead letters, which may take long. serverShare limits the part for one server of a cluster, so that
	// others have room until its silence is known.
	timerShare  = 2
	letterShare = 4
	serverShare = 2
	// serverStall is the time without an answer after which requests for a server that has its share wait as for a
	// failing one. Otherwise thousands of requests for a slow server, each given back and delivered again every second,
	// would fill all fetches.
	serverStall = 100 * time.Millisecond
	// longestAway is the longest pause before a failed request is delivered again.
	longestAway = 30 * time.Second
)

// Retrier sets timers again. A schedule.Schedule is one.
type Retrier interface {
	// Retry sets a timer again, once per event id; see schedule.Schedule.
	Retry(ctx context.Context, r schedule.Retry) (due schedule.Millis, ok bool, err error)
	// TrimRetried forgets event ids whose retry was set longer than age ago.
	TrimRetried(ctx context.Context, age time.Duration) error
	// Partition returns the partition of a key's timers: keys.Single if there is only one.
	Partition(key string) keys.Partition
	// ServerOf returns the server of a partition, as far as known: an empty text if there is only one server. It makes
	// no request.
	ServerOf(p keys.Partition) string
}

// Consumer carries out retry requests. Each one ends in exactly one of these ways:
//
//   - The timer is set again with the next attempt, once per event id. It is due a delay after JetStream stored the
//     request. The delay is the header Timer-Delay, a Go duration from 0 to policy.Longest, or else the policy's, but
//     at least the header Timer-Delay-Least. With the header Timer-Postpone: 1, which needs a Timer-Delay, the attempt
//     stays the same, whatever the policy allows.
//   - The policy allows no further attempt. The event becomes a dead letter with the DeadReason event.ReasonExhausted
//     and the header Timer-Error as its LastError.
//   - The request is malformed. It becomes a dead letter with the reason and its content.
//
// Then it acknowledges the request. While Redis or NATS is away, requests wait in the stream. A request that fails
// while others succeed is given back after one try, and comes again after a pause that grows each time, up to 30 s; see
// passage. A request may also come again because timerd died before it could acknowledge it, or because it was
// published twice. Its timer is then found set; that is remembered for at least 24 hours.
//
// JetStream's clock gives the stored time of a request, and Redis's the due time of the timer, so the delay is as exact
// as these two agree. It counts from the stored time, rounded up to milliseconds, so the timer is never early.
//
// NewConsumer sets the fields; change them before Run only.
type Consumer struct {
	Streams  streams.Config
	Policies policy.Rules[policy.Retry]
	// MaxPayload returns a timer's limit of payload, in bytes. Default: schedule.DefaultMaxPayload.
	MaxPayload func() int

	// Window limits the requests in work at once. Default: 32.
	Window int
	// AckWait is the time after which JetStream delivers a dead timerd's request to another one. Default: 2 s. The
	// timerds of a stream should agree on it.
	AckWait time.Duration
	// DrainTimeout bounds the end of Run after its context has ended. Default: 3 s.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default()

	// Permit is called before each fetch, and before each request is carried out. While it returns an error, requests
	// wait in the stream. It must return quickly. By default it returns nil.
	Permit func() error

	// Ahead returns the lead of the clock of due times over JetStream's: that of a virtual clock, which moves only
	// while no request is open. By default it is 0.
	Ahead func(context.Context) (time.Duration, error)

	// Wake is called for each timer set again, so that a timerd claims it as soon as it is due. By default it does
	// nothing, and the next sweep finds the timer.
	Wake func(key keys.Key, due schedule.Millis)

	// The On functions are for metrics; by default they do nothing. They may run concurrently and must return quickly.

	// OnRetried is called for each timer set again with the next attempt, and OnPostponed for each one with the same
	// attempt.
	OnRetried, OnPostponed func()
	// OnFailed is called for each failed attempt: a request whose timer was set again with the next attempt, or that
	// was the last one allowed. Its time is the stored time of the request.
	OnFailed func(streams.Failure)
	// OnIgnored is called for each request whose timer had been set again before, or just now if the answer was lost.
	OnIgnored func()
	// OnBuried is called for each request that became a dead letter.
	OnBuried func(class DeadClass)
	// OnSetAside is called each time a request is given back while others are carried out.
	OnSetAside func()

	js      jetstream.JetStream
	retrier Retrier
	trims   chan struct{} // wakes trim

	limits   limits
	set      atomic.Int64 // number of timers set again
	settling settling

	servers *lanes.Window // of requests that set a timer again, by server
	dead    *lanes.Window // of requests that become dead letters

	mu     sync.Mutex
	timers map[string]*lanes.Window // of requests that set a timer again, by part of the schedule; one for each server
	state  state
	faults [parts]fault
	told   time.Time // time of the last log line about requests set aside
}

// limits replaces the constants of the same names; tests set shorter ones.
type limits struct{ fetchHeartbeat, shortFetch, bindTimeout, callTimeout time.Duration }

type state int

const (
	starting state = iota
	bound          // its consumer in JetStream is known
	stopped
)

// NewConsumer returns a Consumer that reads requests from js and sets timers through retrier. It creates missing
// streams.
func NewConsumer(js jetstream.JetStream, retrier Retrier) *Consumer {
	return &Consumer{
		MaxPayload:   func() int { return schedule.DefaultMaxPayload },
		Window:       defaultWindow,
		AckWait:      defaultAckWait,
		DrainTimeout: defaultDrainTimeout,
		Logger:       slog.Default(),
		Permit:       func() error { return nil },
		Ahead:        func(context.Context) (time.Duration, error) { return 0, nil },
		Wake:         func(keys.Key, schedule.Millis) {},
		OnRetried:    func() {},
		OnPostponed:  func() {},
		OnFailed:     func(streams.Failure) {},
		OnIgnored:    func() {},
		OnBuried:     func(DeadClass) {},
		OnSetAside:   func() {},

		limits:   limits{fetchHeartbeat, shortFetch, bindTimeout, callTimeout},
		js:       js,
		retrier:  retrier,
		trims:    make(chan struct{}, 1),
		settling: newSettling(),
		servers:  lanes.New(lanes.Shares{Unknown: timerShare, Each: serverShare, Stall: serverStall}),
		timers:   map[string]*lanes.Window{},
		dead:     lanes.New(lanes.Shares{Unknown: letterShare, Each: 1}),
	}
}

// Run carries out requests until ctx ends. Then it fetches no more, and finishes or gives back the fetched ones, for at
// most DrainTimeout. It creates the streams and the consumer in JetStream if they are missing or vanish. Call it once.
func (c *Consumer) Run(ctx context.Context) {
	defer c.become(stopped)
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	handled := make(chan struct{})
	var settled, running sync.WaitGroup
	settled.Go(func() { c.settle(work, handled) })
	running.Go(func() { c.trim(ctx) })
	c.feed(ctx, work, &running)
	defer time.AfterFunc(c.DrainTimeout, cancel).Stop()
	running.Wait()
	close(handled)
	settled.Wait()
}

func (c *Consumer) become(s state) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

// feed fetches requests until ctx ends, and handles each one in a goroutine of handlers.
func (c *Consumer) feed(ctx, work context.Context, handlers *sync.WaitGroup) {
	slots := make(chan struct{}, c.Window)
	var consumer jetstream.Consumer
	var boundAt time.Time
	var err error
	failures := 0
	for ctx.Err() == nil {
		began, fetched := time.Now(), 0
		if err = c.Permit(); err != nil {
			consumer = nil
		} else if consumer == nil || began.Sub(boundAt) > bindEvery {
			if consumer, err = c.bind(ctx); err == nil {
				c.become(bound)
				boundAt = began
			}
		}
		if consumer != nil && c.isRedisBack(ctx) {
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
		if err != nil {
			consumer = nil
		} else if !c.held() {
			failures = 0
			if fetched == 0 {
				c.lookForRest(ctx)
			}
			continue
		}
		failures++
		if !backoff.Sleep(ctx, pause(failures)) {
			return
		}
	}
}

// pause returns the pause after that many failures in a row.
func pause(failures int) time.Duration {
	return backoff.Policy{First: firstPause, Longest: longestPause}.Delay(failures)
}

// bind finds the consumer in JetStream and corrects its settings, or creates it, with the streams.
func (c *Consumer) bind(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.bindTimeout)
	defer cancel()
	stream := c.Streams.RetryStream()
	consumer, err := c.ensure(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := streams.Ensure(ctx, c.js, c.Streams); err != nil {
			return nil, err
		}
		consumer, err = c.ensure(ctx, stream)
	}
	var api *jetstream.APIError
	switch {
	case err == nil:
		return consumer, nil
	case errors.Is(err, jetstream.ErrNotPullConsumer) || errors.As(err, &api) && api.Code == 400:
		return nil, fmt.Errorf("stream %s: the consumer %q cannot be made or updated: %w; "+
			"to fix it: remove each consumer that is not timerd's (nats consumer ls %s), or timerd's own: nats "+
			"consumer rm %s %s --force",
			stream, Durable, err, stream, stream, Durable)
	}
	return nil, fmt.Errorf("consumer %q of stream %s: %w", Durable, stream, diag.Plain(err))
}

// ensure creates the consumer, or corrects an existing one. It leaves settings that timerd does not need as they are,
// because JetStream refuses to change some of them, such as max_waiting.
func (c *Consumer) ensure(ctx context.Context, stream string) (jetstream.Consumer, error) {
	var config jetstream.ConsumerConfig
	found, err := c.js.Consumer(ctx, stream, Durable)
	switch {
	case err == nil:
		config = found.CachedInfo().Config
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, err
	}
	config.Durable, config.Description = Durable, "timerd: carries out retry requests"
	config.FilterSubject, config.FilterSubjects = c.Streams.SubjectAll(keys.Retry), nil
	config.AckPolicy, config.AckWait = jetstream.AckExplicitPolicy, c.AckWait
	config.MaxDeliver, config.BackOff = -1, nil
	config.MaxAckPending = -1 // it would count requests given back
	return c.js.CreateOrUpdateConsumer(ctx, stream, config)
}

// fetch calls handle for each request and returns their number. Each request takes a slot, which handle must free.
// fetch returns once it has filled the free slots, or after fetchTime.
func (c *Consumer) fetch(ctx context.Context, consumer jetstream.Consumer, slots chan struct{},
	handle func(jetstream.Msg)) (int, error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0, nil
	}
	taken, patience := 1, fetchTime
	if c.fault(partConsumer, partRedis, partDead, partAck) != nil {
		patience = c.limits.shortFetch
	}
	for more := true; more; {
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
	batch, err := consumer.Fetch(taken, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(c.limits.fetchHeartbeat))
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
