package notify

import (
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/event"
)

// sender writes events to NATS, one at a time, in a buffer that serves all of them. Its method may be called concurrently.
type sender struct {
	*Options
	nc    *nats.Conn
	inbox string // what reply subjects begin with

	mu     sync.Mutex
	buf    []byte
	header nats.Header
	traced bool // header has those of a trace
}

func newSender(o *Options, nc *nats.Conn) *sender {
	return &sender{Options: o, nc: nc, header: nats.Header{event.MsgIDHeader: {""}, event.ContentTypeHeader: {event.ContentType}}}
}

// send publishes d's event, unless its lease runs out. The error is errExpiring then, and otherwise the client library's.
func (s *sender) send(d *delivery, withhold bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := d.event(s.ContentType, withhold)
	s.buf = e.AppendJSON(s.buf[:0])
	s.header[event.MsgIDHeader][0] = d.id
	if e.TraceParent != "" || s.traced {
		e.SetTraceHeaders(s.header)
		s.traced = e.TraceParent != ""
	}
	if d.expiring() {
		return errExpiring
	}
	return s.nc.PublishMsg(&nats.Msg{
		Subject: d.subject,
		Reply:   s.inbox + strconv.FormatUint(d.token, 36),
		Header:  s.header,
		Data:    s.buf,
	})
}
