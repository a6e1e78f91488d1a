package history

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
)

const (
	// answerTimeout bounds NATS's answer to one request.
	answerTimeout = 5 * time.Second
	// idleConsumer is the time for which a consumer outlives a process that did not delete it.
	idleConsumer = 10 * time.Second
	// bufferBytes and batchMessages bound the part of a stream in transit, except for one large message.
	bufferBytes   = 2 << 20
	batchMessages = 1 << 14
	// firstQuiet is the silence after which messages are requested again. It doubles each time; after lastQuiet the
	// read fails.
	firstQuiet = 300 * time.Millisecond
	lastQuiet  = 2 * time.Second
)

// ErrNoStream means that a stream does not exist.
var ErrNoStream = errors.New("timerd makes it at its start; TIMERD_STREAM names another one")

// Open returns a stream with its state. Its error has the fix; it wraps ErrNoStream if there is no such stream.
func Open(ctx context.Context, js jetstream.JetStream, name string) (jetstream.Stream, error) {
	if !js.Conn().IsConnected() {
		return nil, fmt.Errorf("stream %s: there is no connection to NATS; timerd reconnects once NATS is back", name)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, fmt.Errorf("there is no stream %s: %w", name, ErrNoStream)
	}
	return stream, silent(err, js, name, "STREAM.INFO."+name)
}

// silent returns the error of a request about a stream. NATS does not answer a request without the right to it.
func silent(err error, js jetstream.JetStream, stream, request string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("stream %s: NATS does not answer: it is away, or its user may not publish to %s%s "+
			"(deploy/README.md lists the rights): %w",
			stream, apiPrefix(js), request, err)
	}
	return fmt.Errorf("stream %s: %w", stream, err)
}

// apiPrefix returns the beginning of the subjects of JetStream's requests.
func apiPrefix(js jetstream.JetStream) string {
	o := js.Options()
	switch {
	case o.APIPrefix != "":
		return o.APIPrefix + "."
	case o.Domain != "":
		return "$JS." + o.Domain + ".API."
	}
	return "$JS.API."
}

// message is one message of a stream, described by NATS, not by its publisher.
type message struct {
	subject string
	seq     uint64
	stored  time.Time
	header  nats.Header
	data    []byte
}

// next returns the first message from a sequence on whose subject matches a filter, or false if there is none. It does
// not use direct access, in which a publisher's headers can pass for NATS's own headers about the message.
func next(ctx context.Context, js jetstream.JetStream, stream, filter string, seq uint64) (message, bool, error) {
	return get(ctx, js, stream, map[string]any{"seq": max(seq, 1), "next_by_subj": filter})
}

// StoredAt returns the stored time of the first message from a sequence on whose subject matches a filter. matching is
// the number of matching messages from there on. StoredAt returns the zero Time if there is no such message. It also
// does so if NATS might have to skip more than pickBytes, because NATS stores nothing while it searches.
func StoredAt(ctx context.Context, js jetstream.JetStream, of *jetstream.StreamInfo, filter string, seq,
	matching uint64) (time.Time, error) {
	s := of.State
	seq = max(seq, s.FirstSeq)
	if others := s.LastSeq + 1 - min(seq+matching, s.LastSeq+1); s.Msgs == 0 ||
		others > pickBytes/max(s.Bytes/s.Msgs, 1) {
		return time.Time{}, nil
	}
	m, _, err := next(ctx, js, of.Config.Name, filter, seq)
	return m.stored, err
}

// Last returns the content of the last message of a subject, and its stored time: the zero Time if there is none. Its
// error has the fix.
func Last(ctx context.Context, js jetstream.JetStream, stream, subject string) ([]byte, time.Time, error) {
	m, _, err := last(ctx, js, stream, subject)
	return m.data, m.stored, err
}

// last returns the last message of a subject, or false if there is none.
func last(ctx context.Context, js jetstream.JetStream, stream, subject string) (message, bool, error) {
	return get(ctx, js, stream, map[string]any{"last_by_subj": subject})
}

// get requests one message.
func get(ctx context.Context, js jetstream.JetStream, stream string, which map[string]any) (message, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	request, err := json.Marshal(which)
	if err != nil {
		return message{}, false, err
	}
	api := "STREAM.MSG.GET." + stream
	reply, err := js.Conn().RequestWithContext(ctx, apiPrefix(js)+api, request)
	if err != nil {
		return message{}, false, silent(err, js, stream, api)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	switch err := json.Unmarshal(reply.Data, &answer); {
	case err != nil:
		return message{}, false, fmt.Errorf("stream %s: NATS sent an unknown answer: %w", stream, err)
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return message{}, false, nil
	case answer.Error != nil:
		return message{}, false, fmt.Errorf("stream %s: %w", stream, answer.Error)
	}
	m := message{subject: answer.Message.Subject, seq: answer.Message.Seq, stored: answer.Message.Time,
		data: answer.Message.Data}
	if len(answer.Message.Header) > 0 {
		m.header, _ = nats.DecodeHeadersMsg(answer.Message.Header) // of a malformed header, the readable part
	}
	return m, true, nil
}

// part is a part of a stream.
type part struct {
	from, to    uint64    // sequences, both included
	since       time.Time // only messages stored since then; the zero Time: all
	most        uint64    // messages at most; 0: any number
	headersOnly bool      // without the data
}

// config returns the configuration of a consumer that reads the part.
func (p part) config() jetstream.ConsumerConfig {
	c := jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       max(p.from, 1),
		AckPolicy:         jetstream.AckNonePolicy,
		HeadersOnly:       p.headersOnly,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: idleConsumer,
	}
	if !p.since.IsZero() {
		c.DeliverPolicy, c.OptStartSeq, c.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &p.since
	}
	return c
}

// each calls f for each message of a part of a stream, oldest first, until f returns false. It reads all subjects: with
// a filter, NATS would count the matches, block by block to the end of the stream, and store no event meanwhile. Its
// error has the fix.
func each(ctx context.Context, js jetstream.JetStream, stream string, of part, f func(message) bool) error {
	if of.from > of.to {
		return nil
	}
	made, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	consumer, err := js.CreateConsumer(made, stream, of.config())
	if err != nil {
		return silent(err, js, stream, "CONSUMER.CREATE."+stream+".>")
	}
	info := consumer.CachedInfo()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = js.DeleteConsumer(ctx, stream, info.Name) // otherwise the server deletes it once idle
	}()
	if info.NumPending == 0 {
		return nil
	}
	p := pull{js: js, api: "CONSUMER.MSG.NEXT." + stream + "." + info.Name, inbox: js.Conn().NewInbox(), last: of.from}
	if p.sub, err = js.Conn().SubscribeSync(p.inbox); err != nil {
		return fmt.Errorf("stream %s: %w", stream, err)
	}
	defer func() { _ = p.sub.Unsubscribe() }()             // fails on a closed connection, with nothing to end
	if err := p.sub.SetPendingLimits(-1, -1); err != nil { // bufferBytes is the limit
		return fmt.Errorf("stream %s: %w", stream, err)
	}
	return silent(p.read(ctx, of.to, cmp.Or(of.most, math.MaxUint64), f), js, stream, p.api)
}

// pull reads the messages of a consumer in batches.
type pull struct {
	js    jetstream.JetStream
	api   string // the subject of requests for messages
	sub   *nats.Subscription
	inbox string
	count uint64 // messages that came
	last  uint64 // the number of the last one
}

var (
	// errLost means that messages were lost in transit.
	errLost = errors.New("the connection to NATS was interrupted: try again")
	// errEnd, errLarge and errQuiet end a batch: no more messages are wanted, or exist; the next message has too many
	// bytes; no message came.
	errEnd   = errors.New("that is all")
	errLarge = errors.New("the next message is too large")
	errQuiet = fmt.Errorf("no message came: %w", context.DeadlineExceeded)
)

// read calls f for the messages up to a sequence until f returns false. It asks NATS for no more than a limit.
func (p *pull) read(ctx context.Context, to, limit uint64, f func(message) bool) error {
	for most, bytes, quiet := 0, 0, firstQuiet; p.count < limit; {
		if most == 0 {
			most, bytes = int(min(batchMessages, to-p.last+1, limit-p.count)), bufferBytes
		}
		came := p.count
		err := p.batch(ctx, most, bytes, quiet, func(m message, left uint64) bool {
			return m.seq <= to && f(m) && m.seq < to && left > 0
		})
		switch {
		case errors.Is(err, errEnd):
			return nil
		case p.count > came && (err == nil || errors.Is(err, errLarge) || errors.Is(err, errQuiet)):
			most, quiet = 0, firstQuiet
		case errors.Is(err, errLarge): // perhaps the late end of a batch that seemed quiet
			most, bytes = 1, 0
		case errors.Is(err, errQuiet) && quiet < lastQuiet:
			quiet *= 2
		case err != nil:
			return err
		}
	}
	return nil
}

// batch requests up to most messages, with at most the given number of bytes together. It calls f for each message,
// with the number of messages after it, until f returns false. If the last message uses up exactly the remaining bytes,
// NATS does not report the end of the batch, so a pause ends it too.
func (p *pull) batch(ctx context.Context, most, bytes int, quiet time.Duration,
	f func(m message, left uint64) bool) error {
	request, err := json.Marshal(map[string]any{"batch": most, "max_bytes": bytes, "no_wait": true})
	if err != nil {
		return err
	}
	if err := p.js.Conn().PublishRequest(apiPrefix(p.js)+p.api, p.inbox, request); err != nil {
		return err
	}
	for range most {
		m, left, err := p.next(ctx, quiet)
		if err != nil {
			return err
		}
		if !f(m, left) {
			return errEnd
		}
	}
	return nil
}

// next returns a message of a batch and the number of messages after it. It recognises NATS's own reports on a batch by
// the missing reply subject: every message of a stream has one, while headers can be forged.
func (p *pull) next(ctx context.Context, quiet time.Duration) (message, uint64, error) {
	m, err := p.sub.NextMsg(quiet)
	switch {
	case ctx.Err() != nil:
		return message{}, 0, ctx.Err()
	case errors.Is(err, nats.ErrTimeout):
		return message{}, 0, errQuiet
	case err != nil:
		return message{}, 0, err
	}
	if m.Reply == "" {
		status, description := m.Header.Get("Status"), m.Header.Get("Description")
		switch {
		case status == "404":
			return message{}, 0, errEnd
		case status == "408": // an earlier batch has not ended, and brings the messages
			return p.next(ctx, quiet)
		case status == "409" && strings.Contains(description, "Exceeds MaxBytes"):
			return message{}, 0, errLarge
		}
		return message{}, 0, fmt.Errorf("NATS stopped reading: %q", event.ClipText(status+" "+description))
	}
	meta, err := m.Metadata()
	if err != nil {
		return message{}, 0, err
	}
	if p.count++; meta.Sequence.Consumer != p.count {
		return message{}, 0, errLost
	}
	p.last = meta.Sequence.Stream
	return message{m.Subject, p.last, meta.Timestamp, m.Header, m.Data}, meta.NumPending, nil
}
