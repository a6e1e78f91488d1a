package event

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// Parse reads an event of AppendJSON, even if it was decoded and encoded again: members may be in any order with white
// space between them, and unknown ones are ignored. The event must be a CloudEvent 1.0 of TypeFired or TypeDead with an
// id, a subject that is a timer key, a dueat and an attempt of at least 1. The error names every missing or wrong
// member.
//
// Data is the payload byte for byte. That includes white space around embedded JSON, if the event is as AppendJSON
// wrote it. The event shares no memory with b.
func Parse(b []byte) (Event, error) {
	if !utf8.Valid(b) {
		return Event{}, errors.New("event: not valid UTF-8")
	}
	var p parser
	object := members{b: b}
	for object.next() {
		p.member(&object)
	}
	if object.err != nil {
		return Event{}, fmt.Errorf("event: not a JSON object: %w", object.err)
	}
	p.finish(!object.loose)
	if len(p.faults) > 0 {
		return Event{}, fmt.Errorf("event: %w", p.faults)
	}
	return p.event, nil
}

// faults has all faults of an event, on one line.
type faults []error

func (f faults) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f faults) Unwrap() []error { return f }

// parser collects an event and its faults, member by member.
type parser struct {
	event  Event
	faults faults
	seen   []string

	data       []byte // the JSON value of data, nil if there is none
	padded     []byte // the same with the white space around it
	binary     []byte // the value of data_base64, nil if there is none
	loose      bool   // there is white space around another member
	dataIsLast bool
}

func (p *parser) fault(name, format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf("%s: %w", name, fmt.Errorf(format, args...)))
}

func (p *parser) member(m *members) {
	name := string(m.name)
	if name != "data" {
		p.dataIsLast = false
		p.loose = p.loose || len(m.value) < m.end-m.start
		if string(m.value) == "null" {
			return
		}
	}
	if !p.take(name, m) {
		return
	}
	if slices.Contains(p.seen, name) {
		p.fault(name, "given twice")
	}
	p.seen = append(p.seen, name)
}

// take stores a member and reports whether it is a known one.
func (p *parser) take(name string, m *members) bool {
	e := &p.event
	switch name {
	case "specversion":
		if v, ok := p.text(name, m.value); ok && v != SpecVersion {
			p.fault(name, "%q, want %q", clip(v), SpecVersion)
		}
	case "id":
		var ok bool
		if e.ID, ok = p.text(name, m.value); ok && e.ID == "" {
			p.fault(name, "empty")
		}
	case "type":
		var ok bool
		if e.Type, ok = p.text(name, m.value); ok && e.Type != TypeFired && e.Type != TypeDead {
			p.fault(name, "%q, want %q or %q", clip(e.Type), TypeFired, TypeDead)
		}
	case "subject":
		p.subject(name, m.value)
	case "time":
		e.Time = p.time(name, m.value)
	case "dueat":
		e.Due = p.time(name, m.value)
	case "attempt":
		e.Attempt = p.integer(name, m.value)
	case "maxattempts":
		e.MaxAttempts = p.integer(name, m.value)
	case "late":
		e.Late.Given, e.Late.Most = true, p.late(name, m.value)
	case "latedrop":
		e.Late.Drop = p.boolean(name, m.value)
	case "guardunless":
		e.Guards.Unless = p.guard(name, m.value)
	case "guardif":
		e.Guards.If = p.guard(name, m.value)
	case "repeat":
		e.Repeat = p.repeat(name, m.value)
	case "occurrence":
		e.Occurrence = p.occurrence(name, m.value)
	case "origin":
		e.Origin, _ = p.text(name, m.value)
	case "originat":
		e.OriginAt, _ = p.text(name, m.value)
	case "replayedat":
		e.Replayed = p.time(name, m.value)
	case TraceParentHeader:
		e.TraceParent = looseText(m.value)
	case TraceStateHeader:
		e.TraceState = looseText(m.value)
	case "trigger":
		e.Trigger, _ = p.text(name, m.value)
	case "datastatus":
		e.Status, _ = p.text(name, m.value)
	case "deadreason":
		e.DeadReason, _ = p.text(name, m.value)
	case "lasterror":
		e.LastError, _ = p.text(name, m.value)
	case "datacontenttype":
		e.ContentType, _ = p.text(name, m.value)
	case "data":
		p.data, p.padded = m.value, m.b[m.start:m.end]
		p.dataIsLast = true
	case "data_base64":
		p.base64(name, m.value)
	default:
		return false
	}
	return true
}

// finish checks that every required member was seen, and sets the data. compact reports whether there is no white space
// between the members.
func (p *parser) finish(compact bool) {
	e := &p.event
	for _, name := range []string{"specversion", "id", "type", "subject", "dueat", "attempt"} {
		if !slices.Contains(p.seen, name) {
			p.fault(name, "missing")
		}
	}
	switch {
	case p.data != nil && p.binary != nil:
		p.fault("data", "given together with data_base64")
	case p.binary != nil:
		e.Data = p.binary
	case p.data == nil:
		e.ContentType = ""
	case p.data[0] == '"' && !isJSONType(e.ContentType):
		e.Data = slices.Clone(unquote(p.data))
	case compact && !p.loose && p.dataIsLast:
		e.Data = slices.Clone(p.padded)
	default:
		e.Data = slices.Clone(p.data)
	}
	if e.Data != nil {
		e.Status = ""
	}
	if !e.Late.Given {
		e.Late.Drop = false
	}
	if e.Repeat == "" || e.Occurrence == 0 {
		e.Repeat, e.Occurrence = "", 0
	}
	p.finishOrigin()
	e.dropBadTrace()
}

// finishOrigin checks that the first event belongs to the event's own timer: a consumer may use it as the key of a
// payment, and must not have to trust the publisher of a retry.
func (p *parser) finishOrigin() {
	e := &p.event
	if e.Origin == "" || e.Key == (keys.Key{}) {
		e.Origin, e.OriginAt = "", ""
		return
	}
	if _, _, ok := e.origin(); !ok {
		p.fault("origin", "%q, want the id of an event of this timer, with originat where that is a hash",
			clip(e.Origin))
	} else if !isHash(e.Origin) {
		e.OriginAt = ""
	}
}

// isJSONType reports whether data of the content type are JSON. By CloudEvents they are if none is given.
func isJSONType(contentType string) bool {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	media = strings.TrimSpace(media)
	return media == "" || media == DataJSON || media == "text/json" || strings.HasSuffix(media, "+json")
}

// text returns the string of a member; ok is false if it is no string.
func (p *parser) text(name string, value []byte) (string, bool) {
	if value[0] != '"' {
		p.fault(name, "%q, want a string", clip(string(value)))
		return "", false
	}
	return string(unquote(value)), true
}

// looseText returns the string of a member, or "" if it is no string: the event is valid without it.
func looseText(value []byte) string {
	if value[0] != '"' {
		return ""
	}
	return string(unquote(value))
}

func (p *parser) integer(name string, value []byte) int {
	n, ok := parsePositive(value)
	if !ok {
		p.fault(name, "%q, want an integer from 1 to %d", clip(string(value)), math.MaxInt32)
	}
	return n
}

// late reads a limit in milliseconds, 0 for none.
func (p *parser) late(name string, value []byte) time.Duration {
	const most = float64(policy.Longest / time.Millisecond)
	ms, err := strconv.ParseFloat(string(value), 64)
	if err != nil || ms < 0 || ms > most || ms != math.Trunc(ms) {
		p.fault(name, "%q, want an integer from 0 to %.0f", clip(string(value)), most)
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// guard reads the key of a guard.
func (p *parser) guard(name string, value []byte) string {
	s, ok := p.text(name, value)
	if !ok {
		return ""
	}
	key, err := keys.DecodeText(s)
	if err == nil {
		err = policy.CheckGuard(key)
	}
	if err != nil {
		p.fault(name, "%q: %w", clip(s), err)
	}
	return key
}

// maxRepeat is over the length of any repetition, in bytes.
const maxRepeat = 400

// repeat reads a timer's rhythm. It is stored as it is with the timer's retries, so it must not contain the separators
// of records.
func (p *parser) repeat(name string, value []byte) string {
	s, ok := p.text(name, value)
	unfit := func(r rune) bool { return r < ' ' || r > '~' || r == ':' || r == ';' }
	if ok && (len(s) > maxRepeat || strings.ContainsFunc(s, unfit)) {
		p.fault(name, "%q, want a repetition such as every 5m0s", clip(s))
		return ""
	}
	return s
}

// occurrence reads the number of an occurrence.
func (p *parser) occurrence(name string, value []byte) int64 {
	const most = 1 << 53
	n, err := strconv.ParseFloat(string(value), 64)
	if err != nil || n < 1 || n > most || n != math.Trunc(n) {
		p.fault(name, "%q, want an integer from 1 to %d", clip(string(value)), int64(most))
		return 0
	}
	return int64(n)
}

func (p *parser) boolean(name string, value []byte) bool {
	switch string(value) {
	case "true":
		return true
	case "false":
	default:
		p.fault(name, "%q, want true or false", clip(string(value)))
	}
	return false
}

func (p *parser) time(name string, value []byte) time.Time {
	s, ok := p.text(name, value)
	if !ok {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if t = t.UTC(); err != nil || !isWritable(t) {
		p.fault(name, "%q, want a time as in RFC 3339", clip(s))
		return time.Time{}
	}
	return t
}

// isWritable reports whether RFC 3339 can express a time in UTC, as JSON requires.
func isWritable(t time.Time) bool { return t.Year() >= 0 && t.Year() <= 9999 }

func (p *parser) subject(name string, value []byte) {
	s, ok := p.text(name, value)
	if !ok {
		return
	}
	decoded, err := keys.DecodeText(s)
	if err == nil {
		p.event.Key, err = keys.Parse(decoded)
	}
	if err != nil {
		p.fault(name, "%w", err)
	}
}

func (p *parser) base64(name string, value []byte) {
	s, ok := p.text(name, value)
	if !ok {
		return
	}
	data, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		p.fault(name, "not base64: %w", err)
		return
	}
	p.binary = append([]byte{}, data...)
}
