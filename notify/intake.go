package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// IntakeConsumer is the durable consumer of the retry requests, shared by every
// timerd.
const IntakeConsumer = "timerd"

const (
	defaultIntakeWindow = 32
	// defaultIntakeAckWait is how late the requests that a crashed timerd had
	// fetched are at most: not later than the timers that it had claimed.
	defaultIntakeAckWait = 10 * time.Second
	defaultIntakeDrain   = 3 * time.Second
	maxIntakePending     = 1024

	// fetchTime is how long one fetch waits for requests, while something does not
	// work shortFetch, so that a recovery shows soon. fetchHeartbeat is how often
	// JetStream says meanwhile that it is there: twice that is how long a loss goes
	// unnoticed.
	fetchTime      = 10 * time.Second
	shortFetch     = 2500 * time.Millisecond
	fetchHeartbeat = time.Second
	bindTimeout    = 5 * time.Second

	// intakeCall bounds one call to Redis or NATS for a request.
	intakeCall = 3 * time.Second
	// holdTime is how long a request is tried before it is given back, so that
	// another timerd may do better.
	holdTime = 5 * time.Second
	// firstIntakePause and longestIntakePause bound the pause before the next try.
	firstIntakePause   = 50 * time.Millisecond
	longestIntakePause = time.Second

	// trimEvery and trimAfter are how often, in time and in retries set, the ids
	// of events whose retry was set more than rememberRetried ago are forgotten.
	trimEvery       = time.Minute
	trimAfter       = 500
	rememberRetried = 24 * time.Hour
)

// Retrier sets timers again. A schedule.Schedule is one.
type Retrier interface {
	// Retry sets a timer again, once per event id; see schedule.Schedule.
	Retry(ctx context.Context, r schedule.Retry) (due int64, ok bool, err error)
	// TrimRetried forgets event ids whose retry was set longer than age ago.
	TrimRetried(ctx context.Context, age time.Duration) error
}

// DeadClass classes why timerd made a dead letter.
type DeadClass string

// The classes of dead letters.
const (
	DeadExhausted DeadClass = "exhausted" // the attempts are used up
	DeadMalformed DeadClass = "malformed" // the request makes no sense
)

// IntakeHooks are called as things happen; nil ones are left out. They must
// return quickly and may run concurrently.
type IntakeHooks struct {
	// Retried is called for each timer that was set again, with its due time in
	// unix ms on the Redis server's clock.
	Retried func(key keys.Key, due int64)
	// Ignored is called for each request whose timer had been set again before.
	Ignored func()
	// Buried is called for each request that became a dead letter.
	Buried func(class DeadClass)
}

// Intake carries out retry requests. Each one ends in exactly one of these:
//
//   - the timer is set again with the next attempt, once per event id, due at the
//     time when JetStream stored the request plus the delay: that of the header
//     Timer-Delay, a Go duration from 0 to MaxDelay, or else the policy's;
//   - the attempts that the policy allows are used up, and the event becomes a dead
//     letter, with DeadReason ReasonExhausted and the header Timer-Error as its
//     LastError;
//   - the request is malformed and becomes a dead letter that says why and keeps
//     its content.
//
// Only then it is acknowledged. While Redis or NATS is away, requests wait in the
// stream. A request that comes again, because timerd died before it could
// acknowledge it or because it was published more than once, finds its timer set;
// that is known for at least 24 hours.
//
// JetStream's clock says when a request was stored, Redis's when the timer is due:
// the delay is as exact as these two agree, which NTP sees to. By the due time so
// reckoned, in milliseconds and rounded up, the timer is never early.
//
// Set the fields before Run and do not change them afterwards.
type Intake struct {
	Streams  Streams
	Policies Policies

	// Window is how many requests may be worked on at once, 64 if zero.
	Window int
	// AckWait is how soon JetStream hands a request to another timerd when this one
	// has died, 10 s if zero. The timerds that share the stream should agree on it.
	AckWait time.Duration
	// DrainTimeout bounds how long Run goes on after its context has ended, 3 s if
	// zero.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default() if nil
	Hooks        IntakeHooks

	js      jetstream.JetStream
	retrier Retrier
	trims   chan struct{} // wakes trim

	mu     sync.Mutex
	state  intakeState
	faults [intakeParts]intakeFault
	set    int // retries since the last wake of trim
}

type intakeState int

const (
	intakeNew   intakeState = iota
	intakeBound             // it has found its consumer
	intakeStopped
)

// intakePart is what an Intake depends on, each with a fault of its own.
type intakePart int

const (
	partConsumer intakePart = iota
	partRedis
	partDead
	partAck
	partTrim
	intakeParts
)

// intakeFault is why a part does not work; the zero value says that it does.
type intakeFault struct {
	err   error
	since time.Time
}

// NewIntake returns an Intake that reads requests from js and sets timers through
// retrier.
func NewIntake(js jetstream.JetStream, retrier Retrier) *Intake {
	return &Intake{js: js, retrier: retrier, trims: make(chan struct{}, 1)}
}

func (in *Intake) log() *slog.Logger {
	if in.Logger == nil {
		return slog.Default()
	}
	return in.Logger
}

func (in *Intake) ackWait() time.Duration { return orDefault(in.AckWait, defaultIntakeAckWait) }

// Run carries out requests until ctx ends. Then it fetches no more, and finishes or
// gives back those it has, for at most DrainTimeout. It makes the streams and the
// consumer where they are missing, also when they vanish meanwhile. Call it once.
func (in *Intake) Run(ctx context.Context) {
	defer in.enter(intakeStopped)
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var parts sync.WaitGroup
	parts.Go(func() { in.trim(ctx) })
	in.feed(ctx, work, &parts)
	defer time.AfterFunc(orDefault(in.DrainTimeout, defaultIntakeDrain), cancel).Stop()
	parts.Wait()
}

func (in *Intake) enter(s intakeState) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.state = s
}

// feed fetches requests and has each one handled in a goroutine of parts, until
// ctx ends.
func (in *Intake) feed(ctx, work context.Context, parts *sync.WaitGroup) {
	slots := make(chan struct{}, orDefault(in.Window, defaultIntakeWindow))
	var consumer jetstream.Consumer
	var err error
	pause := firstIntakePause
	for ctx.Err() == nil {
		fetched := 0
		if consumer == nil {
			if consumer, err = in.bind(ctx); err == nil {
				in.enter(intakeBound)
			}
		}
		if consumer != nil {
			fetched, err = in.fetch(ctx, consumer, slots, func(msg jetstream.Msg) {
				parts.Go(func() {
					defer func() { <-slots }()
					in.handle(ctx, work, msg)
				})
			})
		}
		if ctx.Err() != nil {
			return
		}
		in.note(partConsumer, err)
		if err == nil && fetched == 0 && len(slots) == 0 {
			// Nothing waits, so nothing is held up: another timerd has done it.
			for _, part := range []intakePart{partRedis, partDead, partAck} {
				in.note(part, nil)
			}
		}
		switch {
		case err != nil:
			consumer = nil
		case !in.troubled():
			pause = firstIntakePause
			continue
		}
		if !wait(ctx, pause) {
			return
		}
		pause = min(2*pause, longestIntakePause)
	}
}

// bind finds the consumer and brings its settings in line, or makes it, and the
// streams too.
func (in *Intake) bind(ctx context.Context) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTimeout)
	defer cancel()
	stream := in.Streams.Retry()
	config := jetstream.ConsumerConfig{
		Durable:       IntakeConsumer,
		Description:   "timerd: carries out retry requests",
		FilterSubject: in.Streams.SubjectAll(keys.Retry),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       in.ackWait(),
		MaxDeliver:    -1,
		MaxAckPending: maxIntakePending,
	}
	consumer, err := in.js.CreateOrUpdateConsumer(ctx, stream, config)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := EnsureStreams(ctx, in.js, in.Streams); err != nil {
			return nil, err
		}
		consumer, err = in.js.CreateOrUpdateConsumer(ctx, stream, config)
	}
	var api *jetstream.APIError
	switch {
	case err == nil:
		return consumer, nil
	case errors.Is(err, jetstream.ErrNotPullConsumer) || errors.As(err, &api) && api.Code == 400:
		return nil, &StreamFault{
			Stream:  stream,
			Problem: fmt.Sprintf("the consumer %q cannot be made or brought in line: %v", IntakeConsumer, err),
			Fix:     fmt.Sprintf("nats consumer ls %s, then nats consumer rm %s with what is not timerd's, or with %q", stream, stream, IntakeConsumer),
		}
	}
	return nil, fmt.Errorf("consumer %q of stream %s: %w", IntakeConsumer, stream, err)
}

// fetch hands requests to handle, for each of which it takes one of the slots, and
// returns how many. It returns once as many have come as there were free slots, or
// after fetchTime. While something does not work, one request is enough to see
// whether it does.
func (in *Intake) fetch(ctx context.Context, consumer jetstream.Consumer, slots chan struct{}, handle func(jetstream.Msg)) (int, error) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return 0, nil
	}
	taken, patience := 1, fetchTime
	more := !in.troubled()
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
func (in *Intake) trim(ctx context.Context) {
	ticker := time.NewTicker(trimEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-in.trims:
		}
		err := in.trimOnce(ctx)
		if ctx.Err() == nil {
			in.note(partTrim, err)
		}
	}
}

// trimOnce forgets ids of events whose retry was set more than a day ago, and more
// than a day before the oldest request that is still in the stream was stored: that
// one, delivered before or not, may be for one of them.
func (in *Intake) trimOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, intakeCall)
	defer cancel()
	info, err := streamInfo(ctx, in.js, in.Streams.Retry())
	if err != nil {
		return fmt.Errorf("stream %s: %w", in.Streams.Retry(), err)
	}
	age := rememberRetried
	if info.State.Msgs > 0 {
		age += max(info.TimeStamp.Sub(info.State.FirstTime), 0)
	}
	return in.retrier.TrimRetried(ctx, age)
}

// retried counts a retry and has old event ids forgotten at the rate at which new
// ones come.
func (in *Intake) retried(key keys.Key, due int64) {
	in.mu.Lock()
	in.set++
	enough := in.set >= trimAfter
	if enough {
		in.set = 0
	}
	in.mu.Unlock()
	if enough {
		signal(in.trims)
	}
	if in.Hooks.Retried != nil {
		in.Hooks.Retried(key, due)
	}
}

// note keeps whether a part works, and logs each change.
func (in *Intake) note(part intakePart, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	fault := &in.faults[part]
	switch {
	case err != nil && fault.err == nil:
		fault.since = time.Now()
		in.log().Warn("retry intake is held up, requests wait", "source", part.String(), "err", err)
	case err == nil && fault.err != nil:
		in.log().Info("retry intake goes on", "source", part.String(), "after", time.Since(fault.since).Round(time.Millisecond))
	}
	fault.err = err
}

// String names what a part does, for the log.
func (p intakePart) String() string {
	switch p {
	case partConsumer:
		return "fetching requests"
	case partRedis:
		return "setting timers in Redis"
	case partDead:
		return "publishing dead letters"
	case partAck:
		return "acknowledging requests"
	default:
		return "forgetting old retries"
	}
}

// troubled tells whether something does not work that every request needs. The
// dead letters are not: retries go on without them.
func (in *Intake) troubled() bool { return in.fault(partConsumer, partRedis, partAck) != nil }

// fault returns what is wrong with the first of some parts that does not work.
func (in *Intake) fault(parts ...intakePart) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, part := range parts {
		if err := in.faults[part].err; err != nil {
			return err
		}
	}
	return nil
}

// Healthy returns nil while retry requests are carried out as far as is known, and
// else what does not work. It answers from memory, and may be called at any time.
func (in *Intake) Healthy() error {
	in.mu.Lock()
	state := in.state
	in.mu.Unlock()
	fault := in.fault(partConsumer, partRedis, partDead, partAck)
	switch {
	case state == intakeStopped:
		return errors.New("the retry intake has stopped")
	case fault == nil && state == intakeNew:
		return errors.New("the retry intake has not found its consumer yet")
	}
	return fault
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
