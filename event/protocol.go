package event

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/timerd-io/timerd/keys"
)

// The values of DeadReason, and their beginnings.
const (
	// ReasonExhausted is the whole reason if timerd gave up: the policy allows no further attempt.
	ReasonExhausted = "attempts used up"
	// ReasonGivenUp is the whole reason if the consumer gave up.
	ReasonGivenUp = "given up by the consumer"
	// ReasonHeld is the whole reason if a hold ended in dead letters (timerd resume --dead).
	ReasonHeld = "held"
	// ReasonRepeat begins the reason of a repetition that cannot begin.
	ReasonRepeat = "repeat: "
	// ReasonMalformed begins the reason of a message that holds no event. The dead letter is made of its StandIn.
	ReasonMalformed = "malformed: "
	// ReasonLate begins the reason of a timer that was claimed too late to fire.
	ReasonLate = "late: "
	// ReasonRefused begins the reason of a retry request that cannot be carried out although its event is valid.
	ReasonRefused = "refused: "
)

// Postponed is the only value of PostponeHeader.
const Postponed = "1"

// Message is a message to publish about an event.
type Message struct {
	Subject string
	Header  map[string][]string
	Data    []byte
}

// ParseFired is Parse for an event that must be a firing.
func ParseFired(b []byte) (Event, error) {
	e, err := Parse(b)
	if err != nil || e.Type == TypeFired {
		return e, err
	}
	return Event{}, fmt.Errorf("event: type %q, want %q", e.Type, TypeFired)
}

// MessageID returns the Nats-Msg-Id of a message that carries the event with the given id. JetStream drops a second
// message with the same Nats-Msg-Id, so all publishers of the same letter must use it. It is the id itself, if it is
// valid in a header like any id of timerd's, and otherwise a hash of it.
func MessageID(id string) string {
	unfit := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(id) > keys.MaxEventIDBytes || strings.ContainsFunc(id, unfit) {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
	}
	return id
}

// RefusedID returns the id of the dead letter of a retry request that cannot be carried out although its event is
// valid. The same request always has the same id.
func RefusedID(request Stored) string {
	sum := sha256.New()
	parts := slices.Concat(request.Values(DelayHeader), request.Values(LeastDelayHeader),
		request.Values(PostponeHeader),
		[]string{request.Subject, string(request.Data)})
	for _, part := range parts {
		fmt.Fprintf(sum, "%d %s ", len(part), part)
	}
	return fmt.Sprintf("sha256:%x", sum.Sum(nil))
}

// FreshLetterID returns the n-th Nats-Msg-Id for the dead letter e, for use if somebody else's letter already has the
// one of MessageID. It is the same for the same firing, whatever the reason, and cannot be guessed without the whole
// event.
func FreshLetterID(e Event, n int) string {
	e.DeadReason, e.LastError, e.MaxAttempts, e.Trigger, e.ContentType, e.Origin, e.OriginAt = "", "", 0, "", "", "", ""
	e.TraceParent, e.TraceState, e.Replayed = "", "", time.Time{}
	sum := sha256.Sum256(e.AppendJSON(fmt.Appendf(nil, "dead letter %d ", n)))
	return fmt.Sprintf("sha256:%x", sum)
}

// SameLetter reports whether two events are dead letters of the same firing. They may differ in their reason, and in
// the kept part of a payload that is too large.
func SameLetter(a, b Event) bool {
	if a.Type != b.Type || a.Key != b.Key || !a.Due.Equal(b.Due) || a.Attempt != b.Attempt {
		return false
	}
	lost := a.Status == StatusTooLarge || b.Status == StatusTooLarge
	cut := strings.HasPrefix(a.DeadReason, ReasonMalformed) &&
		(bytes.HasPrefix(a.Data, b.Data) || bytes.HasPrefix(b.Data, a.Data))
	return lost || cut || bytes.Equal(a.Data, b.Data)
}

// RetryID returns the id under which the schedule remembers that an event's retry was set. It is the event's id if
// timerd made it for the event's timer. Any other id may be another timer's too, so the timer is added to it.
func RetryID(e Event) string {
	own := keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
	if e.ID == own {
		return own
	}
	return own + " " + MessageID(e.ID)
}

// ReplayID returns the id under which the schedule remembers that a dead letter was replayed.
func ReplayID(e Event) string { return RetryID(e) + ".replay" }

// LateReason returns the reason of a timer that was claimed later than its limit allows: by after its due time, with a
// limit of most. published is set if an earlier try may have published its event.
func LateReason(by, most time.Duration, published bool) string {
	reason := fmt.Sprintf("%s%v after its due time, at most %v", ReasonLate, by, most)
	if published {
		reason += "; may have been published"
	}
	return reason
}

// Again is the retry that a consumer asks for after a failure.
type Again struct {
	Error string         // the error, in the form of ErrorText
	Delay *time.Duration // in place of the policy's delay; nil for the policy's
	// Least is the least delay: the policy's delay counts if it is longer. nil is no bound. It cannot be combined with
	// Delay.
	Least *time.Duration
	// Postpone keeps the attempt: it is not used up. It needs a Delay.
	Postpone bool
	// Consumer is the name of the durable consumer that asks for the retry; "" for none.
	Consumer string
}

// RetryRequest yields the message that asks timerd to fire a timer again: first whole, then, in case that is too large,
// without dispensable parts. e is the event and raw the message that carried it.
//
// The message has no Nats-Msg-Id: another publisher could use the same one first, and JetStream would drop this
// message. timerd recognises repeated requests by the event's id.
func RetryRequest(prefix string, e Event, raw []byte, again Again) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		message := func(header map[string][]string) Message {
			if again.Delay != nil {
				header[DelayHeader] = []string{again.Delay.String()}
			}
			if again.Least != nil {
				header[LeastDelayHeader] = []string{again.Least.String()}
			}
			if again.Postpone {
				header[PostponeHeader] = []string{Postponed}
			}
			if again.Consumer != "" {
				header[ConsumerHeader] = []string{again.Consumer}
			}
			return Message{Subject: e.Key.Subject(prefix, keys.Retry), Header: header, Data: raw}
		}
		if yield(message(map[string][]string{ContentTypeHeader: {ContentType}, ErrorHeader: {again.Error}})) {
			yield(message(map[string][]string{}))
		}
	}
}

// DeadLetter yields the message that makes e a dead letter, in smaller and smaller forms, because NATS and the stream
// limit the size: whole; with a short LastError; without LastError and Content-Type, which is as large as the firing
// was; and without the payload, with StatusTooLarge. A timer's payload is never cut. The payload of a stand-in is a
// message of unknown content: it is halved repeatedly, and DeadReason notes that.
//
// e.DeadReason must be set. The message and its event have the id MessageID(e.ID). Origin is set if e is the first
// event of its timer, but not for a stand-in.
func DeadLetter(prefix string, e Event) iter.Seq[Message] {
	isFirst := e.Origin == ""
	if !strings.HasPrefix(e.DeadReason, ReasonMalformed) {
		e.SetOrigin(e.First())
	}
	e.ID, e.Type = MessageID(e.ID), TypeDead
	return func(yield func(Message) bool) {
		form := func(e Event) Message {
			header := map[string][]string{MsgIDHeader: {e.ID}, ContentTypeHeader: {ContentType}}
			e.SetTraceHeaders(header)
			return Message{Subject: e.Key.Subject(prefix, keys.Dead), Header: header, Data: e.AppendJSON(nil)}
		}
		if !yield(form(e)) {
			return
		}
		if text := ClipText(e.LastError); text != e.LastError {
			e.LastError = text
			if !yield(form(e)) {
				return
			}
		}
		e.LastError = ""
		small := e
		if isFirst {
			small.Origin, small.OriginAt = "", ""
		}
		bare := form(small)
		delete(bare.Header, ContentTypeHeader)
		if !yield(bare) {
			return
		}
		e.Trigger = ""
		if !strings.HasPrefix(e.DeadReason, ReasonMalformed) {
			e.Data, e.Status = nil, StatusTooLarge
			yield(form(e))
			return
		}
		reason, size := e.DeadReason, len(e.Data)
		for room := size / 2; room > 0; room /= 2 {
			e.Data = e.Data[:room]
			e.DeadReason = fmt.Sprintf("%s (cut to %d of %d bytes)", reason, room, size)
			if !yield(form(e)) {
				return
			}
		}
	}
}

// Stored is a message as a stream holds it.
type Stored struct {
	Subject string
	Header  map[string][]string
	Data    []byte
	Stream  string
	Seq     uint64    // its place in the stream
	Time    time.Time // its stored time, by JetStream's clock
}

// String returns the place of the message.
func (s Stored) String() string { return fmt.Sprintf("%s %s/%d", s.Subject, s.Stream, s.Seq) }

// Values returns the values of a header, however its name is capitalised.
func (s Stored) Values(name string) []string {
	var all []string
	for have, values := range s.Header {
		if strings.EqualFold(have, name) {
			all = append(all, values...)
		}
	}
	return all
}

// StandIn returns an event for a message that holds none, to make a dead letter of it. The event is the first firing of
// a timer with the app, module and type of the message's subject, and whose id is the message's place in the stream.
// Its due time is the message's stored time, and its payload the message. kind is the subject's. Each message has its
// own stand-in, always the same.
func (s Stored) StandIn(prefix, kind string) Event {
	key, due := s.standInKey(prefix, kind), s.Time.Truncate(time.Millisecond)
	return Event{
		ID:      keys.EventID(key.String(), due.UnixMilli(), 1),
		Key:     key,
		Time:    due,
		Due:     due,
		Attempt: 1,
		Data:    append([]byte{}, s.Data...),
	}
}

// standInKey returns the key of a stand-in. If the subject does not have the three parts of a key, its tokens are the
// parts, unchanged: a missing part is "-", and the third part includes all later tokens.
func (s Stored) standInKey(prefix, kind string) keys.Key {
	id := fmt.Sprintf("%s/%d", s.Stream, s.Seq)
	app, module, typ, err := keys.ParseSubject(s.Subject, prefix, kind)
	if err == nil {
		k := keys.Key{App: app, Module: module, Type: typ, ID: id}
		if parsed, err := keys.Parse(k.String()); err == nil && parsed == k {
			return k
		}
	}
	rest := strings.TrimPrefix(s.Subject, prefix+"."+kind+".")
	parts := [3]string{"-", "-", "-"}
	for i, token := range strings.SplitN(rest, ".", len(parts)) {
		if token = strings.ReplaceAll(token, ":", "%3A"); token != "" {
			parts[i] = token[:min(len(token), keys.MaxPartBytes)]
		}
	}
	return keys.Key{App: parts[0], Module: parts[1], Type: parts[2], ID: id}
}

// maxTextBytes limits the texts of errors: a status of HTTP and 1 KiB of its answer.
const maxTextBytes = 1280

// ClipText shortens the text of an error to 1,280 bytes.
func ClipText(s string) string { return shorten(s, maxTextBytes) }

// ErrorText makes an error's text fit for a header: one line of valid UTF-8 of at most 1,280 bytes.
func ErrorText(s string) string {
	return ClipText(strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)))
}

// maxQuotedBytes limits an error's quotation of a stranger's message.
const maxQuotedBytes = 64

// clip shortens a stranger's text for an error message.
func clip(s string) string { return shorten(s, maxQuotedBytes) }

// shorten cuts a text to so many bytes, the final ellipsis included.
func shorten(s string, most int) string {
	const ellipsis = "…"
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(ellipsis)], "") + ellipsis
}
