package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/backoff"
)

const (
	// heartbeat is the interval at which the server confirms that it knows a request.
	heartbeat = 5 * time.Second

	// renewEvery is the interval at which all requests are replaced by one: a cluster may have lost some of the
	// requests and answer the others.
	renewEvery = 30 * time.Second

	// pullExpiry is the lifetime of a request at the server.
	pullExpiry = 2 * renewEvery

	// askShare keeps the number of requests small: a source asks for more only once the handlers without a request are
	// this part of the expected events. So however many handlers are free, only some dozens of its requests wait at the
	// server.
	askShare = 4

	// drainTimeout bounds the wait for events on their way after the last request.
	drainTimeout = 2 * time.Second
)

// errSilent means that the server has forgotten the requests, or does not answer.
var errSilent = errors.New("JetStream sends no heartbeats")

// source fetches events from a durable consumer: as many as there are free handlers, and no more. So no event waits in
// this process with a running ack deadline while a handler elsewhere is free.
//
// It speaks JetStream's pull protocol itself, because the iterators of package jetstream fetch ahead. After a
// reconnect, even an iterator limited to one message asks for another too early, or for none until it misses a
// heartbeat. A Fetch of one message for each handler stalls too: the first event after a restart of the server
// came 9.9 s late, or 0.9 s with a heartbeat of 500 ms for each idle handler.
type source struct {
	conn    *nats.Conn
	subject string // for requests
	log     *slog.Logger
	events  chan *nats.Msg // has room for all requested events
	faults  chan error     // the reason why the requests are void; has room for one

	mu    sync.Mutex
	inbox *nats.Subscription // for the last requests; nil when closed
	ended chan struct{}      // closed when inbox has delivered everything
	began time.Time          // creation of inbox
	free  int                // handlers waiting for an event
	asked int                // expected events in inbox
	heard time.Time          // the server's last answer, while events are expected
}

func newSource(js jetstream.JetStream, stream, durable string, handlers int, log *slog.Logger) *source {
	return &source{
		conn:    js.Conn(),
		subject: apiPrefix(js.Options()) + "CONSUMER.MSG.NEXT." + stream + "." + durable,
		log:     log,
		events:  make(chan *nats.Msg, handlers),
		faults:  make(chan error, 1),
	}
}

// apiPrefix returns the beginning of the subjects of JetStream's API.
func apiPrefix(o jetstream.JetStreamOptions) string {
	switch {
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "."
	}
	return jetstream.DefaultAPIPrefix
}

// want asks for an event for one more handler; the handler then takes it from events.
func (s *source) want() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	s.ask()
}

// ask requests events for free handlers without a request, if they are enough for one. If it fails, the next renew or
// tend asks. The caller holds mu.
func (s *source) ask() {
	n := s.free - s.asked
	if s.inbox == nil || n < max(1, s.asked/askShare) {
		return
	}
	request := fmt.Appendf(nil, `{"batch":%d,"expires":%d,"idle_heartbeat":%d}`, n, pullExpiry, heartbeat)
	if s.conn.PublishRequest(s.subject, s.inbox.Subject, request) != nil {
		return
	}
	if s.asked == 0 {
		s.heard = time.Now()
	}
	s.asked += n
}

// renew drops all requests and makes new ones. After an error there are none.
func (s *source) renew() error {
	ended := make(chan struct{})
	inbox, err := s.conn.Subscribe(s.conn.NewInbox(), s.receive)
	if err == nil {
		inbox.SetClosedHandler(func(string) { close(ended) })
	}
	s.mu.Lock()
	old := s.inbox
	s.inbox, s.ended, s.began, s.asked = inbox, ended, time.Now(), 0
	select {
	case <-s.faults: //nolint:errcheck // a fault of an older request
	default:
	}
	s.ask()
	s.mu.Unlock()
	s.end(old)
	return err
}

// end ends a subscription. Events on their way to it still reach receive, if possible.
func (s *source) end(inbox *nats.Subscription) {
	switch {
	case inbox == nil:
		return
	case s.conn.IsConnected():
		_ = inbox.Drain() // fails if it has ended already
	default:
		_ = inbox.Unsubscribe()
	}
}

// close gives back the events on their way, and the ones not taken by a handler.
func (s *source) close(ctx context.Context) {
	s.mu.Lock()
	inbox, ended := s.inbox, s.ended
	s.inbox = nil
	s.mu.Unlock()
	if inbox != nil {
		s.end(inbox)
		backoff.Within(drainTimeout, ended)
	}
	for empty := false; !empty; {
		select {
		case msg := <-s.events:
			s.giveBack(msg)
		default:
			empty = true
		}
	}
	if !s.conn.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := s.conn.FlushWithContext(ctx); err != nil {
		s.log.Warn("timerd client: events given back may come again later", "err", err)
	}
}

// receive takes a message of the server: an event, or the status of a request.
func (s *source) receive(msg *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := msg.Sub == s.inbox
	if current {
		s.heard = time.Now()
	}
	if msg.Reply != "" { // a reply subject to acknowledge: this is an event
		if current {
			s.asked = max(0, s.asked-1)
		}
		if s.free == 0 || s.inbox == nil {
			s.giveBack(msg)
			return
		}
		s.free--
		s.events <- msg
		s.ask()
		return
	}
	if !current {
		return
	}
	const heartbeat, noMessages, timeout = "100", "404", "408"
	switch status := msg.Header.Get("Status"); status {
	case heartbeat:
	case noMessages, timeout: // the request has ended, with the number of its missing events
		if left, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages")); err == nil {
			s.asked = max(0, s.asked-left)
			s.ask()
			return
		}
		fallthrough
	default:
		select {
		case s.faults <- fmt.Errorf("JetStream: %s %s", status, msg.Header.Get("Description")):
		default: // an earlier fault waits already
		}
	}
}

// tend must be called about every heartbeat. It returns an error if the server has been silent for too long: then it
// must have lost the requests.
func (s *source) tend() error {
	s.mu.Lock()
	silent := s.asked > 0 && time.Since(s.heard) > 2*heartbeat
	old := s.asked > 0 && time.Since(s.began) > renewEvery
	s.ask()
	s.mu.Unlock()
	switch {
	case silent:
		return errSilent
	case old:
		return s.renew()
	}
	return nil
}

// giveBack hands an event back to JetStream, which delivers it again at once, or after AckWait if the message is lost.
// It costs no attempt.
func (s *source) giveBack(msg *nats.Msg) {
	if err := s.conn.Publish(msg.Reply, []byte("-NAK")); err != nil {
		s.log.Warn("timerd client: event could not be given back, it comes again later", "subject", msg.Subject, "err",
			err)
	}
}

// extend postpones the deadline after which JetStream delivers an event again.
func (s *source) extend(msg *nats.Msg) {
	if err := s.conn.Publish(msg.Reply, []byte("+WPI")); err != nil {
		s.log.Warn("timerd client: cannot extend an event's deadline, it may come again", "subject", msg.Subject, "err",
			err)
	}
}

// acknowledge tells JetStream that an event is settled, and waits for its confirmation.
func (s *source) acknowledge(ctx context.Context, msg *nats.Msg) error {
	_, err := s.conn.RequestWithContext(ctx, msg.Reply, []byte("+ACK"))
	return err
}
