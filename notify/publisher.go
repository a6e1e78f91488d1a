package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/rawconn"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	defaultWindow       = 4096
	defaultWindowBytes  = 64 << 20
	defaultAckWait      = 5 * time.Second
	defaultDrainTimeout = 5 * time.Second

	// tick is how often the firings in flight are looked through while there are
	// any: a few microseconds of work for a full window.
	tick = 50 * time.Millisecond
	// firstPause and longestPause bound the pause before a firing is published
	// again.
	firstPause   = 50 * time.Millisecond
	longestPause = time.Second
)

// ErrStopped says that a Publisher takes no more firings.
var ErrStopped = errors.New("notify: publisher has stopped")

// Settler is what a Publisher reports the outcome of firings to. It gets them
// without their payloads; those of one call may be of several partitions.
type Settler interface {
	// Settle forgets firings that NATS has acknowledged. It must be safe to
	// repeat.
	Settle(ctx context.Context, firings []schedule.Firing) error
	// Release gives claims back, so that anybody may claim them again.
	Release(ctx context.Context, firings []schedule.Firing) error
}

// Failure classes what became of a try to publish a firing, other than success.
type Failure string

// The classes of failure. All but FailureTooLarge have the firing published
// again as it is, while its lease lasts.
const (
	FailureDisconnected Failure = "disconnected" // the connection is down, or went down before the acknowledgement came
	FailureTimeout      Failure = "timeout"      // no acknowledgement in time
	FailureNoStream     Failure = "nostream"     // no stream takes the subject
	FailureFull         Failure = "full"         // the stream, the account or the disk is full
	FailureUnavailable  Failure = "unavailable"  // JetStream cannot work at the moment
	FailureRefused      Failure = "refused"      // any other refusal
	FailureTooLarge     Failure = "toolarge"     // the firing is published again without its payload
)

// Hooks are called as things happen, for metrics; nil ones are left out. They
// must return quickly, must not call the Publisher, and may run concurrently.
type Hooks struct {
	// Fired is called once for each acknowledged firing. lateness is how long
	// after its due time the event was published. duplicate says that JetStream
	// had the event already, so an earlier try or another timerd had been
	// successful.
	Fired func(f *schedule.Firing, lateness time.Duration, duplicate bool)
	// Failed is called for each try that failed.
	Failed func(class Failure)
	// Settled and Released are called with how many firings were settled, and
	// how many were given back because they could not be published.
	Settled, Released func(n int)
}

// Publisher publishes claimed firings to JetStream and settles them once they
// are acknowledged. A firing that fails is published again, under the same id,
// while its lease lasts, and then given back. Nothing is published whose lease
// has run out, so that a timerd that was stopped for a while does no harm.
//
// Set the fields before Run and do not change them afterwards. The methods may be
// called concurrently.
type Publisher struct {
	Streams  Streams
	Policies Policies // say the maxattempts of each event

	// Window is how many firings may be on their way at once, from Publish until
	// they are settled or given back; 4,096 if zero.
	Window int
	// WindowBytes is how many bytes of payload those that are not acknowledged may
	// have; 64 MiB if zero. One firing is taken however large it is.
	WindowBytes int
	// AckWait is how long to wait for an acknowledgement before publishing again,
	// 5 s if zero. The end of the lease cuts it short.
	AckWait time.Duration
	// DrainTimeout bounds how long Run goes on after its context has ended, 5 s
	// if zero.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default() if nil
	Hooks        Hooks

	nc      *nats.Conn
	js      jetstream.JetStream
	settler Settler
	started chan struct{} // closed once Run can publish
	kick    chan struct{} // wakes loop
	alarm   chan struct{} // wakes probe

	sending sync.Mutex // one message at a time; guards what follows
	buf     []byte
	header  nats.Header

	inbox string // what reply subjects begin with; set before started is closed

	mu        sync.Mutex
	flights   map[uint64]*flight // published or to be published, by token
	lastToken uint64
	held      int           // firings in the window: flights, and what the settler is to do
	heldBytes int           // of their payloads
	queue     queue         // for the settler
	changed   chan struct{} // closed when await has to look again; nil if nobody waits
	gate      gate
	stopping  bool
}

// flight is one firing between Publish and its acknowledgement. What is not
// guarded by Publisher.mu does not change.
type flight struct {
	firing      schedule.Firing
	id          string
	attempt     int
	maxAttempts int
	token       uint64 // names the flight in reply subjects

	sent      bool      // published, its outcome unknown
	next      time.Time // if sent, when to give up waiting for the outcome; else when to publish again
	tries     int
	failure   Failure   // of the last try that failed
	withhold  bool      // publish without the payload, which is too large
	published time.Time // the event's time, on the Redis server's clock
}

// ConnOptions returns the options with which a Publisher wants its connection
// made. The connection reconnects for ever, keeps nothing back to publish after a
// reconnect, when leases may have run out, and notices within seconds that the
// other side is gone.
func ConnOptions() []nats.Option {
	return []nats.Option{
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 250*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(2 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.FlusherTimeout(2 * time.Second),
		nats.SetCustomDialer(rawconn.Dialer{Dialer: net.Dialer{Timeout: 2 * time.Second}}),
		nats.IgnoreAuthErrorAbort(),
	}
}

// NewPublisher returns a Publisher on a connection made with ConnOptions. js is
// JetStream on the same connection; through it the streams are watched, and made
// again if they vanish.
func NewPublisher(nc *nats.Conn, js jetstream.JetStream, settler Settler) *Publisher {
	return &Publisher{
		nc:      nc,
		js:      js,
		settler: settler,
		started: make(chan struct{}),
		kick:    make(chan struct{}, 1),
		alarm:   make(chan struct{}, 1),
		header:  nats.Header{event.MsgIDHeader: {""}, event.ContentTypeHeader: {event.ContentType}},
		flights: make(map[uint64]*flight),
		queue:   queue{wake: make(chan struct{}, 1)},
	}
}

// orDefault returns v, or the default if v is zero.
func orDefault[T int | time.Duration](v, byDefault T) T {
	if v == 0 {
		return byDefault
	}
	return v
}

// hasRoom tells whether the window takes another firing. p.mu is held.
func (p *Publisher) hasRoom() bool {
	return p.held < orDefault(p.Window, defaultWindow) && p.heldBytes < orDefault(p.WindowBytes, defaultWindowBytes)
}

func (p *Publisher) log() *slog.Logger {
	if p.Logger == nil {
		return slog.Default()
	}
	return p.Logger
}

// InFlight returns how many firings the Publisher holds: at most Window.
func (p *Publisher) InFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Wait returns nil once publishing is possible: NATS is connected, the stream
// takes messages as far as is known, and there is room in the window. Call it
// before claiming firings. It returns ctx's error when ctx ends first, and
// ErrStopped when Run is ending.
func (p *Publisher) Wait(ctx context.Context) error {
	if err := p.await(ctx, func() bool { return p.gate.open() && p.hasRoom() }); err != nil {
		return err
	}
	return ctx.Err()
}

// await waits until ready, which is called with p.mu held, returns true. It does
// not wait after ctx has ended.
func (p *Publisher) await(ctx context.Context, ready func() bool) error {
	select {
	case <-p.started:
	default:
		select {
		case <-p.started:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		p.mu.Lock()
		stopping, ok := p.stopping, ready()
		if !stopping && !ok && p.changed == nil {
			p.changed = make(chan struct{})
		}
		changed := p.changed
		p.mu.Unlock()
		switch {
		case stopping:
			return ErrStopped
		case ok:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// announce has everybody in await look again. p.mu is held.
func (p *Publisher) announce() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Publish takes over claimed firings and returns once all of them are in the
// window: published, or to be published as soon as possible. It always takes
// them over. When ctx has ended and there is no room for all, or Run is ending,
// the rest is given back and the error says so.
func (p *Publisher) Publish(ctx context.Context, firings []schedule.Firing) error {
	for len(firings) > 0 {
		if err := p.await(ctx, p.hasRoom); err != nil {
			p.release(context.WithoutCancel(ctx), firings)
			return fmt.Errorf("%d of the firings not published: %w", len(firings), err)
		}
		flights := p.admit(firings)
		p.send(flights)
		for _, f := range flights {
			p.tellStatus(f)
		}
		firings = firings[len(flights):]
	}
	return nil
}

// tellStatus logs that a timer fires without its payload.
func (p *Publisher) tellStatus(f *flight) {
	var why string
	switch f.firing.Status {
	case schedule.PayloadMissing:
		why = event.StatusMissing
	case schedule.PayloadTooLarge:
		why = event.StatusTooLarge
	default:
		return
	}
	p.log().Warn("timer fires without its payload", "key", f.firing.Key.String(),
		"due_at", time.UnixMilli(f.firing.Due).UTC(), "attempt", f.attempt, "source", string(f.firing.Trigger), "err", why)
}

// admit takes as many firings into the window as there is room for. They count
// as sent, because the caller is about to send them.
func (p *Publisher) admit(firings []schedule.Firing) []*flight {
	prepared := make([]flight, min(len(firings), orDefault(p.Window, defaultWindow)))
	for i := range prepared {
		prepared[i] = p.prepare(firings[i])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.flights) == 0 {
		signal(p.kick)
	}
	admitted := make([]*flight, 0, len(prepared))
	for i := range prepared {
		if p.stopping || !p.hasRoom() {
			break
		}
		f := &prepared[i]
		p.lastToken++
		f.token = p.lastToken
		p.markSent(f)
		p.flights[f.token] = f
		p.held++
		p.heldBytes += len(f.firing.Payload)
		admitted = append(admitted, f)
	}
	return admitted
}

func (p *Publisher) prepare(f schedule.Firing) flight {
	attempt := f.Attempt
	if attempt == 0 {
		attempt = event.Attempt(f.Payload)
	}
	return flight{
		firing:      f,
		id:          keys.EventID(f.Key.String(), f.Due, attempt),
		attempt:     attempt,
		maxAttempts: p.Policies.For(f.Key).MaxAttempts(),
		withhold:    f.Status == schedule.PayloadTooLarge,
	}
}

// signal sends on a channel with a buffer of one, without waiting.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends. Then it takes no more firings, waits for the
// acknowledgements of those on their way, settles them and gives the rest back,
// for at most DrainTimeout in all. It returns an error only if it could not
// begin. Call it once.
func (p *Publisher) Run(ctx context.Context) error {
	status := p.nc.StatusChanged()
	defer p.nc.RemoveStatusListener(status)
	inbox := p.nc.NewInbox() + "."
	replies, err := p.nc.Subscribe(inbox+"*", func(m *nats.Msg) { p.reply(m.Subject[len(inbox):], m) })
	if err != nil {
		return fmt.Errorf("notify: subscribe to acknowledgements: %w", err)
	}
	defer func() {
		if err := replies.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			p.log().Warn("cannot unsubscribe from acknowledgements", "err", err)
		}
	}()
	p.inbox = inbox
	p.connection(false)
	close(p.started)

	// What follows goes on for a while after ctx has ended.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	probing, stopProbing := context.WithCancel(work)
	defer stopProbing()
	var workers sync.WaitGroup
	workers.Go(func() { p.probe(probing) })
	workers.Go(func() { p.settle(work) })

	p.loop(ctx.Done(), status, nil)

	drainTimeout := orDefault(p.DrainTimeout, defaultDrainTimeout)
	defer time.AfterFunc(drainTimeout, cancel).Stop()
	p.mu.Lock()
	p.stopping = true
	p.announce()
	p.mu.Unlock()
	p.loop(nil, status, time.After(drainTimeout*3/4))
	stopProbing()
	p.abandon()
	workers.Wait()
	return nil
}

// loop looks after the flights: it publishes again what failed and gives back
// what cannot be published in time. It ends with stop. When that is nil it ends
// with deadline, or when no flight is left that could still succeed.
func (p *Publisher) loop(stop <-chan struct{}, status <-chan nats.Status, deadline <-chan time.Time) {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		again, idle := p.inspect()
		p.send(again)
		if idle && stop == nil {
			return
		}
		timer.Stop()
		if !idle {
			timer.Reset(tick)
		}
		select {
		case <-stop:
			return
		case <-deadline:
			return
		case s, ok := <-status:
			if !ok {
				status = nil
			}
			p.connection(s != nats.CONNECTED)
		case <-p.kick:
		case <-timer.C:
		}
	}
}
