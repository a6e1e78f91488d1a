package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	defaultWindow       = 4096
	defaultWindowBytes  = 64 << 20
	defaultAckWait      = 5 * time.Second
	defaultDrainTimeout = 5 * time.Second

	// tick is how often the firings in delivery are looked through while there are any: a few microseconds of work for
	// a full window.
	tick = 50 * time.Millisecond
)

// ErrStopped says that a Publisher takes no more firings.
var ErrStopped = errors.New("notify: publisher has stopped")

// Settler takes the outcome of firings. A schedule.Schedule is one. The firings come without their payloads, and those
// of one call may be of several partitions, of one server as far as is known.
type Settler interface {
	// ServerOf returns which server has a partition, as far as is known: an empty text where there is only one. It asks nobody.
	ServerOf(p keys.Partition) string
	// Settle forgets firings that NATS has acknowledged. It must be safe to repeat.
	Settle(ctx context.Context, firings []schedule.Firing) error
	// Release gives claims back, so that anybody may claim them again.
	Release(ctx context.Context, firings []schedule.Firing) error
}

// Failure classes why a try to publish a firing failed.
type Failure string

// The classes of failure. After all but FailureTooLarge the firing is published again as it is, while its lease lasts.
const (
	FailureDisconnected Failure = "disconnected" // the connection is down, or went down before the acknowledgement came
	FailureTimeout      Failure = "timeout"      // no acknowledgement in time
	FailureNoStream     Failure = "nostream"     // no stream takes the subject
	FailureFull         Failure = "full"         // the stream, the account or the disk is full
	FailureUnavailable  Failure = "unavailable"  // JetStream cannot work at the moment
	FailureRefused      Failure = "refused"      // any other refusal
	FailureTooLarge     Failure = "toolarge"     // the firing is published again without its payload
)

// Publisher publishes claimed firings to JetStream and settles them once they are acknowledged. A firing that fails is
// published again under the same id while its lease lasts, and then given back. A firing whose lease has run out is not
// published, so that a timerd that was stopped for a while does no harm. One that was claimed too late for its limit becomes a
// dead letter, or is forgotten.
//
// NewPublisher sets the fields; change them before Run only. The methods may be called concurrently.
type Publisher struct {
	Streams streams.Config
	// MaxAttempts says how often a timer fires at most, for its events to tell: 1.
	MaxAttempts func(keys.Key) int
	// PayloadAttempt says whether the attempt counts that a payload states, if it is no more than MaxAttempts: true.
	PayloadAttempt bool
	// Late has the limits of timers that have none of their own: none.
	Late policy.Rules[policy.Limit]
	// ContentType says how payloads travel, see event.Event: by what they are.
	ContentType string

	// Window is how many firings may be on their way at once: from Publish until they are acknowledged, and of each server of the
	// schedule until they are settled or given back: 4,096.
	Window int
	// WindowBytes is how many bytes of payload those that are not acknowledged may have: 64 MiB. One firing is taken
	// however large it is.
	WindowBytes int
	// AckWait is how long to wait for an acknowledgement before publishing again: 5 s. The end of the lease cuts it
	// short.
	AckWait time.Duration
	// DrainTimeout bounds how long Run goes on after its context has ended: 5 s.
	DrainTimeout time.Duration
	Logger       *slog.Logger // slog.Default()
	// Permit is asked whenever the stream is looked at. An error keeps events back until it returns nil. It must return
	// quickly. By default it returns nil.
	Permit func() error

	// The On functions are for metrics; by default they do nothing. They may run concurrently, must return quickly, and
	// must not call the Publisher.

	// OnFired is called once for each acknowledged firing. lateness is how long after its due time the event was
	// published. duplicate says that JetStream had the event already, from an earlier try or another timerd.
	OnFired func(f *schedule.Firing, lateness time.Duration, duplicate bool)
	// OnFailed is called for each try that failed.
	OnFailed func(class Failure)
	// OnSettled and OnReleased are called with how many firings were settled, and how many were given back because they
	// could not be published.
	OnSettled, OnReleased func(n int)
	// OnSetAside is called for each firing that is given back for a while because NATS does not take its subject.
	OnSetAside func(f *schedule.Firing)
	// OnLate is called for each firing that was claimed too late: when its dead letter is stored, or when it is forgotten.
	OnLate func(f *schedule.Firing, action LateAction)
	// OnLost is called with how many events NATS has lost, at least, that it had acknowledged to this Publisher.
	OnLost func(n uint64)

	nc      *nats.Conn
	js      jetstream.JetStream
	settler *settler
	started chan struct{} // closed once Run can publish
	kick    chan struct{} // wakes loop
	alarm   chan struct{} // wakes probe
	sought  chan struct{} // wakes seek

	sending sync.Mutex // one message at a time; guards what follows
	buf     []byte
	header  nats.Header
	traced  bool // header has those of a trace

	inbox string // what reply subjects begin with; set before started is closed

	mu         sync.Mutex
	deliveries map[uint64]*delivery // published or to be published, by token
	lastToken  uint64
	held       map[string]int // firings that are not acknowledged or given up yet, by server
	heldAll    int            // of all servers
	heldBytes  int            // of their payloads
	changed    chan struct{}  // closed when await has to look again; nil if nobody waits
	health     streamHealth
	trust      trust
	letters    letters     // of firings that were claimed too late
	looks      []*delivery // to be looked for in the stream
	// failingLooks is how many deliveries with failingLook there are.
	failingLooks int
	ledger       ledger
	stopping     bool
}

// NewPublisher returns a Publisher on a connection that keeps nothing back to publish after a reconnect, because leases
// may have run out by then. js is JetStream on the same connection: it serves to watch the streams, and to make them
// again if they vanish.
func NewPublisher(nc *nats.Conn, js jetstream.JetStream, settler Settler) *Publisher {
	p := &Publisher{
		MaxAttempts:    func(keys.Key) int { return 1 },
		PayloadAttempt: true,
		Window:         defaultWindow,
		WindowBytes:    defaultWindowBytes,
		AckWait:        defaultAckWait,
		DrainTimeout:   defaultDrainTimeout,
		Logger:         slog.Default(),
		Permit:         func() error { return nil },
		OnFired:        func(*schedule.Firing, time.Duration, bool) {},
		OnFailed:       func(Failure) {},
		OnSettled:      func(int) {},
		OnReleased:     func(int) {},
		OnSetAside:     func(*schedule.Firing) {},
		OnLate:         func(*schedule.Firing, LateAction) {},
		OnLost:         func(uint64) {},

		nc:         nc,
		js:         js,
		settler:    newSettler(settler),
		started:    make(chan struct{}),
		kick:       make(chan struct{}, 1),
		alarm:      make(chan struct{}, 1),
		sought:     make(chan struct{}, 1),
		header:     nats.Header{event.MsgIDHeader: {""}, event.ContentTypeHeader: {event.ContentType}},
		deliveries: make(map[uint64]*delivery),
		held:       map[string]int{},
		trust:      newTrust(),
		letters:    newLetters(),
	}
	p.settler.room = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.announce()
	}
	return p
}

// hasRoom tells whether the window takes another firing of a server. What waits to be settled on one takes no room from others.
// p.mu is held.
func (p *Publisher) hasRoom(server string) bool {
	_, waiting := p.settler.inHand(server)
	return p.heldAll < p.Window && p.heldBytes < p.WindowBytes && p.held[server]+waiting < p.Window
}

// hold counts a firing of a server that is not acknowledged or given up yet. p.mu is held.
func (p *Publisher) hold(server string) {
	p.held[server]++
	p.heldAll++
}

// unhold takes one out of the count. p.mu is held.
func (p *Publisher) unhold(server string) {
	p.heldAll--
	if p.held[server]--; p.held[server] == 0 {
		delete(p.held, server)
	}
}

// settle hands a firing to the settler, to be settled. p.mu is held.
func (p *Publisher) settle(d *delivery) {
	p.unhold(d.server)
	p.settler.settle(d.firing)
}

// giveBack hands a firing to the settler, to be given back. p.mu is held.
func (p *Publisher) giveBack(d *delivery) {
	p.unhold(d.server)
	p.settler.giveBack(d.firing)
}

// InFlight returns how many firings the Publisher has: of each server at most Window.
func (p *Publisher) InFlight() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	waiting, _ := p.settler.inHand("")
	return p.heldAll + waiting
}

// Wait returns nil once firings of a server, by its name, can be published: NATS is connected, the stream takes messages as far as
// is known, and there is room in the window. Call it before claiming firings. It returns ctx's error when ctx ends first, and
// ErrStopped when Run is ending.
func (p *Publisher) Wait(ctx context.Context, server string) error {
	if err := p.await(ctx, func() bool { return p.health.good() && p.hasRoom(server) }); err != nil {
		return err
	}
	return ctx.Err()
}

// await waits until ready, which is called with p.mu held, returns true. It does not wait after ctx has ended.
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

// Publish takes over claimed firings and returns once all of them are in the window: published, or to be published as
// soon as possible. It takes them over even if it returns an error. When ctx has ended and there is no room for all, or
// Run is ending, it gives the rest back to the schedule and the error says so.
func (p *Publisher) Publish(ctx context.Context, firings []schedule.Firing) error {
	for len(firings) > 0 {
		next := &firings[0]
		server := p.settler.schedule.ServerOf(next.Partition)
		if err := p.await(ctx, func() bool { return p.hasRoom(server) && !p.awaitsLetters(next) }); err != nil {
			p.settler.release(context.WithoutCancel(ctx), firings)
			return fmt.Errorf("%d of the firings not published: %w", len(firings), err)
		}
		deliveries, taken := p.admit(firings)
		p.send(deliveries)
		for _, d := range deliveries {
			if d.firing.Status != schedule.PayloadPresent {
				p.logStatus(d)
			}
		}
		firings = firings[taken:]
	}
	return nil
}

// logStatus logs that a timer fires without its payload.
func (p *Publisher) logStatus(d *delivery) {
	why := event.StatusMissing
	if d.firing.Status == schedule.PayloadTooLarge {
		why = event.StatusTooLarge
	}
	p.Logger.Warn("timer fires without its payload", "key", d.firing.Key.String(),
		"due_at", d.firing.Due.Time(), "attempt", d.attempt, "source", string(d.firing.Trigger), "err", why)
}

// admit takes as many firings into the window as there is room for, and returns how many. The deliveries that it returns
// count as sent, because the caller is about to send them, except for those that are looked for. The others are given
// back, because of their subjects, or are too late to be published.
func (p *Publisher) admit(firings []schedule.Firing) (admitted []*delivery, taken int) {
	prepared := make([]delivery, min(len(firings), p.Window))
	for i := range prepared {
		prepared[i] = p.prepare(firings[i])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.deliveries) == 0 {
		signal(p.kick)
	}
	admitted = make([]*delivery, 0, len(prepared))
	for i := range prepared {
		d := &prepared[i]
		if p.stopping || !p.hasRoom(d.server) {
			break
		}
		if p.awaitsLetters(&d.firing) {
			break
		}
		taken++
		p.hold(d.server)
		if reason := withheld(&d.firing); reason != "" {
			p.takeLetter(d, reason)
			continue
		}
		if limit, by, is := p.lateness(&d.firing); is {
			p.takeLate(d, limit, by)
			continue
		}
		if d.trust = p.trust.of(d.subject); !p.trust.admits(d.trust, load{p.Window, p.WindowBytes}) || !p.maySeek(d) {
			d.firing.Pause, d.firing.Refused = d.trust.pause(&d.firing), d.trust.failing
			p.giveBack(d)
			if d.trust.failing {
				p.OnSetAside(&d.firing)
			}
			continue
		}
		p.trust.add(d.trust, len(d.firing.Payload))
		p.lastToken++
		d.token = p.lastToken
		switch {
		case p.mustSeek(d):
			p.lookFor(d)
		case d.expiring():
			p.leave(d)
		default:
			p.markSent(d)
		}
		p.deliveries[d.token] = d
		p.heldBytes += len(d.firing.Payload)
		admitted = append(admitted, d)
	}
	return admitted, taken
}

func (p *Publisher) prepare(f schedule.Firing) delivery {
	most := p.MaxAttempts(f.Key)
	attempt, other := p.attempts(&f, most)
	d := delivery{
		firing:      f,
		server:      p.settler.schedule.ServerOf(f.Partition),
		id:          keys.EventID(f.Key.String(), int64(f.Due), attempt),
		attempt:     attempt,
		maxAttempts: most,
		withhold:    f.Status == schedule.PayloadTooLarge,
		subject:     p.Streams.Subject(f.Key, keys.Fired),
	}
	if other != 0 {
		d.otherID = keys.EventID(f.Key.String(), int64(f.Due), other)
	}
	return d
}

// attempts returns which attempt a firing is, of most. A larger number in its payload is no retry count. other, if not 0,
// is the attempt as which it may have been published before, with other settings.
func (p *Publisher) attempts(f *schedule.Firing, most int) (attempt, other int) {
	if f.Attempt != 0 {
		return f.Attempt, 0
	}
	if !p.PayloadAttempt && !f.MayBeStored {
		return 1, 0
	}
	stated := event.Attempt(f.Payload)
	attempt, other = 1, stated
	if p.PayloadAttempt && stated <= most {
		attempt, other = stated, 1
	}
	if attempt == other || !f.MayBeStored {
		other = 0
	}
	return attempt, other
}

// signal sends on a channel with a buffer of one, without waiting.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run publishes until ctx ends. Then it takes no more firings, waits for the acknowledgements of those on their way,
// settles them and gives the rest back, for at most DrainTimeout in all. It returns an error only if it could not
// begin. Call it once.
func (p *Publisher) Run(ctx context.Context) error {
	status := p.nc.StatusChanged()
	defer p.nc.RemoveStatusListener(status)
	inbox := p.nc.NewInbox() + "."
	replies, err := p.nc.Subscribe(inbox+"*", func(m *nats.Msg) { p.receive(m.Subject[len(inbox):], m) })
	if err != nil {
		return fmt.Errorf("notify: subscribe to acknowledgements: %w", err)
	}
	defer func() {
		if err := replies.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			p.Logger.Warn("cannot unsubscribe from acknowledgements", "err", err)
		}
	}()
	before := p.nc.ErrorHandler()
	p.nc.SetErrorHandler(func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if subject, ok := deniedSubject(err); ok {
			p.deny(subject)
		}
		if before != nil {
			before(nc, sub, err)
		}
	})
	defer p.nc.SetErrorHandler(before)
	p.inbox = inbox
	p.noteConnection(false)
	p.settler.logger, p.settler.onSettled, p.settler.onReturn = p.Logger, p.OnSettled, p.OnReleased
	close(p.started)

	// What follows goes on for a while after ctx has ended.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	probing, stopProbing := context.WithCancel(work)
	defer stopProbing()
	var workers sync.WaitGroup
	workers.Go(func() { p.probe(probing) })
	workers.Go(func() { p.seek(probing) })
	workers.Go(func() { p.settler.run(work) })
	var burials sync.WaitGroup
	burials.Go(func() { p.bury(probing) })

	p.loop(ctx.Done(), status, nil)

	defer time.AfterFunc(p.DrainTimeout, cancel).Stop()
	p.mu.Lock()
	p.stopping = true
	p.announce()
	p.mu.Unlock()
	p.loop(nil, status, time.After(p.DrainTimeout*3/4))
	stopProbing()
	burials.Wait()
	p.abandon()
	workers.Wait()
	return nil
}

// loop publishes again what failed and gives back what cannot be published in time. It ends with stop. When stop is nil
// it ends with deadline, or when no delivery is left.
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
			p.noteConnection(s != nats.CONNECTED)
		case <-p.kick:
		case <-timer.C:
		}
	}
}
