package history

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// stream returns the name of the stream of a kind of subject.
func (r *Reader) stream(kind string) string {
	switch kind {
	case keys.Dead:
		return r.names.DeadStream()
	case keys.Delivery:
		return r.names.DeliveryStream()
	case keys.History, keys.Operator:
		return r.names.HistoryStream()
	}
	return r.names.FiredStream()
}

// Each calls f for the matches of a query among the messages from one sequence to another, both included, oldest first,
// until f returns false. The query's Kind names the stream and must be set. The error has the fix.
func (r *Reader) Each(ctx context.Context, q Query, first, last uint64, f func(Record) bool) error {
	m, stream := newMatcher(q, r.names.SubjectPrefix(), q.Kind), r.stream(q.Kind)
	return each(ctx, r.js, stream, part{from: first, to: last}, func(found message) bool {
		if !m.covers(found.subject) || !m.may(found.data) {
			return true
		}
		record := m.record(stream, found)
		return !m.match(record) || f(record)
	})
}

// EachSince calls f for the messages of the stream of a kind of subject that were stored since a time, oldest first,
// until f returns false. Its error has the fix; it wraps ErrNoStream if there is no such stream.
func (r *Reader) EachSince(ctx context.Context, kind string, since time.Time, f func(Record) bool) error {
	name := r.stream(kind)
	stream, err := Open(ctx, r.js, name)
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	m := newMatcher(Query{}, r.names.SubjectPrefix(), kind)
	of := part{from: max(state.FirstSeq, 1), since: since, to: state.LastSeq}
	return each(ctx, r.js, name, of, func(found message) bool { return f(m.record(name, found)) })
}

// Newest calls f for the newest messages of the stream of a kind of subject, at most so many, oldest first, until f
// returns false. Its error has the fix; it wraps ErrNoStream if there is no such stream.
func (r *Reader) Newest(ctx context.Context, kind string, most uint64, f func(Record) bool) error {
	stream, err := Open(ctx, r.js, r.stream(kind))
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	first := max(state.FirstSeq, state.LastSeq-min(most, state.LastSeq)+1)
	return r.Each(ctx, Query{Kind: kind}, first, state.LastSeq, f)
}

// Identity is the id of an event or a dead letter in a stream.
type Identity struct {
	Key     keys.Key
	Due     int64 // in unix ms
	Attempt int
	Seq     uint64
}

// Identities returns the ids of some messages of a kind of subject, oldest first: of those from a sequence on, or if
// that is 0, of those stored since a time. It reads at most so many messages, by their headers, except for ids that are
// hashes, and leaves out messages without a timer of their subject. next is where to go on; 0 after the last message.
// Its error has the fix.
func (r *Reader) Identities(ctx context.Context, kind string, since time.Time, from uint64,
	most int) (all []Identity, next uint64, err error) {
	name := r.stream(kind)
	stream, err := Open(ctx, r.js, name)
	if err != nil {
		return nil, 0, err
	}
	state := stream.CachedInfo().State
	of := part{from: from, to: state.LastSeq, most: uint64(most), headersOnly: true}
	if from == 0 {
		of.from, of.since = max(state.FirstSeq, 1), since
	}
	read := 0
	all = make([]Identity, 0, min(uint64(most), state.Msgs))
	err = each(ctx, r.js, name, of, func(m message) bool {
		read++
		next = m.seq + 1
		is := Identity{Seq: m.seq}
		text, due, attempt, ok := keys.ParseEventID(m.header.Get(event.MsgIDHeader))
		if key, err := keys.Parse(text); ok && err == nil {
			if key.Subject(r.names.SubjectPrefix(), kind) != m.subject {
				return true
			}
			is = Identity{key, due, attempt, m.seq}
		}
		all = append(all, is)
		return true
	})
	if read < most {
		next = 0
	}
	if err != nil {
		return nil, 0, err
	}
	all, err = r.identify(ctx, kind, all)
	return all, next, err
}

// identify reads the messages of ids without a key, and leaves those without a timer out.
func (r *Reader) identify(ctx context.Context, kind string, ids []Identity) ([]Identity, error) {
	known := ids[:0]
	for _, id := range ids {
		if id.Key == (keys.Key{}) {
			m, ok, err := r.Get(ctx, kind, id.Seq)
			if err != nil {
				return nil, err
			}
			if !ok || m.Fault != "" {
				continue
			}
			id = Identity{m.Key, m.Event.Due.UnixMilli(), m.Event.Attempt, id.Seq}
		}
		known = append(known, id)
	}
	return known, nil
}

// Get returns the message with a sequence in the stream of a kind of subject, or false if it does not exist.
func (r *Reader) Get(ctx context.Context, kind string, seq uint64) (Record, bool, error) {
	found, ok, err := get(ctx, r.js, r.stream(kind), map[string]any{"seq": seq})
	if err != nil || !ok {
		return Record{}, false, err
	}
	m := newMatcher(Query{}, r.names.SubjectPrefix(), kind)
	return m.record(r.stream(kind), found), true, nil
}
