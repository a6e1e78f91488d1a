package notify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// tick is how often the firings in flight are looked through while there are any: a few microseconds of work for a full window.
const tick = 50 * time.Millisecond

// Publisher publishes claimed firings to JetStream and settles them once they are acknowledged. A firing that fails is
// published again under the same id while its lease lasts, and then given back. A firing whose lease has ended is not
// published, so a timerd that was paused for a while does no harm. A firing that was claimed too late for its limit
// becomes a dead letter, or is dropped.
//
// A firing passes these stages, each of which knows those below it alone:
//
//	Publish ── window: is there room? ── classify
//	   │ publish, seek          │ bury       │ drop, park
//	 flight ◀── seeker       letters         │
//	   │ sender, answers        │            │
//	   └── window.settle, window.giveBack ───┴── settler, one queue a server
//
// The sender publishes an event by itself, or the group several together, where that is quicker.
//
// health says whether NATS takes events; the prober and the answers tell it. NewPublisher sets the Options; change them before
// Run only. The methods may be called concurrently.
type Publisher struct {
	Options

	nc      *nats.Conn
	kick    chan struct{} // wakes loop
	gate    *gate
	settler *settler
	window  *window
	health  *health
	stream  *streamRecord
	flight  *flight
	seeker  *seeker
	letters *letters
	prober  *prober

	admission sync.Mutex // held while firings are taken in, so that none is when Run ends
}

// NewPublisher returns a Publisher. nc must not buffer messages for after a reconnect, because leases may have ended by
// then. js is JetStream on the same connection. It is used to watch the streams, and to create them again if they
// vanish.
func NewPublisher(nc *nats.Conn, js jetstream.JetStream, s Settler) *Publisher {
	p := &Publisher{Options: defaultOptions(), nc: nc, kick: make(chan struct{}, 1), stream: &streamRecord{}}
	o := &p.Options
	p.gate = newGate()
	p.settler = newSettler(o, s, p.gate.announce)
	p.window = &window{Options: o, settler: p.settler, servers: map[string]int{}}
	p.health = &health{Options: o, alarm: make(chan struct{}, 1)}
	p.flight = &flight{
		Options: o, gate: p.gate, window: p.window, health: p.health, stream: p.stream, sender: newSender(o, nc), kick: p.kick,
		subjects: newSubjects(), deliveries: map[uint64]*delivery{}, late: tally{every: logLapsedEvery},
	}
	p.flight.group = newGroup(p.flight)
	p.seeker = &seeker{Options: o, js: js, flight: p.flight, wake: make(chan struct{}, 1)}
	p.letters = &letters{
		Options: o, js: js, gate: p.gate, window: p.window, health: p.health, subjects: newSubjects(), wake: make(chan struct{}, 1), kick: p.kick,
		late: tally{every: logLateEvery},
	}
	p.prober = &prober{Options: o, js: js, health: p.health, stream: p.stream, batches: p.flight.group.allow, again: func() {
		signal(p.kick)
		p.gate.announce()
	}}
	return p
}

// newSubjects returns a window whose lanes are subjects: while none is trusted they may fill it.
func newSubjects() *lanes.Window { return lanes.New(lanes.Shares{Unknown: 2, Each: 1, Alone: true}) }

// InFlight returns how many firings the Publisher has: at most Window for each server.
func (p *Publisher) InFlight() int { return p.window.inFlight() }

// Wait returns nil once firings of a server, by its name, can be published: NATS is connected, the stream takes messages as far as
// is known, and there is room in the window. Call it before claiming firings. It returns ctx's error when ctx ends first, and
// ErrStopped when Run is ending.
func (p *Publisher) Wait(ctx context.Context, server string) error {
	if err := p.gate.await(ctx, func() bool { return p.health.now().admits(p.window.inFlight()) && p.window.hasRoom(server) }); err != nil {
		return err
	}
	return ctx.Err()
}

// Healthy returns nil while events can be published as far as is known, and otherwise an error that names the problem.
// It answers from memory and may be called at any time.
func (p *Publisher) Healthy() error {
	switch opened, stopped, _ := p.gate.state(); {
	case stopped:
		return ErrStopped
	case !opened:
		return errors.New("the publisher has not started")
	}
	return p.health.problem()
}

// Publish takes over claimed firings and returns once all of them are in the window: published, or about to be. It
// takes them over even if it returns an error. If ctx has ended and there is no room for all, or if Run is ending, it
// gives the rest back to the schedule, and the error says so.
func (p *Publisher) Publish(ctx context.Context, firings []schedule.Firing) error {
	for len(firings) > 0 {
		next := &firings[0]
		server := p.settler.schedule.ServerOf(next.Partition)
		if err := p.gate.await(ctx, func() bool { return p.window.hasRoom(server) && !p.awaitsLetters(next) }); err != nil {
			p.settler.release(context.WithoutCancel(ctx), schedule.Outcomes(schedule.OutcomeGivenBack, firings...))
			return fmt.Errorf("%d firings not published: %w", len(firings), err)
		}
		deliveries, taken := p.admit(firings)
		p.flight.publish(deliveries)
		for _, d := range deliveries {
			if d.firing.Status != schedule.PayloadPresent {
				d.logStatus(p.Logger)
			}
		}
		firings = firings[taken:]
	}
	return nil
}

// awaitsLetters reports whether a firing is to wait until others are dead letters, as they soon are.
func (p *Publisher) awaitsLetters(f *schedule.Firing) bool {
	if !p.letters.awaited() {
		return false
	}
	what, _ := judge(f, limitOf(f, p.Late))
	return what == bury
}

// admit takes as many firings into the window as there is room for, and returns how many. Those that it returns are in flight,
// and the caller is about to publish them.
func (p *Publisher) admit(firings []schedule.Firing) (admitted []*delivery, taken int) {
	prepared := make([]delivery, min(len(firings), p.Window))
	for i := range prepared {
		prepared[i] = p.prepare(firings[i])
	}
	admitted = make([]*delivery, 0, len(prepared))
	p.admission.Lock()
	defer p.admission.Unlock()
	if p.gate.isStopped() {
		return nil, 0
	}
	for i := range prepared {
		d := &prepared[i]
		if p.awaitsLetters(&d.firing) || !p.window.take(d.server, len(d.firing.Payload)) {
			break
		}
		taken++
		if p.dispatch(d) {
			admitted = append(admitted, d)
		}
	}
	return admitted, taken
}

func (p *Publisher) prepare(f schedule.Firing) delivery {
	most := p.MaxAttempts(f.Key)
	attempt, other := attempts(&f, most, p.PayloadAttempt)
	d := delivery{
		firing:      f,
		mayBeStored: f.MayBeStored,
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

// dispatch hands a firing in the window to its stage, and reports whether that is the flight.
func (p *Publisher) dispatch(d *delivery) (flies bool) {
	what, reason := classify(&d.firing, terms{limit: limitOf(&d.firing, p.Late), otherID: d.otherID != "", knows: p.stream.duplicates()})
	switch what {
	case bury:
		p.letters.take(d, reason)
		return false
	case drop:
		p.window.settle(d, schedule.OutcomeUnfired)
		p.letters.reportLate(d, LateDrop, reason)
		return false
	case publish, seek:
	}
	if answer := p.enter(d, what); answer != lanes.In {
		p.park(d, answer)
		return false
	}
	p.flight.add(d, what)
	if what == seek {
		p.seeker.lookFor(d)
	}
	return true
}

// park gives a firing back for a while, because of the answer of its subject's lane.
func (p *Publisher) park(d *delivery, answer lanes.Answer) {
	pause := parked(&d.firing, answer)
	if answer != lanes.Failing {
		p.window.giveBack(d, schedule.OutcomeGivenBack, pause)
		return
	}
	p.window.giveBack(d, schedule.OutcomeRefused, pause)
	p.Metrics.SetAside(&d.firing)
}

// enter has a firing enter the lane of its subject, if it may. Of those to be looked for, few may be on subjects that fail.
func (p *Publisher) enter(d *delivery, what fate) (answer lanes.Answer) {
	bytes, subjects := len(d.firing.Payload), p.flight.subjects
	d.lane, answer = subjects.Enter(d.subject, p.size(), bytes)
	if answer != lanes.In || what != seek || !subjects.State(d.subject).Failing {
		return answer
	}
	if d.failingLook = p.seeker.mayLook(); !d.failingLook {
		subjects.Leave(d.lane, bytes, lanes.Nothing)
		return lanes.Failing
	}
	return lanes.In
}

// Run publishes until ctx ends. Then it takes no more firings, waits for the acknowledgements of those in flight,
// settles them and gives the rest back, all within DrainTimeout. It returns an error only if it could not begin. Call
// it once.
func (p *Publisher) Run(ctx context.Context) error {
	status := p.nc.StatusChanged()
	defer p.nc.RemoveStatusListener(status)
	inbox := p.nc.NewInbox() + "."
	replies, err := p.nc.Subscribe(inbox+"*", func(m *nats.Msg) { p.flight.receive(m.Subject[len(inbox):], m) })
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
			p.flight.deny(subject)
		}
		if before != nil {
			before(nc, sub, err)
		}
	})
	defer p.nc.SetErrorHandler(before)
	p.flight.sender.inbox = inbox
	p.noteConnection(false)
	p.gate.open()

	// What follows goes on for a while after ctx has ended.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	probing, stopProbing := context.WithCancel(work)
	defer stopProbing()
	var workers sync.WaitGroup
	workers.Go(func() { p.prober.run(probing) })
	workers.Go(func() { p.seeker.run(probing) })
	workers.Go(func() { p.flight.group.run(probing) })
	workers.Go(func() { p.settler.run(work) })
	var burials sync.WaitGroup
	burials.Go(func() { p.letters.run(probing) })

	p.loop(ctx.Done(), status, nil)

	defer time.AfterFunc(p.DrainTimeout, cancel).Stop()
	p.admission.Lock()
	p.gate.stop()
	p.admission.Unlock()
	p.loop(nil, status, time.After(p.DrainTimeout*3/4))
	stopProbing()
	burials.Wait()
	p.flight.abandon()
	p.settler.finish()
	workers.Wait()
	return nil
}

// loop publishes again what failed and gives back what cannot be published in time. It ends with stop. When stop is nil
// it ends with deadline, or when no delivery is left.
func (p *Publisher) loop(stop <-chan struct{}, status <-chan nats.Status, deadline <-chan time.Time) {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	for {
		again, idle := p.flight.inspect()
		p.flight.publish(again)
		idle = idle && p.letters.idle()
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

// noteConnection reads the connection's status, rather than being told, because a status listener that is slow misses
// changes. lost says that the connection was down in between, so that what was sent before will not be answered.
func (p *Publisher) noteConnection(lost bool) {
	connected, news := p.nc.Status() == nats.CONNECTED, false
	if !connected {
		news = p.health.setConnected(false)
	}
	if lost || !connected {
		p.flight.disconnected()
	}
	if connected {
		news = p.health.setConnected(true)
	}
	if news {
		p.gate.announce()
	}
}

// deniedSubject returns the subject that a server's error says one may not publish on.
func deniedSubject(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	subject, _, closed := strings.Cut(rest, `"`)
	return subject, ok && closed
}
