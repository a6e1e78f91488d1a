package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Defaults of a Consumer's fields.
const (
	DefaultStream        = keys.DefaultStream
	DefaultPrefix        = keys.DefaultPrefix
	DefaultConcurrency   = 16
	DefaultAckWait       = 30 * time.Second
	DefaultMaxAckPending = 1000
	DefaultStopTimeout   = 10 * time.Second
)

// Event is one firing, as a handler gets it. Data is the payload, byte for byte. If there is none, Data is nil and
// Status has the reason.
type Event = event.Event

// Handler handles one event. It is called from many goroutines at once. Its return value decides what happens to the
// event:
//
//   - nil: the work is done, and the event is acknowledged.
//   - an error: timerd sets the timer again with the next attempt, after the delay of its retry policy, or makes it a
//     dead letter when its attempts are used up.
//   - RetryAfter(d, err): the same, after d. RetryNoSooner(d, err): after d, or the policy's delay if that is longer.
//   - Postpone(d, err): it comes again after d as the same attempt.
//   - Dead(err): the event goes to the dead letters now.
//   - GiveBack(err): JetStream hands it out again.
//
// A panic is an error like any other, and its stack is logged. ctx ends when the consumer has to stop and the handler
// has used up Consumer.StopTimeout; a plain error that it returns after that costs no attempt.
type Handler func(ctx context.Context, e Event) error

// Consumer hands events of a JetStream stream to a handler. Set its fields before the first Consume, and not after.
//
// Its NATS user must be allowed to publish to $JS.API.CONSUMER.*.<stream>.>, $JS.API.CONSUMER.MSG.NEXT.<stream>.>,
// $JS.ACK.<stream>.>, <prefix>.retry.> and <prefix>.dead.>, and to subscribe to _INBOX.>. Two more rights, to publish
// to $JS.API.STREAM.INFO.<stream>_DEAD and $JS.API.DIRECT.GET.<stream>_DEAD, keep a dead letter from being stored twice
// when an acknowledgement is lost; with them it can read the dead letters of all apps.
type Consumer struct {
	// Stream is the stream of timerd's events, TIMERD_STREAM. Default: DefaultStream.
	Stream string
	// Prefix begins every subject, TIMERD_SUBJECT_PREFIX. Default: DefaultPrefix.
	Prefix string
	// Durable names the consumer in JetStream, which keeps the acknowledgements under this name. Consumers with the
	// same name, in any number of processes, share the events; consumers with different names each get all events.
	// Default: a name made of the namespace, such as timerd~shop~order for shop:order.
	Durable string
	// Start is the first event for a durable consumer that Consume creates; an existing one goes on where it was.
	// Default: the oldest event of the stream, which may be a week old.
	Start Start
	// Concurrency is the number of handlers at a time, in this process. An event is fetched only for a free handler.
	// Default: DefaultConcurrency.
	Concurrency int
	// AckWait is the time after which JetStream delivers a dead process's event to another one. It does not limit a
	// handler: while one runs, its event's deadline is extended. Default: DefaultAckWait.
	AckWait time.Duration
	// MaxAckPending limits the events with handlers in all processes that share Durable; -1 is unlimited. Default:
	// DefaultMaxAckPending, or Concurrency if that is greater; fewer where NATS limits it (max_ack_pending).
	MaxAckPending int
	// StopTimeout is the time for running handlers after the end of Consume's context; then their own contexts end too.
	// Negative means none. Default: DefaultStopTimeout.
	StopTimeout time.Duration
	// Propagator, if not nil, puts the trace of the timer's Set into the handler's context.
	Propagator Propagator
	// Logger gets a line for every failed attempt, dead letter, bad event and lasting fault of NATS. Default:
	// slog.Default().
	Logger *slog.Logger

	js jetstream.JetStream
	// yields is set if MaxAckPending is a default, which gives way to the server's limit.
	yields bool
}

// Start is the beginning of a new durable consumer: StartNow or StartAt. The zero Start is the oldest event of the
// stream.
type Start struct {
	policy jetstream.DeliverPolicy // the zero one is DeliverAllPolicy
	at     *time.Time
}

// StartNow begins with the first firing after the creation of the durable consumer.
func StartNow() Start { return Start{policy: jetstream.DeliverNewPolicy} }

// StartAt begins with the first event that JetStream stored at t or later, by its own clock.
func StartAt(t time.Time) Start { return Start{jetstream.DeliverByStartTimePolicy, &t} }

// NewConsumer returns a Consumer on the caller's connection to NATS. The caller still owns the connection, which should
// reconnect for ever: nats.MaxReconnects(-1).
func NewConsumer(js jetstream.JetStream) *Consumer { return &Consumer{js: js} }

// Consume hands the events of a namespace to handler until ctx ends. A namespace is app[:module[:type]]; * or a part
// left out stands for any.
//
// If the durable consumer does not exist in JetStream, Consume creates it and begins where c.Start says, by default
// with the oldest event of the stream. An existing one goes on where it was, with the AckWait and MaxAckPending of c.
// Consume recovers from lost connections and restarts of NATS by itself.
//
// When ctx ends, no handler is called any more, and running ones get StopTimeout to finish. Consume then returns nil,
// or an error if handlers ran on even after that: their events are delivered again after AckWait. Consume also returns
// an error if it cannot begin (a bad namespace, no such stream, a durable consumer of another namespace), when the
// connection is closed, and when the stream or the durable consumer is deleted.
//
// A message that is no event of timerd goes to the dead letters, with a line in the log.
func (c *Consumer) Consume(ctx context.Context, namespace string, handler Handler) error {
	ns, err := keys.ParseNamespace(namespace)
	if err != nil {
		return fmt.Errorf("client: consume: %w", err)
	}
	full, err := c.withDefaults(ns)
	if err == nil {
		err = full.bind(ctx, ns)
	}
	if err == nil {
		err = full.start(ctx, handler)
	}
	if err != nil {
		return fmt.Errorf("client: consume %s: %w", ns, err)
	}
	return nil
}

// ConsumeDurable is Consume for the existing durable consumer c.Durable, whatever its filter subjects are. It must be a
// pull consumer with explicit acknowledgements. Its own AckWait applies, not c's.
func (c *Consumer) ConsumeDurable(ctx context.Context, handler Handler) error {
	err := errors.New("Consumer.Durable is not set")
	if c.Durable != "" {
		err = c.consumeDurable(ctx, handler)
	}
	if err != nil {
		return fmt.Errorf("client: consume: %w", err)
	}
	return nil
}

func (c *Consumer) consumeDurable(ctx context.Context, handler Handler) error {
	full, err := c.withDefaults(keys.Namespace{})
	if err != nil {
		return err
	}
	found, err := full.js.Consumer(ctx, full.Stream, full.Durable)
	if err != nil {
		return full.explain(err)
	}
	have := found.CachedInfo().Config
	if have.AckPolicy != jetstream.AckExplicitPolicy {
		return fmt.Errorf("the durable consumer %q of stream %q has ack policy %s, not %s: give Consumer.Durable "+
			"another name",
			full.Durable, full.Stream, have.AckPolicy, jetstream.AckExplicitPolicy)
	}
	full.AckWait = have.AckWait
	return full.start(ctx, handler)
}

// start consumes until ctx ends. c has every field set, and its durable consumer exists.
func (c *Consumer) start(ctx context.Context, handler Handler) error {
	r := run{
		Consumer: c,
		handler:  handler,
		source:   newSource(c.js, c.Stream, c.Durable, c.Concurrency, c.Logger),
		seen:     newRedeliveries(),
	}
	return r.run(ctx)
}

// withDefaults returns a copy of c with every field set.
func (c *Consumer) withDefaults(ns keys.Namespace) (*Consumer, error) {
	full := *c
	full.Stream = cmp.Or(c.Stream, DefaultStream)
	full.Prefix = cmp.Or(c.Prefix, DefaultPrefix)
	full.Durable = cmp.Or(c.Durable, ns.Durable("timerd"))
	full.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	full.AckWait = cmp.Or(c.AckWait, DefaultAckWait)
	full.yields = c.MaxAckPending == 0
	full.MaxAckPending = cmp.Or(c.MaxAckPending, max(DefaultMaxAckPending, full.Concurrency))
	full.StopTimeout = cmp.Or(c.StopTimeout, DefaultStopTimeout)
	full.Logger = cmp.Or(c.Logger, slog.Default())
	var faults []error
	if full.Concurrency < 0 {
		faults = append(faults, fmt.Errorf("Consumer.Concurrency is %d, want at least 1", full.Concurrency))
	}
	if full.AckWait < minAckWait {
		faults = append(faults, fmt.Errorf("Consumer.AckWait is %v, want at least %v", full.AckWait, minAckWait))
	}
	if full.MaxAckPending < -1 {
		faults = append(faults, fmt.Errorf("Consumer.MaxAckPending is %d, want at least 1, or -1 for no limit",
			full.MaxAckPending))
	}
	return &full, errors.Join(faults...)
}

// minAckWait leaves time to extend a running handler's ack deadline over a network.
const minAckWait = 100 * time.Millisecond

// MaxWaiting limits the waiting requests for events of a durable consumer created by Consume or timerd deliver.
// JetStream refuses to change it later, so it depends on no setting: it has room for the requests of a hundred
// processes with thousands of handlers each, and costs nothing until they wait.
const MaxWaiting = 4096

// bind finds the durable consumer and corrects its settings, or creates it. It changes only settings that JetStream can
// change.
func (c *Consumer) bind(ctx context.Context, ns keys.Namespace) error {
	want := jetstream.ConsumerConfig{
		Durable:       c.Durable,
		Description:   "timerd client, " + ns.String(),
		FilterSubject: ns.Subject(c.Prefix, keys.Fired),
		DeliverPolicy: c.Start.policy,
		OptStartTime:  c.Start.at,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: c.MaxAckPending,
		MaxWaiting:    MaxWaiting,
	}
	found, err := c.js.Consumer(ctx, c.Stream, c.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		err = c.put(ctx, want, c.js.CreateConsumer)
		if !errors.Is(err, jetstream.ErrConsumerExists) {
			return c.explain(err)
		}
		found, err = c.js.Consumer(ctx, c.Stream, c.Durable)
	}
	if err != nil {
		return c.explain(err)
	}

	have := found.CachedInfo().Config
	subjects := have.FilterSubjects
	if len(subjects) == 0 {
		subjects = []string{cmp.Or(have.FilterSubject, "every subject")}
	}
	if len(subjects) != 1 || subjects[0] != want.FilterSubject {
		return fmt.Errorf("the durable consumer %q of stream %q reads %s, not %s: give Consumer.Durable another name",
			c.Durable, c.Stream, strings.Join(subjects, ", "), want.FilterSubject)
	}
	if have.AckPolicy != want.AckPolicy {
		return fmt.Errorf("the durable consumer %q of stream %q has ack policy %s, not %s: give Consumer.Durable "+
			"another name",
			c.Durable, c.Stream, have.AckPolicy, want.AckPolicy)
	}
	if have.AckWait == want.AckWait && have.MaxDeliver == want.MaxDeliver &&
		have.MaxAckPending == want.MaxAckPending && len(have.BackOff) == 0 {
		return nil
	}
	have.AckWait, have.MaxDeliver, have.MaxAckPending, have.BackOff = want.AckWait, want.MaxDeliver, want.MaxAckPending,
		nil
	return c.explain(c.put(ctx, have, c.js.UpdateConsumer))
}

// JetStream's error codes for a consumer over a limit of the server, the account or the stream: over the number of
// consumers, and over the MaxAckPending.
const (
	codeMaxConsumers  jetstream.ErrorCode = 10026
	codeMaxAckPending jetstream.ErrorCode = 10121
)

// put creates or updates the durable consumer. If MaxAckPending is a default and exceeds a limit of JetStream, put uses
// that limit.
func (c *Consumer) put(
	ctx context.Context, config jetstream.ConsumerConfig,
	do func(context.Context, string, jetstream.ConsumerConfig) (jetstream.Consumer, error),
) error {
	_, err := do(ctx, c.Stream, config)
	if c.yields && refusedBy(err, codeMaxAckPending) {
		config.MaxAckPending = 0
		_, err = do(ctx, c.Stream, config)
	}
	return err
}

// refusedBy reports whether JetStream has refused a request with an error code.
func refusedBy(err error, code jetstream.ErrorCode) bool {
	refused, ok := errors.AsType[*jetstream.APIError](err)
	return ok && refused.ErrorCode == code
}

// explain adds the fix to an error of JetStream. It returns nil for nil.
func (c *Consumer) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("JetStream has no stream %q: start timerd, which makes it, or set Consumer.Stream: %w",
			c.Stream, err)
	case refusedBy(err, codeMaxConsumers):
		return fmt.Errorf("NATS allows no further consumer (max_consumers of the account or of stream %s): "+
			"remove one that no program reads, or raise that limit: %w", c.Stream, err)
	case refusedBy(err, codeMaxAckPending):
		return fmt.Errorf("Consumer.MaxAckPending is %d, more than NATS allows (max_ack_pending of the server, the "+
			"account "+
			"or the stream): set a lower one, or raise that limit: %w", c.MaxAckPending, err)
	case errors.Is(err, jetstream.ErrNotPullConsumer):
		return fmt.Errorf("the durable consumer %q of stream %q is a push consumer: give Consumer.Durable another "+
			"name: %w", c.Durable, c.Stream, err)
	}
	return fmt.Errorf("durable consumer %q of stream %q: %w", c.Durable, c.Stream, err)
}
