// Package timerdtest runs timerd within a test of a Go program, with a private Redis, a NATS and a virtual clock: days
// of timers, retries and repetitions take as long as their work.
//
// It needs redis-server or valkey-server in PATH. The clock moves by [Server.Advance] alone, apart from the time that
// passes, and from each due time on the way to the next: once firings are settled, consumers of package client have
// answered, and their retries are set. JetStream's windows and acknowledgement waits, timeouts of HTTP, and the TTLs of
// keys that are no timers stay real.
package timerdtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/standalone"
	"github.com/timerd-io/timerd/internal/travel"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// startWithin bounds the time until a timerd works.
const startWithin = 30 * time.Second

// Options are the settings of a timerd, by default those of timerd serve.
type Options struct {
	Retry string // as TIMERD_RETRY: "pay=wechatpay; *=exp(10s,2,1h,12)"
	Late  string // as TIMERD_LATE: "shop:otp=30s drop"
	Guard string // as TIMERD_GUARD: "shop:order:timeout=unless shop:order:paid:%id"
	// Deliver is the text of a file of endpoints, as timerd deliver --config reads it: their webhooks are called.
	// Endpoints of this machine need allow_private: [127.0.0.0/8]. Each Advance waits for the answers.
	Deliver string
	// Wait bounds the wait of an advance for rest at one due time. Default: a minute, for machines that are busy.
	Wait time.Duration
}

// Server is a timerd with its servers. Its methods are for one goroutine at a time, except Now.
type Server struct {
	options Options
	running *running
	clock   *travel.Clock
	fired   []client.Event

	consumers int // made by Consume
}

// New returns a timerd with default settings; see Start.
func New(t testing.TB) *Server {
	t.Helper()
	return Start(t, Options{})
}

// Start returns a timerd that no other test has until t ends. Without servers it fails t. Within Main it may be one of
// an earlier test, without its timers and events.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	r, err := idle.take(t.Context(), o)
	if errors.Is(err, devserver.ErrNoRedis) {
		t.Fatal("timerdtest: neither redis-server nor valkey-server is in PATH: install one, version 7.0 or later")
	}
	if err != nil {
		t.Fatalf("timerdtest: %v", err)
	}
	s := &Server{options: o, running: r}
	s.clock = &travel.Clock{
		Schedule: schedule.NewVirtual(r.rdb, schedule.DefaultMaxPayload), JetStream: r.js, Names: keys.Names{},
		Wait: cmp.Or(o.Wait, time.Minute), Fired: s.note,
	}
	t.Cleanup(func() {
		if err := idle.put(r); err != nil {
			t.Errorf("timerdtest: %v", err)
		}
	})
	if o.Deliver != "" {
		s.deliver(t)
	}
	return s
}

// deliver calls webhooks until t ends.
func (s *Server) deliver(t testing.TB) {
	t.Helper()
	endpoints, faults := deliver.Parse([]byte(s.options.Deliver), config.Variable)
	if len(faults) > 0 {
		t.Fatalf("timerdtest: Options.Deliver: %v", faults)
	}
	webhooks := standalone.Webhooks{
		Load:    func() (*deliver.Config, error) { return endpoints, nil },
		Version: "test", Logger: slog.New(slog.DiscardHandler),
	}
	s.consumes(t, keys.DeliverConsumer(endpoints.Group), func(ctx context.Context) error {
		return s.running.in.Deliver(ctx, webhooks)
	})
}

// Redis returns a client of the Redis.
func (s *Server) Redis() *redis.Client { return s.running.rdb }

// JetStream returns a connection to the NATS, for consumers.
func (s *Server) JetStream() jetstream.JetStream { return s.running.js }

// Timers returns the client that sets timers.
func (s *Server) Timers() *client.Timers { return client.New(s.running.rdb) }

// Now returns the virtual time. It panics if the Redis is gone. Any goroutine may call it, such as a handler's.
func (s *Server) Now() time.Time {
	now, err := s.clock.Now(context.Background())
	if err != nil {
		panic(fmt.Sprintf("timerdtest: %v", err))
	}
	return now
}

// Advance moves the clock forward, and returns the events that have fired on the way, in the order of their due times.
// Without rest in Options.Wait it fails t, and names the cause: a handler that does not return, for example.
func (s *Server) Advance(t testing.TB, d time.Duration) []client.Event {
	t.Helper()
	return s.AdvanceTo(t, s.Now().Add(d))
}

// AdvanceTo is Advance to a time. One that has passed moves nothing, but waits for rest.
func (s *Server) AdvanceTo(t testing.TB, to time.Time) []client.Event {
	t.Helper()
	s.fired = nil
	if err := s.clock.AdvanceTo(t.Context(), to); err != nil {
		t.Fatalf("timerdtest: %v", err)
	}
	return s.fired
}

// Consume hands the events of a namespace to a handler until t ends, as client.Consumer does, without logging failed
// attempts. It returns once the consumer asks for events, so that each Advance from then on waits for its answers.
func (s *Server) Consume(t testing.TB, namespace string, handler client.Handler) {
	t.Helper()
	c := client.NewConsumer(s.running.js)
	s.consumers++
	c.Durable, c.Logger = fmt.Sprintf("timerdtest-%d", s.consumers), slog.New(slog.DiscardHandler)
	s.consumes(t, c.Durable, func(ctx context.Context) error { return c.Consume(ctx, namespace, handler) })
}

// consumes runs a consumer until t ends, and waits until it asks for events.
func (s *Server) consumes(t testing.TB, durable string, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("timerdtest: %v", err)
		}
	})
	err := devserver.Until(t.Context(), startWithin, func() error {
		select {
		case err := <-ended:
			ended <- err
			return devserver.Permanent(fmt.Errorf("it has ended: %w", err))
		default:
		}
		return travel.Asks(ctx, s.running.js, keys.DefaultStream, durable)
	})
	if err != nil {
		t.Fatalf("timerdtest: consumer %s: %v", durable, err)
	}
}

// note takes in a firing.
func (s *Server) note(data []byte) error {
	e, err := event.ParseFired(data)
	if err != nil {
		return err
	}
	s.fired = append(s.fired, e)
	return nil
}

// Main runs the tests of a package, with servers that later tests use again. Call it from TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(timerdtest.Main(m)) }
func Main(m *testing.M) int {
	idle.keep = true
	code := m.Run()
	if err := idle.close(); err != nil {
		fmt.Println("timerdtest:", err) //nolint:forbidigo // as the testing package does
		code = max(code, 1)
	}
	return code
}

// running is a timerd that runs.
type running struct {
	options Options
	in      *standalone.Installation
	rdb     *redis.Client
	js      jetstream.JetStream
	stop    context.CancelFunc
	ended   chan error
}

// pool has the timerds without a test.
type pool struct {
	keep bool // set by Main, before any test

	mu  sync.Mutex
	all []*running
}

var idle pool //nolint:gochecknoglobals // as the tests of a package are

// take returns a timerd with the given settings.
func (p *pool) take(ctx context.Context, o Options) (*running, error) {
	p.mu.Lock()
	for i, r := range p.all {
		if r.options.Retry == o.Retry && r.options.Late == o.Late && r.options.Guard == o.Guard {
			p.all = append(p.all[:i], p.all[i+1:]...)
			p.mu.Unlock()
			err := r.flush(ctx)
			return r, err
		}
	}
	p.mu.Unlock()
	return start(ctx, o)
}

// put takes a timerd back.
func (p *pool) put(r *running) error {
	if !p.keep {
		return r.close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, r)
	return nil
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, r := range p.all {
		errs = append(errs, r.close())
	}
	p.all = nil
	return errors.Join(errs...)
}

// start starts a timerd and waits until it works.
func start(ctx context.Context, o Options) (r *running, err error) {
	given := &config.Given{Retry: o.Retry, Late: o.Late, Guard: o.Guard}
	in, err := standalone.Open(ctx, standalone.Options{Virtual: true, Given: given})
	if err != nil {
		return nil, err
	}
	r = &running{options: o, in: in, ended: make(chan error, 1)}
	var running context.Context
	running, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	log := slog.New(slog.DiscardHandler)
	go func() { r.ended <- in.Run(running, "test", log) }()
	if err = r.connect(ctx, log); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// connect connects to the servers once they are there.
func (r *running) connect(ctx context.Context, log *slog.Logger) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startWithin, errors.New("timerd does not start"))
	defer cancel()
	r.rdb, _ = connect.NewRedisClient(r.in.Config.Redis).(*redis.Client)
	if err = schedule.NewVirtual(r.rdb, schedule.DefaultMaxPayload).AwaitKeys(ctx); err != nil {
		select {
		case failed := <-r.ended:
			r.ended <- failed
			return errors.Join(failed, err)
		default:
			return err
		}
	}
	r.js, err = connect.Connector{Logger: log}.JetStream(ctx, r.in.Config.NATS.FromOutside())
	return err
}

// close stops the timerd and its servers.
func (r *running) close() error {
	if r.js != nil {
		r.js.Conn().Close()
	}
	if r.rdb != nil {
		_ = r.rdb.Close() // nothing is pending on it
	}
	r.stop()
	err := <-r.ended
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, r.in.Close())
}

// flush deletes all timers, events and consumers. The clock stays where it is.
func (r *running) flush(ctx context.Context) error {
	names := r.in.Config.NATS.Streams.Names
	for _, name := range []string{names.FiredStream(), names.RetryStream(), names.DeadStream(),
		names.DeliveryStream()} {
		stream, err := r.js.Stream(ctx, name)
		if name == names.DeliveryStream() && errors.Is(err, jetstream.ErrStreamNotFound) {
			continue // no test had webhooks
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		if err := stream.Purge(ctx); err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
		if name == names.RetryStream() {
			continue // its consumer is timerd's
		}
		listed := stream.ConsumerNames(ctx)
		for consumer := range listed.Name() {
			if err := stream.DeleteConsumer(ctx, consumer); err != nil {
				return fmt.Errorf("stream %s: consumer %s: %w", name, consumer, err)
			}
		}
		if err := listed.Err(); err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	return schedule.NewVirtual(r.rdb, schedule.DefaultMaxPayload).Flush(ctx)
}
