package notify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// longestMargin bounds how much of its lease a firing must have left to be
// published: a tenth, as time for the acknowledgement to come and be settled
// before somebody else publishes the firing too.
const longestMargin = time.Second

// Error codes of JetStream.
const (
	codeAccountLimits  jetstream.ErrorCode = 10002
	codeMemoryLimits   jetstream.ErrorCode = 10028
	codeStorageLimits  jetstream.ErrorCode = 10047
	codeMessageTooLong jetstream.ErrorCode = 10054
	codeStoreFailed    jetstream.ErrorCode = 10077 // mostly a limit with the policy to discard new messages
)

// expiring tells whether too little is left of the firing's lease to publish it.
func (f *flight) expiring() bool {
	return f.firing.Remaining() < min(f.firing.Lease/10, longestMargin)
}

// markSent notes that f is about to be published. p.mu is held.
func (p *Publisher) markSent(f *flight) {
	f.sent = true
	f.tries++
	f.next = time.Now().Add(min(orDefault(p.AckWait, defaultAckWait), f.firing.Remaining()))
}

// failed notes that a try to publish f has failed. p.mu is held.
func (p *Publisher) failed(f *flight, class Failure) {
	f.sent = false
	f.failure = class
	f.next = time.Now()
	pause := min(firstPause<<min(f.tries-1, 10), longestPause)
	switch class {
	case FailureTimeout:
	case FailureTooLarge:
		attrs := []any{"key", f.firing.Key.String(), "due_at", time.UnixMilli(f.firing.Due).UTC(), "bytes", len(f.firing.Payload)}
		if f.withhold {
			f.next = f.next.Add(pause)
			p.log().Error("event is too large for NATS even without the payload", attrs...)
			break
		}
		f.withhold = true
		signal(p.kick)
		p.log().Warn("event is too large for NATS, publishing it without the payload", attrs...)
	default:
		f.next = f.next.Add(pause)
	}
	if p.Hooks.Failed != nil {
		p.Hooks.Failed(class)
	}
}

// send publishes flights that are marked as sent, except for those whose lease
// runs out and while the connection is down.
func (p *Publisher) send(flights []*flight) {
	if len(flights) == 0 {
		return
	}
	p.sending.Lock()
	defer p.sending.Unlock()
	for _, f := range flights {
		withhold, ok := p.depart(f)
		if !ok {
			continue
		}
		p.encode(f, withhold)
		p.header[event.MsgIDHeader][0] = f.id
		message := nats.Msg{
			Subject: p.Streams.Subject(f.firing.Key, keys.Fired),
			Reply:   p.inbox + strconv.FormatUint(f.token, 36),
			Header:  p.header,
			Data:    p.buf,
		}
		if f.expiring() {
			p.ground(f)
		} else if err := p.nc.PublishMsg(&message); err != nil {
			p.notSent(f, err)
		}
	}
}

// depart tells whether f is to be sent now, and if so, whether without its
// payload.
func (p *Publisher) depart(f *flight) (withhold, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !f.sent || p.flights[f.token] != f {
		return false, false
	}
	if !p.gate.connected {
		p.failed(f, FailureDisconnected)
		return false, false
	}
	f.published = f.firing.Now()
	return f.withhold, true
}

// encode writes f's event into p.buf. p.sending is held.
func (p *Publisher) encode(f *flight, withhold bool) {
	e := event.Event{
		ID:          f.id,
		Type:        event.TypeFired,
		Key:         f.firing.Key,
		Time:        f.published,
		Due:         time.UnixMilli(f.firing.Due),
		Attempt:     f.attempt,
		MaxAttempts: f.maxAttempts,
		Trigger:     string(f.firing.Trigger),
	}
	switch {
	case f.firing.Status == schedule.PayloadMissing:
		e.Status = event.StatusMissing
	case withhold:
		e.Status = event.StatusTooLarge
	case f.firing.Payload == nil:
		e.Data = []byte{}
	default:
		e.Data = f.firing.Payload
	}
	p.buf = e.AppendJSON(p.buf[:0])
}

// ground notes that f was not sent after all, for want of time.
func (p *Publisher) ground(f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.sent = false
	f.next = time.Now()
}

// notSent notes that the client library did not take f's message.
func (p *Publisher) notSent(f *flight, err error) {
	class := FailureDisconnected
	if errors.Is(err, nats.ErrMaxPayload) {
		class = FailureTooLarge
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.sent && p.flights[f.token] == f {
		p.failed(f, class)
	}
}

// verdict is what JetStream answered to a message.
type verdict struct {
	ok        bool
	duplicate bool
	class     Failure
	err       error
}

// readVerdict returns false if the message is no answer of JetStream's.
func readVerdict(m *nats.Msg) (verdict, bool) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return verdict{class: FailureNoStream, err: jetstream.ErrNoStreamResponse}, true
	}
	if isPlainAck(m.Data) {
		return verdict{ok: true}, true
	}
	var ack struct {
		Stream    string              `json:"stream"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	err := json.Unmarshal(m.Data, &ack)
	switch {
	case err != nil || ack.Error == nil && ack.Stream == "":
		return verdict{}, false
	case ack.Error == nil:
		return verdict{ok: true, duplicate: ack.Duplicate}, true
	}
	v := verdict{class: FailureRefused, err: ack.Error}
	switch {
	case ack.Error.ErrorCode == codeMessageTooLong:
		v.class = FailureTooLarge
	case slices.Contains([]jetstream.ErrorCode{codeStoreFailed, codeAccountLimits, codeMemoryLimits, codeStorageLimits}, ack.Error.ErrorCode):
		v.class = FailureFull
	case ack.Error.Code == 503:
		v.class = FailureUnavailable
	}
	return v, true
}

// isPlainAck tells whether data is {"stream":"…", "seq":123}, as nearly every
// acknowledgement is: worth not decoding the JSON.
func isPlainAck(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	name := bytes.IndexByte(rest, '"')
	if !ok || name < 1 {
		return false
	}
	rest = bytes.TrimPrefix(rest[name+1:], []byte(", "))
	rest, ok = bytes.CutPrefix(bytes.TrimPrefix(rest, []byte(",")), []byte(`"seq":`))
	seq, closed := bytes.CutSuffix(rest, []byte("}"))
	return ok && closed && len(seq) > 0 && len(bytes.TrimLeft(seq, "0123456789")) == 0
}

// reply takes what came in on the reply subject of a flight. It may be about any
// of its tries: one success is enough.
func (p *Publisher) reply(token string, m *nats.Msg) {
	n, err := strconv.ParseUint(token, 36, 64)
	if err != nil {
		return
	}
	v, ok := readVerdict(m)
	if !ok {
		p.log().Debug("ignored a reply to an event that is not JetStream's", "source", m.Subject)
		return
	}
	p.mu.Lock()
	f := p.flights[n]
	switch {
	case f == nil && v.ok: // too late for its firing, but the stream works
		p.gate.acknowledged()
	case f == nil:
	case v.ok:
		p.acknowledged(f)
	case f.sent:
		p.failed(f, v.class)
		p.blame(v.class, fmt.Errorf("stream %s refuses events: %w", p.Streams.Fired(), v.err), len(f.firing.Payload))
	}
	p.mu.Unlock()
	if f != nil && v.ok && p.Hooks.Fired != nil {
		p.Hooks.Fired(&f.firing, f.published.Sub(time.UnixMilli(f.firing.Due)), v.duplicate)
	}
}

// acknowledged hands a published flight to the settler. p.mu is held.
func (p *Publisher) acknowledged(f *flight) {
	delete(p.flights, f.token)
	p.heldBytes -= len(f.firing.Payload)
	p.gate.acknowledged()
	p.queue.acknowledged(f.firing)
	if p.stopping {
		signal(p.kick)
	}
}

// inspect looks through the flights. It returns those to publish now, marked as
// sent, and whether there are none at all. Those that cannot be published in time
// it hands over to be given back.
func (p *Publisher) inspect() (again []*flight, idle bool) {
	p.mu.Lock()
	now, open := time.Now(), p.gate.open()
	late := 0
	var failure Failure
	for _, f := range p.flights {
		if f.sent {
			if now.Before(f.next) {
				continue
			}
			p.gate.unanswered(now)
			p.failed(f, FailureTimeout)
		}
		switch {
		case f.expiring() || p.stopping && !open:
			p.withdraw(f)
			late++
			failure = f.failure
		case open && !now.Before(f.next):
			p.markSent(f)
			again = append(again, f)
		}
	}
	idle = len(p.flights) == 0
	p.mu.Unlock()
	if late > 0 {
		p.log().Warn("firings could not be published before the end of their lease: giving them back", "count", late, "err", failure)
	}
	slices.SortFunc(again, func(a, b *flight) int { return cmp.Compare(a.token, b.token) })
	return again, idle
}

// withdraw has the settler give a flight back. p.mu is held.
func (p *Publisher) withdraw(f *flight) {
	delete(p.flights, f.token)
	p.heldBytes -= len(f.firing.Payload)
	p.queue.unpublished(f.firing)
}

// abandon gives back every flight that is left, and has the settler finish.
func (p *Publisher) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.flights); n > 0 {
		p.log().Warn("stopping with firings that are not acknowledged: giving them back", "count", n)
	}
	for _, f := range p.flights {
		p.withdraw(f)
	}
	p.queue.close()
}
