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
	// defaultAckWait is the longest delay of the requests that a crashed timerd had fetched.
	defaultAckWait      = 2 * time.Second
	defaultDrainTimeout = 3 * time.Second

	// fetchTime is how long one fetch waits for requests, and shortFetch how long while something does not work, so
	// that a recovery shows soon. JetStream says that it is there every fetchHeartbeat; a loss goes unnoticed for twice
	// that.
	fetchTime      = 10 * time.Second
	shortFetch     = 2500 * time.Millisecond
	fetchHeartbeat = time.Second
	// bindTimeout leaves /readyz a second of the 5 in which it tells of an outage.
	bindTimeout = 4 * time.Second
	// bindEvery is how often the consumer's settings are brought in line: a timerd of another version may change them.
	bindEvery = time.Minute

	// callTimeout bounds one call to Redis or NATS for a request.
	callTimeout = 3 * time.Second
	// firstPause and longestPause bound the pause before the next try when nothing works.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
	// timerShare and letterShare are the parts of the window that tries of which nothing is known may fill, those of timers
	// and those of dead letters, which may take long. serverShare is the part that tries on one server of a cluster may fill,
	// so that those on others have room before it is known that it does not answer.
	timerShare  = 2
	letterShare = 4
	serverShare = 2
	// serverStall is after how long without an answer what waits for a server that has its share waits as for one that fails.
	// Otherwise thousands of requests for a slow server, each given back and delivered again every second, are all that is
	// fetched.
	serverStall = 100 * time.Millisecond
	// longestAway is how long a request that could not be carried out is left alone at most.
	longestAway = 30 * time.Second
)

// Retrier sets timers again. A schedule.Schedule is one.
type Retrier interface {
	// Retry sets a timer again, once per event id; see schedule.Schedule.
	Retry(ctx context.Context, r schedule.Retry) (due schedule.Millis, ok bool, err error)
	// TrimRetried forgets event ids whose retry was set longer than age ago.
	TrimRetried(ctx context.Context, age time.Duration) error
	// Partition returns the part of the schedule that a key's timers are in: keys.Single if there is but one.
	Partition(key string) keys.Partition
	// ServerOf returns which server has a part, as far as is known: an empty text where there is only one. It asks nobody.
	ServerOf(p keys.Partition) string
}

// Consumer carries out retry requests. Each one ends in exactly one of these:
//
//   - The timer is set again with the next attempt, once per event id. It is due a delay after JetStream stored the
//     request: that of the header Timer-Delay, a Go duration from 0 to policy.Longest, or else the policy's, which is at least that of the
//     header Timer-Delay-Least. With the header
//     Timer-Postpone: 1, which needs a Timer-Delay, it is set again with the same attempt, whatever the policy allows.
//   - The policy allows no further attempt. The event becomes a dead letter with the DeadReason event.ReasonExhausted
//     and the header Timer-Error as its LastError.
//   - The request is malformed. It becomes a dead letter that says why and keeps its content.
//
// Only then the request is acknowledged. While Redis or NATS is away, requests wait in the stream. One that cannot be
// carried out while others can is given back after one try, to come again after a while that grows with each time, up to
// 30 s; see passage. A request may also come again because timerd died before it could acknowledge it, or because it was
// published twice. Its timer is then found set; that is known for at least 24 hours.
//
// JetStream's clock says when a request was stored, and Redis's when the timer is due, so the delay is as exact as
// these two agree. Counted from when the request was stored, and rounded up to milliseconds, the timer is never early.
//
// NewConsumer sets the fields; change them before Run only.
type Consumer struct {
	Streams  streams.Config
	Policies policy.Rules[policy.Retry]
	// MaxPayload returns how many bytes of payload a timer may have: schedule.DefaultMaxPayload.
	MaxPayload func() int

	// Window is how many requests are worked on at once at most: 32.
	Window int
	// AckWait is how soon JetStream hands a request to another timerd when this one has died: 2 s. The timerds that
	// share the stream should agree on it.
	AckWait time.Duration
	// DrainTimeout bounds how long Run goes on after its context has ended: 3 s.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default()

	// Permit is asked before requests are fetched, and before one is carried out. While it returns an error, requests
	// wait in the stream. It must return quickly. By default it returns nil.
	Permit func() error

	// Wake is called for each timer that was set again, so that somebody claims it as soon as it is due. By default it
	// does nothing, and the next sweep finds the timer.
	Wake func(key keys.Key, due schedule.Millis)

	// The On functions are for metrics; by default they do nothing. They may run concurrently and must return quickly.

	// OnRetried is called for each timer that was set again with the next attempt, and OnPostponed for each with the same one.
	OnRetried, OnPostponed func()
	// OnFailed is called for each attempt that failed: a request whose timer was set again with the next attempt, or whose
	// attempts are used up. consumer is the durable consumer that asked, "" if it does not say, and at when JetStream
	// stored the request.
	OnFailed func(key keys.Key, consumer string, at time.Time)
	// OnIgnored is called for each request whose timer had been set again before, or just now if the answer was lost.
	OnIgnored func()
	// OnBuried is called for each request that became a dead letter.
	OnBuried func(class DeadClass)
	// OnSetAside is called each time a request is given back that waits though others are carried out.
	OnSetAside func()

	js      jetstream.JetStream
	retrier Retrier
	trims   chan struct{} // wakes trim

	limits   limits
	set      atomic.Int64 // how many timers were set again
	settling settling

	servers *lanes.Window // of requests that set a timer again, by server
	dead    *lanes.Window // of requests that become dead letters

	mu     sync.Mutex
	timers map[string]*lanes.Window // of requests that set a timer again, by part of the schedule; one for each server
	state  state
	faults [parts]fault
	told   time.Time // when it was logged last that requests are set aside
}

// limits are those of the constants of the same names; tests that wait for one set a shorter one.
type limits struct{ fetchHeartbeat, shortFetch, bindTimeout, callTimeout time.Duration }

type state int

const (
	starting state = iota
	bound          // it has found its consumer in JetStream
	stopped
)

// NewConsumer returns a Consumer that reads requests from js and sets timers through retrier. It makes streams that it finds
// gone.
func NewConsumer(js jetstream.JetStream, retrier Retrier) *Consumer {
	return &Consumer{
		MaxPayload:   func() int { return schedule.DefaultMaxPayload },
		Window:       defaultWindow,
		AckWait:      defaultAckWait,
		DrainTimeout: defaultDrainTimeout,
		Logger:       slog.Default(),
		Permit:       func() error { return nil },
		Wake:         func(keys.Key, schedule.Millis) {},
		OnRetried:    func() {},
		OnPostponed:  func() {},
		OnFailed:     func(keys.Key, string, time.Time) {},
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

// Run carries out requests until ctx ends. Then it fetches no more, and finishes or gives back those it has, for at
// most DrainTimeout. It makes the streams and the consumer in JetStream if they are missing or vanish. Call it once.
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

// pause returns how long to wait after that many failures in a row.
func pause(failures int) time.Duration {
	return backoff.Policy{First: firstPause, Longest: longestPause}.Delay(failures)
}

// bind finds the consumer in JetStream and brings its settings in line, or makes it, and the streams too.
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
			"to fix it: remove each consumer that is not timerd's (nats consumer ls %s), or timerd's own: nats consumer rm %s %s --force",
			stream, Durable, err, stream, stream, Durable)
	}
	return nil, fmt.Errorf("consumer %q of stream %s: %w", Durable, stream, diag.Plain(err))
}

// ensure makes the consumer, or brings an existing one in line. What timerd has no need of stays as it is there, because
// JetStream refuses to change some of it, such as max_waiting.
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
	config.MaxAckPending = -1 // those that are given back count
	return c.js.CreateOrUpdateConsumer(ctx, stream, config)
}

// fetch hands requests to handle and returns how many. Each one takes a slot, which handle must free. fetch returns
// once as many have come as there were free slots, or after fetchTime.
func (c *Consumer) fetch(ctx context.Context, consumer jetstream.Consumer, slots chan struct{}, handle func(jetstream.Msg)) (int, error) {
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
