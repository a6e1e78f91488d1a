package notify

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/deadletter"
)

// Error codes of JetStream that say that something is full.
const (
	codeAccountLimits jetstream.ErrorCode = 10002
	codeMemoryLimits  jetstream.ErrorCode = 10028
	codeStorageLimits jetstream.ErrorCode = 10047
	codeStoreFailed   jetstream.ErrorCode = 10077 // mostly a limit with the policy to discard new messages
)

// answer is what JetStream answered to a message.
//
// The Publisher reads the answers itself instead of using jetstream's PublishMsgAsync and its handlers. That keeps the
// message and a timer for each event until its acknowledgement, and drops an acknowledgement that comes after its
// timeout, though one success of several tries is enough here. It also costs more even without the leases and tries
// that the Publisher sees to. In BenchmarkAcks (medians of 7 paired runs on two busy processors, 200 bytes of payload,
// server included) an event takes 26 µs of processor time against 33, 29 allocations of 4.3 kB in all against 54 of
// 5.8 kB, and while it is in flight 2.5 kB against 4.2 kB; of real time 50 µs against 63:
//
//	go test ./notify -run '^$' -bench Acks -benchtime 20000x
type answer struct {
	ok        bool
	duplicate bool
	seq       uint64 // of the message in the stream
	class     Failure
	err       error
}

// readAnswer reads what came to a reply subject. It returns false if that is no answer of JetStream's about a message that
// was published to the stream: whoever sees the subject may have JetStream answer there what was asked of other streams.
func readAnswer(m *nats.Msg, stream string) (answer, bool) {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return answer{class: FailureNoStream, err: jetstream.ErrNoStreamResponse}, true
	}
	if seq, ok := plainAck(m.Data, stream); ok {
		return answer{ok: true, seq: seq}, true
	}
	var ack struct {
		Type      string              `json:"type"` // of an answer to something else
		Stream    string              `json:"stream"`
		Seq       uint64              `json:"seq"`
		Duplicate bool                `json:"duplicate"`
		Error     *jetstream.APIError `json:"error"`
	}
	err := json.Unmarshal(m.Data, &ack)
	switch {
	case err != nil || ack.Type != "" || ack.Stream != stream && (ack.Error == nil || ack.Stream != ""):
		return answer{}, false
	case ack.Error == nil:
		return answer{ok: true, duplicate: ack.Duplicate, seq: ack.Seq}, true
	}
	a := answer{class: FailureRefused, err: ack.Error}
	switch {
	case deadletter.IsTooLarge(ack.Error):
		a.class = FailureTooLarge
	case slices.Contains([]jetstream.ErrorCode{codeStoreFailed, codeAccountLimits, codeMemoryLimits, codeStorageLimits}, ack.Error.ErrorCode):
		a.class = FailureFull
	case ack.Error.Code == 503:
		a.class = FailureUnavailable
	}
	return a, true
}

// plainAck returns the sequence of {"stream":"…", "seq":123}, as nearly every acknowledgement is, and whether data is one of
// the stream. That is worth not decoding the JSON.
func plainAck(data []byte, stream string) (seq uint64, ok bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	name := bytes.IndexByte(rest, '"')
	if !ok || name < 1 || string(rest[:name]) != stream {
		return 0, false
	}
	rest = bytes.TrimPrefix(rest[name+1:], []byte(", "))
	rest, ok = bytes.CutPrefix(bytes.TrimPrefix(rest, []byte(",")), []byte(`"seq":`))
	digits, closed := bytes.CutSuffix(rest, []byte("}"))
	if !ok || !closed || len(digits) == 0 || len(digits) > 19 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		seq = 10*seq + uint64(c-'0')
	}
	return seq, true
}

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
