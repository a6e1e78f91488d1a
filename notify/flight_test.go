package notify

import (
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/lanes"
	"github.com/timerd-io/timerd/schedule"
)

// counter calls functions for some of the counts.
type counter struct {
	noMetrics

	onFired    func()
	onSetAside func(*schedule.Firing)
}

func (c *counter) Fired(*schedule.Firing, time.Duration, bool) {
	if c.onFired != nil {
		c.onFired()
	}
}

func (c *counter) SetAside(f *schedule.Firing, _ schedule.OutcomeKind) {
	if c.onSetAside != nil {
		c.onSetAside(f)
	}
}

// newTestFlight returns a Publisher without a connection that believes it is connected, and its flight.
func newTestFlight(t *testing.T) (*Publisher, *flight) {
	t.Helper()
	p := NewPublisher(nil, nil, newTwoServers())
	p.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	p.health.setConnected(true)
	return p, p.flight
}

// fly takes a firing in, as if it had been published.
func fly(t *testing.T, p *Publisher, ref, subject string, lease time.Duration) *delivery {
	t.Helper()
	return flyIn(t, p, nil, ref, subject, lease)
}

// flyIn is fly for a firing of a batch.
func flyIn(t *testing.T, p *Publisher, b *batch, ref, subject string, lease time.Duration) *delivery {
	t.Helper()
	d := admit(t, p, ref, subject, lease)
	p.flight.mu.Lock()
	defer p.flight.mu.Unlock()
	p.flight.begin(d, b)
	return d
}

// admit takes in a firing that is to be published.
func admit(t *testing.T, p *Publisher, ref, subject string, lease time.Duration) *delivery {
	t.Helper()
	d := &delivery{subject: subject, server: "a",
		firing: schedule.Firing{Partition: "a1", Ref: ref, Lease: lease, Received: time.Now(), ClaimedAt: time.Now()}}
	if !p.window.take(d.server, 0) || p.enter(d) != lanes.In {
		t.Fatalf("%s does not get in", ref)
	}
	p.flight.add(d)
	return d
}

// A subject is blamed for an unanswered event only if other subjects had answers and its own other events had none.
func TestSubjectIsBlamedForItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		any, own bool // events that were acknowledged since it was sent
		want     bool
	}{
		"NATS is silent":            {false, false, false},
		"others had answers":        {true, false, true},
		"one of its own had answer": {true, true, false},
	} {
		for _, class := range []Failure{FailureTimeout, FailureRefused} {
			p, f := newTestFlight(t)
			d := fly(t, p, "blamed", "s", time.Minute)
			other := fly(t, p, "other", "s", time.Minute)
			f.mu.Lock()
			if c.any {
				f.health.noteAck()
			}
			if c.own {
				f.remove(other, lanes.Works)
			}
			f.fail(d, class, false)
			f.mu.Unlock()
			if got := f.subjects.State(d.subject).Failing; got != c.want {
				t.Errorf("%s, %s: failing %t, want %t", name, class, got, c.want)
			}
		}
	}
}

// Neither a second answer to an event nor an answer still being taken in lets the timeout of another event blame their
// subject.
func TestAnswersBlameNoneOfTheirOwn(t *testing.T) {
	t.Parallel()
	p, f := newTestFlight(t)
	first := fly(t, p, "first", "s", time.Minute)
	token, stored := strconv.FormatUint(first.token, 36), &nats.Msg{Data: []byte(`{"stream":"TIMERS", "seq":1}`)}
	var others []*delivery
	p.Metrics = &counter{onFired: func() { others = append(others, fly(t, p, "meanwhile", "s", time.Minute)) }}
	f.receive(token, stored)
	others = append(others, fly(t, p, "later", "s", time.Minute))
	f.receive(token, stored)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range others {
		if f.fail(d, FailureTimeout, false); f.subjects.State("s").Failing {
			t.Errorf("the subject fails because of %q", d.firing.Ref)
		}
	}
	if len(others) != 2 {
		t.Errorf("%d others, want 2", len(others))
	}
}

// A waiting delivery is given back unpublished if its subject turns out to be denied.
func TestDeniedSubjectIsGivenBack(t *testing.T) {
	t.Parallel()
	p, f := newTestFlight(t)
	var given []string
	p.Metrics = &counter{onSetAside: func(f *schedule.Firing) { given = append(given, f.Ref) }}
	for _, subject := range []string{"s", "other"} { // trusted, so that more than one gets in
		d := fly(t, p, "known", subject, time.Minute)
		f.mu.Lock()
		f.remove(d, lanes.Works)
		f.mu.Unlock()
	}
	fly(t, p, "sent", "s", time.Minute)
	queued := admit(t, p, "queued", "s", time.Minute)
	f.deny("s")
	f.mu.Lock()
	if f.begin(queued, nil) {
		t.Error("it is published")
	}
	f.mu.Unlock()
	f.inspect()
	if slices.Sort(given); !slices.Equal(given, []string{"queued", "sent"}) {
		t.Errorf("given back: %v", given)
	}
}

// A gathered delivery on a subject that is denied and then works has two places in the gathering. At most one of them
// is published in a batch.
func TestDeniedAmongGathered(t *testing.T) {
	t.Parallel()
	p, f := newTestFlight(t)
	g := f.group
	p.TakeForSlow()
	g.allow(true)
	known := fly(t, p, "known", "s", time.Minute)
	f.mu.Lock()
	f.remove(known, lanes.Works)
	f.mu.Unlock()
	earlier := fly(t, p, "earlier", "s", time.Minute) // stored, its answer is on its way
	g.mu.Lock()
	g.flying = maxFlying
	g.mu.Unlock()
	d := admit(t, p, "d", "s", time.Minute)
	f.publish([]*delivery{d})
	f.deny("s") // about another one
	f.mu.Lock()
	f.remove(earlier, lanes.Works) // the answer, before inspect
	f.mu.Unlock()
	again, _ := f.inspect()
	f.publish(again)
	g.mu.Lock()
	g.most, g.flying = 1, 0 // as after codeBatchTooLarge
	g.mu.Unlock()
	_, b, together := g.take(f.newToken())
	f.mu.Lock()
	f.begin(together[0], b)
	b.members, b.left = together, 1
	f.takeApart(b, true) // the server refused it
	f.mu.Unlock()
	f.inspect() // d is queued, and published by itself in a moment
	_, other, second := g.take(f.newToken())
	f.mu.Lock()
	if len(second) != 1 || f.begin(second[0], other) {
		t.Errorf("published in a second batch, try %d", d.tries)
	}
	f.remove(d, lanes.Works)
	f.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.out != 0 {
		t.Errorf("%d events with the server, want 0", g.out)
	}
}

// A batch without an answer, or with a lost one, is no subject's fault, and delays others only for a moment.
func TestBatchWithoutAnAnswerDelaysNobody(t *testing.T) {
	t.Parallel()
	p, f := newTestFlight(t)
	g := f.group
	g.allow(true)
	g.pace = slow{}
	now := time.Now()
	b := &batch{token: f.newToken(), began: now}
	d := flyIn(t, p, b, "in it", "s", time.Hour)
	b.members, b.left = []*delivery{d}, 1
	g.batches[b.token], g.flying = b, 1
	g.sent() // without an answer too
	if !g.gather(&delivery{subject: "o"}) {
		t.Fatal("it does not wait for the batch")
	}
	g.expireOverdue(now.Add(batchPatience / 2))
	if len(g.wake) != 0 {
		t.Error("it waits no longer than half of the patience")
	}
	g.expireOverdue(now.Add(2 * batchPatience))
	if len(g.wake) != 1 || g.flying != 0 || g.busy() {
		t.Errorf("it waits on; %d batches and %d events with the server", g.flying, g.out)
	}
	d.next = now
	f.health.noteAck()
	f.inspect()
	if again, _ := f.inspect(); !slices.Equal(again, []*delivery{d}) || !d.mayBeStored ||
		f.subjects.State("s").Failing {
		t.Errorf("%d are published again; %+v, %+v", len(again), d, f.subjects.State("s"))
	}
}

// Gathered events are published even if no batch is possible.
func TestWhatGatheredGoesWithoutBatches(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*group){
		"switched off":      func(g *group) { g.allow(false) },
		"refused":           func(g *group) { g.refused(answer{code: codeBatchDisabled}); g.aloneDone() },
		"one is incomplete": func(g *group) { g.refused(answer{code: 10176}); g.aloneDone() },
	} {
		_, f := newTestFlight(t)
		g := f.group
		g.allow(true)
		g.pace = slow{}
		for range 3 { // at once, so that the server is busy with events by themselves
			g.sent()
		}
		if !g.gather(&delivery{}) || g.busy() == false {
			t.Fatalf("%s: it does not wait", name)
		}
		end(g)
		if len(g.wake) != 1 || g.gather(&delivery{}) {
			t.Errorf("%s: it waits on", name)
		}
	}
}

// A denied event fails without an answer, and so does its subject, whatever else was acknowledged.
func TestDeniedSubjectFails(t *testing.T) {
	t.Parallel()
	p, f := newTestFlight(t)
	denied, other := fly(t, p, "denied", "s", time.Minute), fly(t, p, "other", "o", time.Minute)
	f.deny("nobody's")
	f.deny("s")
	if denied.state == sent || !denied.mayBeStored || !f.subjects.State(denied.subject).Failing || other.state != sent {
		t.Errorf("denied: %+v, other: %+v", denied, other)
	}
	if err := f.health.problem(); err == nil {
		t.Error("nothing was ever acknowledged, and health does not tell")
	}
	if again, idle := f.inspect(); len(again) != 0 || idle || len(f.deliveries) != 1 {
		t.Errorf("%d are published again, %d left", len(again), len(f.deliveries))
	}
	there := on("a1", "")
	given, _, _ := p.settler.queueOf(&there).next(true)
	if len(given) != 1 || given[0].Kind != schedule.OutcomeRefused || given[0].Pause == 0 || !given[0].MayBeStored {
		t.Errorf("given back: %+v", given)
	}
}

// A failed delivery is published again as long as its lease lasts and NATS takes events, and then given back.
func TestInspectPublishesAgainOrGivesBack(t *testing.T) {
	t.Parallel()
	p, f := newTestFlight(t)
	all := []*delivery{fly(t, p, "1", "s", time.Hour), fly(t, p, "2", "s", time.Hour),
		fly(t, p, "3", "s", time.Nanosecond)}
	if all[2].state != waiting {
		t.Error("it counts as sent though its lease has run out")
	}
	f.disconnected()
	for _, d := range all[:2] {
		if d.state == sent || !d.mayBeStored || d.failure != FailureDisconnected ||
			!d.next.After(time.Now().Add(-time.Minute)) {
			t.Errorf("after the connection has gone: %+v", d)
		}
		d.next = time.Now()
	}
	again, idle := f.inspect()
	if !slices.Equal(again, all[:2]) || idle || all[0].state != queued || all[0].tries != 1 || p.settler.waiting != 1 {
		t.Errorf("%d are published again, %d given back, %+v", len(again), p.settler.waiting, all[0])
	}
	p.gate.stop()
	f.disconnected()
	f.health.setConnected(false)
	if again, idle := f.inspect(); len(again) != 0 || !idle || p.settler.waiting != 3 || p.InFlight() != 3 {
		t.Errorf("at the end without NATS %d are published again, %d given back, %d in flight", len(again),
			p.settler.waiting, p.InFlight())
	}
}

// At most a few events on failing subjects are looked for at once; each counts until its result.
func TestFewLooksOnSubjectsThatFail(t *testing.T) {
	t.Parallel()
	p, _ := newTestFlight(t)
	var in []*delivery
	for i := range 2 * maxFailingLooks {
		d := &delivery{fate: seek, subject: string(rune('a' + i)), server: "a",
			firing: schedule.Firing{Partition: "a1", Lease: time.Minute, Received: time.Now(), MayBeStored: true}}
		lane, _ := p.flight.subjects.Enter(d.subject, p.size(), 0)
		p.flight.subjects.Leave(lane, 0, lanes.Fails)
		if p.enter(d) == lanes.In {
			p.window.take(d.server, 0)
			p.flight.add(d)
			in = append(in, d)
		}
	}
	if len(in) != maxFailingLooks || p.flight.subjects.Load().Tries != maxFailingLooks {
		t.Fatalf("%d are looked for at once", len(in))
	}
	p.seeker.report(in[:1], map[string]time.Time{in[0].id: time.Now()})
	if !p.seeker.mayLook() || p.seeker.mayLook() {
		t.Error("one that was found counts on")
	}
}

// A fault holds events back until the stream looks well again; silence and a connection that is down show at once.
func TestHealth(t *testing.T) {
	t.Parallel()
	p, _ := newTestFlight(t)
	h := p.health
	if !h.now().good() || h.problem() != nil || h.now().pause() != probeInterval {
		t.Fatalf("well: %v, %v", h.problem(), h.now().pause())
	}
	full := answer{class: FailureFull, err: errors.New("full")}
	h.refused(answer{class: FailureRefused, err: errors.New("who knows")}, 0)
	if !h.now().good() {
		t.Error("one refusal of a message keeps back the others")
	}
	h.refused(full, 7)
	if h.now().good() || h.problem() == nil || h.now().faultBytes != 7 || h.now().pause() > 2*firstProbe {
		t.Errorf("a full stream: %v, %v", h.problem(), h.now().pause())
	}
	if h.noteLook(errors.New("still full")) || !h.noteLook(nil) || h.noteLook(nil) || !h.now().good() {
		t.Error("it is well once a look says so that found the fault, which is news once")
	}
	h.refused(full, 7)
	if !h.noteLook(nil) || !h.now().good() || h.problem() == nil || h.now().admits(1) || !h.now().admits(0) {
		t.Error("what no look shows is tried with one event, and told meanwhile")
	}
	h.refused(full, 7)
	if h.now().good() || h.noteLife(true) || h.now().good() || !h.noteLook(nil) || !h.noteLife(false) ||
		h.problem() != nil || !h.now().admits(1) {
		t.Error("it is over once an event is stored, which a duplicate is not")
	}
	h.noteSilence(time.Now(), false)
	if !h.now().good() || h.problem() == nil {
		t.Errorf("silence: %v", h.problem())
	}
	h.noteLife(false)
	h.noteAck()
	if h.problem() != nil || h.now().acked.IsZero() {
		t.Errorf("after an acknowledgement: %v", h.problem())
	}
	if h.setConnected(true) || !h.setConnected(false) || h.now().good() || h.now().connected || h.problem() == nil {
		t.Error("disconnected")
	}
}
