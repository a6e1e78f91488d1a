package notify

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// request is one message of the stream of retry requests.
type request struct {
	subject string
	header  nats.Header
	data    []byte
	stream  string
	seq     uint64
	stored  time.Time // by JetStream's clock
}

// decision is what becomes of a request: a letter, or else a retry.
type decision struct {
	retry  schedule.Retry
	letter *letter
}

// judge decides about a request. The same request has the same outcome always, as
// long as the policies stay the same.
func judge(s Streams, p Policies, r request) decision {
	e, err := r.parse(s)
	if err != nil {
		return decision{letter: malformed(s, r, err)}
	}
	own, err := r.delay()
	if err != nil {
		return decision{letter: refused(s, r, e, err)}
	}
	policy := p.For(e.Key)
	delay, ok := policy.Delay(e.Attempt, e.ID)
	if !ok {
		return decision{letter: exhausted(s, r, e, policy.MaxAttempts())}
	}
	if own != nil {
		delay = *own
	}
	return decision{retry: schedule.Retry{
		EventID: retryID(e),
		Key:     e.Key,
		Due:     ceilMilli(r.stored.Add(delay)),
		Attempt: e.Attempt + 1,
		Payload: e.Data,
		Status:  statusOf(e),
	}}
}

// parse reads the event of a request and checks that it is a firing of a timer of
// the request's subject.
func (r request) parse(s Streams) (event.Event, error) {
	e, err := event.Parse(r.data)
	switch {
	case err != nil:
		return event.Event{}, err
	case e.Type != event.TypeFired:
		return event.Event{}, fmt.Errorf("event: type %q, want %q", e.Type, event.TypeFired)
	case s.Subject(e.Key, keys.Retry) != r.subject:
		return event.Event{}, fmt.Errorf("event: of the timer %q, whose retries belong on %s", clipText(e.Key.String()), s.Subject(e.Key, keys.Retry))
	}
	return e, nil
}

// delay returns the delay that the request asks for, or nil.
func (r request) delay() (*time.Duration, error) {
	values := r.values(event.DelayHeader)
	if len(values) == 0 {
		return nil, nil
	}
	text := strings.TrimSpace(values[0])
	d, err := time.ParseDuration(text)
	switch {
	case len(values) > 1:
		return nil, fmt.Errorf("%s is given %d times", event.DelayHeader, len(values))
	case err != nil:
		return nil, fmt.Errorf("%s %q: want a Go duration such as 90s or 1h30m", event.DelayHeader, clipText(text))
	case d < 0 || d > MaxDelay:
		return nil, fmt.Errorf("%s %q: want a duration from 0 to %s", event.DelayHeader, text, formatDelay(MaxDelay))
	}
	return &d, nil
}

// lastError returns what the consumer said was wrong, "" if nothing.
func (r request) lastError() string { return strings.Join(r.values(event.ErrorHeader), "; ") }

// values returns the values of a header in whatever case it is written.
func (r request) values(name string) []string {
	var all []string
	for have, values := range r.header {
		if strings.EqualFold(have, name) {
			all = append(all, values...)
		}
	}
	return all
}

// name says where the request is.
func (r request) name() string { return fmt.Sprintf("%s %s/%d", r.subject, r.stream, r.seq) }

// key returns the key of a timer that stands for the request: of the app, module
// and type of its subject, with its place in the stream for an id. Where the subject
// does not name three parts that a key can have, the parts are its tokens as they
// stand: one that is missing is "-", further ones are part of the third.
func (r request) key(prefix string) keys.Key {
	id := fmt.Sprintf("%s/%d", r.stream, r.seq)
	app, module, typ, err := keys.ParseSubject(r.subject, prefix, keys.Retry)
	if err == nil {
		k := keys.Key{App: app, Module: module, Type: typ, ID: id}
		if parsed, err := keys.Parse(k.String()); err == nil && parsed == k {
			return k
		}
	}
	rest := strings.TrimPrefix(r.subject, prefix+"."+keys.Retry+".")
	parts := [3]string{"-", "-", "-"}
	for i, token := range strings.SplitN(rest, ".", len(parts)) {
		if token = strings.ReplaceAll(token, ":", "%3A"); token != "" {
			parts[i] = token[:min(len(token), keys.MaxPartBytes)]
		}
	}
	return keys.Key{App: parts[0], Module: parts[1], Type: parts[2], ID: id}
}

// id returns the id of a letter about the request itself: of the first firing of
// the timer k that stands for it.
func (r request) id(k keys.Key) string { return keys.EventID(k.String(), r.stored.UnixMilli(), 1) }

// retryID returns what the retry of an event is known by: the event's id. One that
// is not what timerd makes for the event's timer may be another timer's id, so the
// timer is added.
func retryID(e event.Event) string {
	own := keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
	if e.ID == own {
		return own
	}
	return own + " " + messageID(e.ID)
}

// statusOf returns the state of an event's payload.
func statusOf(e event.Event) schedule.Status {
	switch {
	case e.Data != nil:
		return schedule.PayloadPresent
	case e.Status == event.StatusTooLarge:
		return schedule.PayloadTooLarge
	default:
		return schedule.PayloadMissing
	}
}

// ceilMilli returns the first unix millisecond that is not before t.
func ceilMilli(t time.Time) int64 { return t.Add(time.Millisecond - time.Nanosecond).UnixMilli() }
