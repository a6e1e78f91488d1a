// Package event is the message that timerd publishes for a firing or a dead letter: a CloudEvent 1.0 in structured
// JSON. It encodes and decodes the event byte for byte, and does no I/O.
package event

import (
	"encoding/base64"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Types of event.
const (
	TypeFired = "timerd.timer.fired"
	TypeDead  = "timerd.timer.dead"
)

// Values of the attributes that never change.
const (
	SpecVersion = "1.0"
	Source      = "/timerd"
)

// Headers of messages with an event.
const (
	MsgIDHeader       = "Nats-Msg-Id"                  // holds the event's id: JetStream drops duplicates by it
	ContentTypeHeader = "Content-Type"                 // holds ContentType
	ContentType       = "application/cloudevents+json" // a CloudEvent in structured JSON
	DelayHeader       = "Timer-Delay"                  // of a retry request: a Go duration that overrides the policy
	// of a retry request: a Go duration; the policy's delay counts where it is longer
	LeastDelayHeader = "Timer-Delay-Least"
	// of a retry request: 1 keeps the attempt, with a delay of its own
	PostponeHeader = "Timer-Postpone"
	ErrorHeader    = "Timer-Error" // of a retry request or a dead letter: the error, as text
	// of a retry request: the durable consumer that sent it, for the counts of timerd status
	ConsumerHeader    = "Timer-Consumer"
	TraceParentHeader = "traceparent" // holds TraceParent
	TraceStateHeader  = "tracestate"  // holds TraceState
)

// Content types of a payload, as DataContentType finds them.
const (
	DataJSON   = "application/json"
	DataText   = "text/plain"
	DataBinary = "application/octet-stream"
)

// Why an event has no payload: the values of Event.Status.
const (
	StatusMissing  = "missing"  // never seen, or the key is of a type without one
	StatusTooLarge = "toolarge" // over timerd's limit or NATS's
)

// timeLayout is RFC 3339 with milliseconds, for times in UTC.
const timeLayout = "2006-01-02T15:04:05.000Z"

// Event is one firing of a timer, or its dead letter.
type Event struct {
	ID          string // the same for the same firing, always; see keys.EventID
	Type        string // TypeFired or TypeDead
	Key         keys.Key
	Time        time.Time // its publication; the zero time if unknown
	Due         time.Time // the due time of the timer, to the millisecond
	Attempt     int       // 1 for the first firing, at most math.MaxInt32
	MaxAttempts int       // 0 if unknown
	Trigger     string    // the cause of the firing; "" if unknown
	// Origin is the id of the timer's first event, on a retry, a postponed event, a replay and a dead letter. It is ""
	// on the first event itself; FirstID returns the id in all cases. OriginAt is that event's due time in unix ms, a
	// dot and its attempt, if the id is a hash and does not show them. SetOrigin sets both.
	Origin, OriginAt string
	// Replayed is the time of the timer's replay, such as a dead letter's; retries and postponements keep it. It is the
	// zero time without a replay.
	Replayed time.Time
	// Late is the timer's own limit on lateness, not its namespace's. Its retries inherit it.
	Late policy.Limit
	// Guards are the timer's own guards, not its namespace's. Its retries inherit them.
	Guards policy.Guards
	// Repeat is the timer's repetition, and Occurrence the number of this firing, from 1. They are empty and 0 for a
	// timer that does not repeat. The retries of an occurrence have them too.
	Repeat     string
	Occurrence int64

	// TraceParent and TraceState name the trace in which the timer was set, in the form of W3C Trace Context; "" if
	// unknown.
	TraceParent, TraceState string

	// Data is the payload as the producer set it, byte for byte; nil if there is none. An empty, non-nil Data is an
	// empty payload.
	Data []byte
	// ContentType is the datacontenttype of a parsed event, "" if it has no data. It tells AppendJSON how to encode
	// Data: with DataText any UTF-8, JSON too, becomes a JSON string; with DataBinary everything is base64; with any
	// other value DataContentType decides. So a parsed event is written in the form it was read.
	ContentType string
	// Status is the reason for a missing payload: "", StatusMissing or StatusTooLarge.
	Status string

	DeadReason string // of a dead letter: the reason why timerd or the consumer gave up
	LastError  string // of a dead letter: the last error that a consumer reported
}

// AppendJSON appends the event in CloudEvents structured JSON to dst and returns the extended slice. It allocates only
// room in dst, unless the key has bytes that an attribute cannot show.
//
// A payload that is valid JSON is embedded as it is, white space included; other UTF-8 becomes a JSON string, and other
// bytes base64; ContentType can say otherwise. Nothing of Data is written when Status is set. Control characters and
// bytes that are not UTF-8 are written %XX in the key's attributes, and become a space or U+FFFD in DeadReason,
// LastError and Trigger, which are for people to read.
//
// Parse reads the result if ID, Type and Key are set and Attempt is at least 1. Times are cut to milliseconds.
func (e Event) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"specversion":"`+SpecVersion+`","id":"`...)
	dst = appendEscaped(dst, e.ID)
	dst = append(dst, `","source":"`+Source+`","type":"`...)
	dst = appendEscaped(dst, e.Type)
	parts := [...]string{e.Key.App, e.Key.Module, e.Key.Type, e.Key.ID}
	for i, before := range [...]string{`","subject":"`, `:`, `:`, `:`} {
		dst = append(dst, before...)
		dst = appendAttribute(dst, parts[i])
	}
	if !e.Time.IsZero() {
		dst = append(dst, `","time":"`...)
		dst = e.Time.UTC().AppendFormat(dst, timeLayout)
	}
	kind := ""
	if e.Data != nil && e.Status == "" {
		kind = travelsAs(e.ContentType, e.Data)
		dst = append(dst, `","datacontenttype":"`...)
		dst = append(dst, kind...)
	}
	for i, before := range [...]string{`","app":"`, `","module":"`, `","timertype":"`, `","timerid":"`} {
		dst = append(dst, before...)
		dst = appendAttribute(dst, parts[i])
	}
	dst = append(dst, `","dueat":"`...)
	dst = e.Due.UTC().AppendFormat(dst, timeLayout)
	dst = append(dst, `","attempt":`...)
	dst = strconv.AppendInt(dst, int64(e.Attempt), 10)
	if e.MaxAttempts != 0 {
		dst = append(dst, `,"maxattempts":`...)
		dst = strconv.AppendInt(dst, int64(e.MaxAttempts), 10)
	}
	if e.Late.Given {
		dst = append(dst, `,"late":`...)
		dst = strconv.AppendInt(dst, e.Late.Most.Milliseconds(), 10)
		if e.Late.Drop {
			dst = append(dst, `,"latedrop":true`...)
		}
	}
	dst = appendString(dst, `,"guardunless":"`, keys.EncodeText(e.Guards.Unless))
	dst = appendString(dst, `,"guardif":"`, keys.EncodeText(e.Guards.If))
	if e.Repeat != "" {
		dst = append(dst, `,"repeat":"`...)
		dst = appendEscaped(dst, e.Repeat)
		dst = append(dst, `","occurrence":`...)
		dst = strconv.AppendInt(dst, e.Occurrence, 10)
	}
	dst = appendString(dst, `,"origin":"`, e.Origin)
	dst = appendString(dst, `,"originat":"`, e.OriginAt)
	if !e.Replayed.IsZero() {
		dst = append(dst, `,"replayedat":"`...)
		dst = e.Replayed.UTC().AppendFormat(dst, timeLayout)
		dst = append(dst, '"')
	}
	dst = appendString(dst, `,"traceparent":"`, e.TraceParent)
	dst = appendString(dst, `,"tracestate":"`, e.TraceState)
	dst = appendText(dst, `,"trigger":"`, e.Trigger)
	dst = appendText(dst, `,"datastatus":"`, e.Status)
	dst = appendText(dst, `,"deadreason":"`, e.DeadReason)
	dst = appendText(dst, `,"lasterror":"`, e.LastError)
	return append(appendData(dst, kind, e.Data), '}')
}

// appendData appends the payload in the form of a content type; "" is none.
func appendData(dst []byte, kind string, data []byte) []byte {
	switch kind {
	case DataJSON:
		return append(append(dst, `,"data":`...), data...)
	case DataText:
		return append(appendEscaped(append(dst, `,"data":"`...), data), '"')
	case DataBinary:
		return append(base64.StdEncoding.AppendEncode(append(dst, `,"data_base64":"`...), data), '"')
	}
	return dst
}

// travelsAs returns the content type in which an event carries data. asked is the content type of a parsed event, or
// empty.
func travelsAs(asked string, data []byte) string {
	switch {
	case asked == DataBinary:
		return DataBinary
	case asked == DataText && utf8.Valid(data):
		return DataText
	}
	return DataContentType(data)
}

// Attempt returns the attempt that a payload states: a whole number from 1 to math.MaxInt32 under "attempt" in a JSON
// object, in lower case and not nested; the last one of several. It returns 1 for any other payload.
func Attempt(payload []byte) int {
	if !mayHold(payload, `"attempt"`) || DataContentType(payload) != DataJSON {
		return 1
	}
	attempt := 1
	object := members{b: payload}
	for object.next() {
		if string(object.name) == "attempt" {
			n, _ := parsePositive(object.value)
			attempt = max(n, 1)
		}
	}
	return attempt
}
