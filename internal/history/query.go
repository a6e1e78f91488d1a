package history

import (
	"bytes"
	"strings"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Query selects messages. The zero value selects all events and deliveries.
type Query struct {
	// Key is one timer. If it is set, Namespace and Text are ignored, and the history is searched too: for ends of the
	// timer, and for actions on it or on its namespace.
	Key       keys.Key
	Namespace keys.Namespace
	// Text is a part of the timer's id, byte for byte as in the key.
	Text string
	// Why is a part of the reason, the last error, the fault, a delivery's host, or a guard's key, in upper or lower
	// case.
	Why string
	// Failed selects deliveries whose call failed: without successes, and without postponements that called nobody.
	Failed bool
	// Entry selects entries of the history of one kind; empty means all kinds.
	Entry event.EntryKind
	// Kind is keys.Fired, keys.Dead or keys.Delivery for one stream, keys.History for ends of timers without an event,
	// or keys.Operator for actions and incidents; only Key selects some of these. Empty means all streams.
	Kind string
}

// namespace returns the namespace of the timers.
func (q Query) namespace() keys.Namespace {
	if q.Key != (keys.Key{}) {
		return keys.Namespace{App: q.Key.App, Module: q.Key.Module, Type: q.Key.Type}
	}
	return q.Namespace
}

// matcher quickly rules out messages that a query does not select.
type matcher struct {
	Query
	prefix string // of every subject
	kind   string // of the stream's
	filter string // the subject, with wildcards, of all matches
	within keys.Namespace
	needle []byte // a part of every match; empty: none is known
	text   []byte // a part of every match that is not an event
	why    string // Why in lower case
}

func newMatcher(q Query, prefix, kind string) matcher {
	m := matcher{Query: q, prefix: prefix, kind: kind, within: q.namespace(), why: strings.ToLower(q.Why)}
	if kind == keys.Operator { // whose subjects and texts may name no timer
		m.filter = keys.SubjectAll(prefix, kind)
		return m
	}
	if m.filter = keys.SubjectAll(prefix, kind); m.within != (keys.Namespace{}) {
		m.filter = m.within.Subject(prefix, kind)
	}
	text := q.Text
	if q.Key != (keys.Key{}) {
		text = q.Key.String()
	}
	m.text = []byte(keys.EncodeText(text))
	m.needle = longestPlain(string(m.text))
	return m
}

// isIn returns the kind that names the stream.
func (m *matcher) isIn() string {
	if m.kind == keys.Operator {
		return keys.History
	}
	return m.kind
}

// all reports whether all messages of the stream are in the namespace. The history has those of two kinds.
func (m *matcher) all() bool { return m.within == keys.Namespace{} && m.isIn() != keys.History }

// one reports whether only messages of one subject match.
func (m *matcher) one() bool {
	return m.kind != keys.Operator && m.within.App != "" && m.within.Module != "" && m.within.Type != ""
}

// longestPlain returns the longest part of a text that every JSON encoder writes unchanged: some escape more than they
// must.
func longestPlain(s string) []byte {
	special := func(r rune) bool {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return false
		}
		return !strings.ContainsRune(":_-.@%", r)
	}
	longest := ""
	for _, part := range strings.FieldsFunc(s, special) {
		if len(part) > len(longest) {
			longest = part
		}
	}
	return []byte(longest)
}

// may reports cheaply whether the content of a message may match.
func (m *matcher) may(data []byte) bool { return bytes.Contains(data, m.needle) }

// record reads a message.
func (m *matcher) record(stream string, of message) Record {
	r := Record{Stream: stream, Kind: m.kind, Seq: of.seq, Stored: of.stored, Subject: of.subject, Data: of.data}
	return newRecord(m.prefix, r, of.header)
}

// covers reports whether a subject is in the namespace.
func (m *matcher) covers(subject string) bool {
	switch {
	case m.kind == keys.Operator:
		return strings.HasPrefix(subject, strings.TrimSuffix(m.filter, ">"))
	case m.one():
		return subject == m.filter
	case m.all():
		return true
	}
	app, module, typ, err := keys.ParseSubject(subject, m.prefix, m.kind)
	return err == nil && m.within.Match(keys.Key{App: app, Module: module, Type: typ})
}

// match reports whether a message for which may returned true matches. One with a fault matches by the text in it.
func (m *matcher) match(r Record) bool {
	var is bool
	switch {
	case r.Fault != "":
		is = bytes.Contains(r.Data, m.text) && (m.kind != keys.Operator || m.Key == (keys.Key{}))
	case m.kind == keys.Operator:
		is = m.Key == (keys.Key{}) || r.Entry.Concerns(m.Key)
	case m.Key != (keys.Key{}):
		is = r.Key == m.Key
	default:
		is = strings.Contains(r.Key.ID, m.Text)
	}
	if !is || m.Failed && !r.failed() || m.Entry != "" && (r.Fault != "" || m.Entry != r.Entry.Kind) {
		return false
	}
	if m.why == "" {
		return true
	}
	for _, text := range []string{r.Event.DeadReason, r.Event.LastError, r.Delivery.Error, r.Delivery.Host,
		r.Entry.By, r.Entry.Detail, r.Entry.GuardUnless, r.Entry.GuardIf, r.Fault} {
		if strings.Contains(strings.ToLower(text), m.why) {
			return true
		}
	}
	return false
}
