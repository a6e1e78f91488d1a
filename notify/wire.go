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

// Error codes of JetStream for a full stream, account or disk.
const (
	codeAccountLimits jetstream.ErrorCode = 10002
	codeMemoryLimits  jetstream.ErrorCode = 10028
	codeStorageLimits jetstream.ErrorCode = 10047
	codeStoreFailed   jetstream.ErrorCode = 10077 // mostly a limit with the policy to discard new messages
)

// answer is JetStream's answer to a message.
//
// The Publisher reads the answers itself instead of using jetstream's PublishMsgAsync and its handlers. That keeps the
// message and a timer for each event until its acknowledgement, and drops an acknowledgement after its timeout, though
// one success of several tries is enough here. It also costs more even without the Publisher's leases and tries. In
// BenchmarkAcks (medians of 7 paired runs on two busy processors, 200 bytes of payload, server included) an event takes
// 26 µs of processor time against 33, 29 allocations of 4.3 kB in all against 54 of 5.8 kB, and while it is in flight
// 2.5 kB against 4.2 kB; of real time 50 µs against 63:
//
//	go test ./notify -run '^$' -bench Acks -benchtime 20000x
type answer struct {
	ok        bool
	duplicate bool
	seq       uint64 // of the message in the stream
	class     Failure
	code      jetstream.ErrorCode // 0 if it is not JetStream's
	err       error
}

// ofBatch reports whether an answer is about a whole batch, or about one event in it. Then the events may be stored if
// they are published alone.
func (a answer) ofBatch() bool { return a.class == FailureRefused || a.class == FailureTooLarge }

// readAnswer reads a message to a reply subject. It returns false if the message is not JetStream's answer about a
// message to the stream: a user who sees the subject can make JetStream answer there about other streams.
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
	fullCodes := []jetstream.ErrorCode{codeStoreFailed, codeAccountLimits, codeMemoryLimits, codeStorageLimits}
	err := json.Unmarshal(m.Data, &ack)
	switch {
	case err != nil || ack.Type != "" || ack.Stream != stream && (ack.Error == nil || ack.Stream != ""):
		return answer{}, false
	case ack.Error == nil:
		return answer{ok: true, duplicate: ack.Duplicate, seq: ack.Seq}, true
	}
	a := answer{class: FailureRefused, code: ack.Error.ErrorCode, err: ack.Error}
	switch {
	case deadletter.IsTooLarge(ack.Error):
		a.class = FailureTooLarge
	case slices.Contains(fullCodes, ack.Error.ErrorCode):
		a.class = FailureFull
	case ack.Error.Code == 503:
		a.class = FailureUnavailable
	}
	return a, true
}

// plainAck returns the sequence in {"stream":"…", "seq":123}, the form of nearly every acknowledgement. ok reports
// whether data has this form, for the right stream. This saves decoding the JSON.
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

// Headers of a message in an atomic batch: the name of the batch, the place of the message in it from 1 on, and the
// mark of the last message.
const (
	batchIDHeader       = "Nats-Batch-Id"
	batchSequenceHeader = "Nats-Batch-Sequence"
	batchCommitHeader   = "Nats-Batch-Commit"
)

// sender writes events to NATS, one at a time, from one buffer. Its methods may be called concurrently.
type sender struct {
	*Options
	nc    *nats.Conn
	inbox string // prefix of reply subjects

	mu     sync.Mutex
	buf    []byte
	header nats.Header
	traced bool // header has a trace
}

func newSender(o *Options, nc *nats.Conn) *sender {
	header := nats.Header{event.MsgIDHeader: {""}, event.ContentTypeHeader: {event.ContentType}}
	return &sender{Options: o, nc: nc, header: header}
}

// message returns d's event as a message without a reply subject. The message is valid until the next call. s.mu is
// held.
func (s *sender) message(d *delivery, withhold bool) *nats.Msg {
	e := d.event(s.ContentType, withhold)
	s.buf = e.AppendJSON(s.buf[:0])
	s.header[event.MsgIDHeader][0] = d.id
	if e.TraceParent != "" || s.traced {
		e.SetTraceHeaders(s.header)
		s.traced = e.TraceParent != ""
	}
	return &nats.Msg{Subject: d.subject, Header: s.header, Data: s.buf}
}

// reply returns the reply subject of a token.
func (s *sender) reply(token uint64) string { return s.inbox + strconv.FormatUint(token, 36) }

// send publishes d's event. If d's lease runs out, it does nothing and returns errExpiring. Other errors are the client
// library's.
func (s *sender) send(d *delivery, withhold bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.message(d, withhold)
	if d.expiring() {
		return errExpiring
	}
	m.Reply = s.reply(d.token)
	return s.nc.PublishMsg(m)
}

// sendBatch publishes the events of a batch as one. If the lease of an event runs out before that, the error is
// errExpiring. After an error the stream has none of the events, because the server drops an incomplete batch; only if
// the connection ended with the last event, it may have all of them.
func (s *sender) sendBatch(b *batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		for _, name := range []string{batchIDHeader, batchSequenceHeader, batchCommitHeader} {
			delete(s.header, name)
		}
	}()
	place := []string{""}
	s.header[batchIDHeader], s.header[batchSequenceHeader] = []string{s.batchID(b)}, place
	for i, d := range b.members {
		m := s.message(d, false)
		place[0] = strconv.Itoa(i + 1)
		if i == len(b.members)-1 {
			if slices.ContainsFunc(b.members, (*delivery).expiring) {
				return errExpiring
			}
			m.Header[batchCommitHeader], m.Reply = []string{"1"}, s.reply(b.token)
		}
		if err := s.nc.PublishMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// batchID returns a name for a batch that is unique among all publishers: the end of the batch's reply subject, since
// the server limits the length.
func (s *sender) batchID(b *batch) string {
	const most = 64
	id := s.reply(b.token)
	return id[max(len(id)-most, 0):]
}
