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

// tick is the interval of looks through the firings in flight: a few microseconds of work for a full window.
const tick = 50 * time.Millisecond

// logUnreadEvery is the interval of log lines about guards that timerd may not read.
const logUnreadEvery = 10 * time.Second

// Publisher publishes claimed firings to JetStream and settles them once they are acknowledged. A firing that fails is
// published again under the same id while its lease lasts, and then given back. A firing whose lease has ended is not
// published, so a timerd that was paused for a while does no harm. A firing that was claimed too late for its limit
// becomes a dead letter, or is dropped. One whose guard has said no is settled.
//
// A firing passes these stages. Each knows only the stages below it:
//
//	Publish ── classify ── window: is there room?
//	   │ publish, seek          │ bury       │ drop, guarded, park
//	 seeker ──▶ flight       letters         │
//	   │   group, sender        │            │
//	   └── window.settle, window.giveBack ───┴── settler, one queue a server
//
// The flight publishes an event by itself, or several together, as the group decides.
//
// health knows whether NATS takes events, from the prober and the answers. NewPublisher sets the Options; change them
// before Run only. The methods may be called concurrently.
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

	admission sync.Mutex // held while firings are taken in, to exclude the end of Run
	unread    tally      // of firings whose guard cannot be read; admission guards it
}

// NewPublisher returns a Publisher. nc must not buffer messages during a disconnection, because leases may have ended
// by the reconnect. js is JetStream on the same connection; the Publisher uses it to look at the streams and to create
// missing ones.
func NewPublisher(nc *nats.Conn, js jetstream.JetStream, s Settler) *Publisher {
	p := &Publisher{Options: defaultOptions(), nc: nc, kick: make(chan struct{}, 1), stream: &streamRecord{},
		unread: tally{every: logUnreadEvery}}
	o := &p.Options
	p.gate = newGate()
	p.settler = newSettler(o, s, p.gate)
	p.window = &window{Options: o, settler: p.settler, servers: map[string]int{}}
	p.health = &health{Options: o, alarm: make(chan struct{}, 1)}
	subjects := newSubjects()
	p.flight = &flight{
		Options: o, gate: p.gate, window: p.window, health: p.health, stream: p.stream,
		sender: newSender(o, nc), kick: p.kick, subjects: subjects, group: newGroup(subjects),
		deliveries: map[uint64]*delivery{}, late: tally{every: logLapsedEvery},
	}
	p.seeker = &seeker{Options: o, js: js, flight: p.flight, wake: make(chan struct{}, 1)}
	p.letters = &letters{
		Options: o, js: js, gate: p.gate, window: p.window, health: p.health, subjects: newSubjects(),
		wake: make(chan struct{}, 1), kick: p.kick, late: tally{every: logLateEvery},
	}
	p.prober = &prober{
		Options: o, js: js, health: p.health, stream: p.stream, group: p.flight.group, gate: p.gate, kick: p.kick,
	}
	return p
}

// newSubjects returns a window with a lane for each subject. Untrusted lanes may fill the window while none is trusted.
func newSubjects() *lanes.Window { return lanes.New(lanes.Shares{Unknown: 2, Each: 1, Alone: true}) }

// InFlight returns the number of firings in the Publisher: at most Window for each server.
func (p *Publisher) InFlight() int {
	inFlight, _ := p.window.state("")
	return inFlight
}

// Wait waits until firings of a server, given by its name, can be published, and then returns nil: NATS is connected,
// the stream takes messages as far as known, and there is room in the window. Call it before claiming firings. It
// returns ctx's error when ctx ends first, and ErrStopped when Run is ending.
func (p *Publisher) Wait(ctx context.Context, server string) error {
	ready := func() bool {
		inFlight, room := p.window.state(server)
		return room && p.health.now().admits(inFlight)
	}
	if err := p.gate.await(ctx, ready); err != nil {
		return err
	}
	return ctx.Err()
}

// Healthy returns nil while events can be published as far as known, and otherwise an error that names the problem. It
// answers from memory and may be called at any time.
func (p *Publisher) Healthy() error {
	switch opened, stopped, _ := p.gate.state(); {
	case stopped:
		return ErrStopped
	case !opened:
		return errors.New("the publisher has not started")
	}
	return p.health.problem()
}

// Publish takes over claimed firings. It returns once all of them are in the window, published or about to be. It takes
// them over even if it returns an error. If ctx has ended and there is no room for all, or if Run is ending, it gives
// the rest back to the schedule, and the error says so.
func (p *Publisher) Publish(ctx context.Context, firings []schedule.Firing) error {
	deliveries, duplicates := make([]delivery, len(firings)), p.stream.duplicates()
	for i := range firings {
		deliveries[i] = p.prepare(firings[i], duplicates)
	}
	for len(deliveries) > 0 {
		next := &deliveries[0]
		ready := func() bool {
			_, room := p.window.state(next.server)
			return room && !p.awaitsLetters(next)
		}
		if err := p.gate.await(ctx, ready); err != nil {
			left := firings[len(firings)-len(deliveries):]
			p.settler.release(context.WithoutCancel(ctx), schedule.Outcomes(schedule.OutcomeGivenBack, left...))
			return fmt.Errorf("%d firings not published: %w", len(left), err)
		}
		admitted, taken := p.admit(deliveries)
		p.flight.publish(admitted)
		for _, d := range admitted {
			if d.firing.Status != schedule.PayloadPresent {
				d.logStatus(p.Logger)
			}
		}
		deliveries = deliveries[taken:]
	}
	return nil
}

// awaitsLetters reports whether a delivery waits until other dead letters are stored, which is soon.
func (p *Publisher) awaitsLetters(d *delivery) bool { return d.fate == bury && p.letters.awaited() }

// admit takes as many deliveries into the window as fit, and returns their number. It also returns the admitted
// deliveries that the caller has to publish.
func (p *Publisher) admit(deliveries []delivery) (admitted []*delivery, taken int) {
	p.admission.Lock()
	defer p.admission.Unlock()
	if p.gate.isStopped() {
		return nil, 0
	}
	for i := range deliveries {
		d := &deliveries[i]
		if p.awaitsLetters(d) || !p.window.take(d.server, len(d.firing.Payload)) {
			break
		}
		taken++
		if p.dispatch(d) {
			admitted = append(admitted, d)
		}
	}
	return admitted, taken
}

// prepare returns the delivery of a firing, with its fate. duplicates is the time for which JetStream remembers ids.
func (p *Publisher) prepare(f schedule.Firing, duplicates time.Duration) delivery {
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
	d.fate, d.reason = classify(&f, terms{limit: limitOf(&f, p.Late), otherID: other != 0, knows: duplicates})
	return d
}

// dispatch passes a delivery in the window to its stage, and reports whether that stage is the flight.
func (p *Publisher) dispatch(d *delivery) (flies bool) {
	switch d.fate {
	case bury:
		p.letters.take(d)
		return false
	case drop:
		p.window.settle(d, schedule.OutcomeUnfired)
		p.letters.reportLate(d, LateDrop)
		return false
	case guarded:
		p.window.settle(d, schedule.OutcomeGuarded)
		p.reportGuarded(d)
		return false
	case asideGuard:
		p.window.setAside(d, schedule.OutcomeUnread)
		p.reportUnread(d)
		return false
	case publish, seek:
	}
	if answer := p.enter(d); answer != lanes.In {
		p.window.park(d, answer)
		return false
	}
	p.flight.add(d)
	if d.fate == seek {
		p.seeker.lookFor(d)
	}
	return true
}

// reportGuarded reports a firing that does not fire by its guard.
func (p *Publisher) reportGuarded(d *delivery) {
	f := &d.firing
	p.Metrics.Guarded(f)
	p.Logger.Debug("timer does not fire, by its guard", "key", f.Key.String(), "due_at", f.Due.Time(), "attempt",
		d.attempt, "guard", d.reason)
}

// reportUnread reports a firing whose guard timerd may not read.
func (p *Publisher) reportUnread(d *delivery) {
	if count := p.unread.add(time.Now(), 1); count > 0 {
		p.Logger.Warn("timers wait because timerd may not read their guards: grant its Redis user the keys, or in a"+
			" cluster give guard and timer one hash tag; this is the last one", "count", count, "key",
			d.firing.Key.String(), "due_at", d.firing.Due.Time(), "err", d.reason)
	}
}

// enter enters a delivery into the lane of its subject, if the lane admits it. Only a few of the seeker's deliveries
// may be on failing subjects.
func (p *Publisher) enter(d *delivery) (answer lanes.Answer) {
	bytes, subjects := len(d.firing.Payload), p.flight.subjects
	d.lane, answer = subjects.Enter(d.subject, p.size(), bytes)
	if answer != lanes.In || d.fate != seek || !subjects.State(d.subject).Failing {
		return answer
	}
	if d.failingLook = p.seeker.mayLook(); !d.failingLook {
		subjects.Leave(d.lane, bytes, lanes.Nothing)
		return lanes.Failing
	}
	return lanes.In
}

// Run publishes until ctx ends. Then it takes no more firings. It waits for the acknowledgements of the firings in
// flight, settles acknowledged firings and gives the rest back, all within DrainTimeout. It returns an error only if it
// could not begin. Call it once.
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

	// From here on everything may outlast ctx for a while.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	probing, stopProbing := context.WithCancel(work)
	defer stopProbing()
	var workers sync.WaitGroup
	workers.Go(func() { p.prober.run(probing) })
	workers.Go(func() { p.seeker.run(probing) })
	workers.Go(func() { p.flight.publishGathered(probing) })
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

// loop publishes failed deliveries again and gives overdue ones back. It ends with stop. If stop is nil it ends with
// deadline, or when no delivery is left.
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

// noteConnection reads the connection's status, because a slow status listener misses changes. lost means that the
// connection was down in between, so that earlier messages will not be answered.
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

// deniedSubject returns the subject of a server's error about a missing right to publish.
func deniedSubject(err error) (subject string, ok bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), `Publish to "`)
	subject, _, closed := strings.Cut(rest, `"`)
	return subject, ok && closed
}
