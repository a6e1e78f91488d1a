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

// What DeadReason says.
const (
	// ReasonExhausted is the whole reason where timerd gave up: the policy allows no further attempt.
	ReasonExhausted = "attempts used up"
	// ReasonGivenUp is the whole reason where the consumer gave up.
	ReasonGivenUp = "given up by the consumer"
	// ReasonHeld is the whole reason where a hold ended so (timerd resume --dead).
	ReasonHeld = "held"
	// ReasonRepeat begins the reason of a repetition that cannot begin.
	ReasonRepeat = "repeat: "
	// ReasonMalformed begins the reason of a message that holds no event. Its letter is that of a stand-in.
	ReasonMalformed = "malformed: "
	// ReasonLate begins the reason of a timer that was claimed too late to fire.
	ReasonLate = "late: "
	// ReasonRefused begins the reason of a retry request that cannot be carried out though its event is fine.
	ReasonRefused = "refused: "
)

// Postponed is the one value of PostponeHeader.
const Postponed = "1"

// Message is what is to be published about an event.
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

// MessageID returns the Nats-Msg-Id of a message that carries the event with the given id. JetStream drops a second one
// with the same Nats-Msg-Id, so everybody who may publish the same letter must use it. It is the id itself where a
// header can hold that, as it can every id that timerd makes, and a hash of it elsewhere.
func MessageID(id string) string {
	unfit := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(id) > keys.MaxEventIDBytes || strings.ContainsFunc(id, unfit) {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
	}
	return id
}

// RefusedID returns the id of the dead letter of a retry request that cannot be carried out though its event is fine:
// the same one if the same is asked for again.
func RefusedID(request Stored) string {
	sum := sha256.New()
	parts := slices.Concat(request.Values(DelayHeader), request.Values(LeastDelayHeader), request.Values(PostponeHeader),
		[]string{request.Subject, string(request.Data)})
	for _, part := range parts {
		fmt.Fprintf(sum, "%d %s ", len(part), part)
	}
	return fmt.Sprintf("sha256:%x", sum.Sum(nil))
}

// FreshLetterID returns the n-th Nats-Msg-Id in place of MessageID for the dead letter that e is, for where a letter of
// somebody else took that one. It is the same for the same firing, whyever it is a dead letter, and known only to those
// who know the whole event.
func FreshLetterID(e Event, n int) string {
	e.DeadReason, e.LastError, e.MaxAttempts, e.Trigger, e.ContentType, e.Origin, e.OriginAt = "", "", 0, "", "", "", ""
	e.TraceParent, e.TraceState, e.Replayed = "", "", time.Time{}
	sum := sha256.Sum256(e.AppendJSON(fmt.Appendf(nil, "dead letter %d ", n)))
	return fmt.Sprintf("sha256:%x", sum)
}

// SameLetter tells whether two events are dead letters of the same firing. They may differ in why they are there, and
// in how much of a payload is left that was too large.
func SameLetter(a, b Event) bool {
	if a.Type != b.Type || a.Key != b.Key || !a.Due.Equal(b.Due) || a.Attempt != b.Attempt {
		return false
	}
	lost := a.Status == StatusTooLarge || b.Status == StatusTooLarge
	cut := strings.HasPrefix(a.DeadReason, ReasonMalformed) && (bytes.HasPrefix(a.Data, b.Data) || bytes.HasPrefix(b.Data, a.Data))
	return lost || cut || bytes.Equal(a.Data, b.Data)
}

// RetryID returns the id by which the schedule remembers that an event's retry was set. It is the event's id if timerd
// made that for the event's timer. Any other id may be that of another timer too, so the timer is added.
func RetryID(e Event) string {
	own := keys.EventID(e.Key.String(), e.Due.UnixMilli(), e.Attempt)
	if e.ID == own {
		return own
	}
	return own + " " + MessageID(e.ID)
}

// ReplayID returns the id by which the schedule remembers that a dead letter was replayed.
func ReplayID(e Event) string { return RetryID(e) + ".replay" }

// LateReason returns the reason of a timer that was claimed so long after its due time, though a limit allows less.
// published says that an earlier try may have published its event.
func LateReason(by, most time.Duration, published bool) string {
	reason := fmt.Sprintf("%s%v after its due time, at most %v", ReasonLate, by, most)
	if published {
		reason += "; may have been published"
	}
	return reason
}

// Again is what a consumer asks for that could not do its work.
type Again struct {
	Error string         // what went wrong, as ErrorText writes it
	Delay *time.Duration // in place of the policy's; nil for that
	// Least has the retry wait at least so long, and longer where the policy says so; nil for no such bound. It cannot go
	// with a Delay.
	Least *time.Duration
	// Postpone keeps the attempt: it is not used up. It needs a Delay.
	Postpone bool
}

// RetryRequest yields the message that asks timerd to fire a timer again: first whole, then without what is not needed,
// for where the whole one is too large. e is the event and raw the message that brought it.
//
// The message has no Nats-Msg-Id: somebody else could use it first, for a request of his own, and JetStream would drop
// this one. timerd tells repetitions by the event's id.
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
			return Message{Subject: e.Key.Subject(prefix, keys.Retry), Header: header, Data: raw}
		}
		if yield(message(map[string][]string{ContentTypeHeader: {ContentType}, ErrorHeader: {again.Error}})) {
			yield(message(map[string][]string{}))
		}
	}
}

// DeadLetter yields the message that makes e a dead letter, in ever smaller forms, for NATS and the stream let only so
// much through: whole; with a short LastError; without LastError and Content-Type, which is as large as the firing was;
// and without the payload, with StatusTooLarge. A timer's payload is never cut. That of a stand-in, which is a message
// of unknown content, is cut to a half again and again, and DeadReason says so.
//
// e.DeadReason must be set. The id becomes that of the message, and Origin is set where e is the first event of its timer. That of a
// stand-in has none.
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
	Time    time.Time // when it was stored, by JetStream's clock
}

// String says where the message is.
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

// StandIn returns an event for a message that holds none, to make a dead letter of. It is the first firing of a timer
// that the message's subject names and whose id is the message's place in the stream, due when it was stored; its
// payload is the message. kind is that of the subject. Each message has a stand-in of its own, and always the same one.
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

// standInKey returns the key of a stand-in. Where the subject does not name the three parts of a key, they are its
// tokens as they stand: one that is missing is "-", and the third takes in all that follow it.
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

// maxTextBytes bounds texts that say what is wrong: a status of HTTP and 1 KiB of its answer.
const maxTextBytes = 1280

// ClipText shortens a text that says what is wrong to 1,280 bytes.
func ClipText(s string) string { return shorten(s, maxTextBytes) }

// ErrorText brings an error's text into the form of a header: one line of valid UTF-8 of at most 1,280 bytes.
func ErrorText(s string) string {
	return ClipText(strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)))
}

// maxQuotedBytes bounds what an error quotes of a stranger's message.
const maxQuotedBytes = 64

// clip shortens what a stranger wrote for an error message.
func clip(s string) string { return shorten(s, maxQuotedBytes) }

// shorten cuts a text to so many bytes, the ellipsis that it then ends with included.
func shorten(s string, most int) string {
	const ellipsis = "…"
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(ellipsis)], "") + ellipsis
}
