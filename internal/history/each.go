package history

import (
	"context"

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
	return each(ctx, r.js, stream, first, last, func(found message) bool {
		if !m.covers(found.subject) || !m.may(found.data) {
			return true
		}
		record := m.record(stream, found)
		return !m.match(record) || f(record)
	})
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

// Get returns the message with a sequence in the stream of a kind of subject, or false if it does not exist.
func (r *Reader) Get(ctx context.Context, kind string, seq uint64) (Record, bool, error) {
	found, ok, err := get(ctx, r.js, r.stream(kind), map[string]any{"seq": seq})
	if err != nil || !ok {
		return Record{}, false, err
	}
	m := newMatcher(Query{}, r.names.SubjectPrefix(), kind)
	return m.record(r.stream(kind), found), true, nil
}
