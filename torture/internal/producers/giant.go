package producers

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// Limits of timerd: of a payload in bytes, and of a hash's fields.
const (
	maxPayload = 256 << 10
	maxFields  = 1000
)

// giant is a timer with a payload of the largest size, or larger. A consumer retries some of the largest allowed ones.
// For others, a hostile consumer requests a retry with a payload that is too large.
func (l *life) giant() {
	kind := []history.Kind{history.Set, history.Timer}[l.random.IntN(2)]
	switch l.random.IntN(4) {
	case 0:
		l.manyFields()
	case 1:
		l.tooLarge(kind)
	default:
		l.largest(kind)
	}
}

// manyFields is a hash with more fields than timerd reads.
func (l *life) manyFields() {
	fields := []int{maxFields + 1, 13_000}[l.random.IntN(2)]
	l.do(history.Op{
		Key: l.key, Kind: history.Hash, Status: event.StatusTooLarge, Fields: fields, Attempt: 1,
		TTL: l.long().Milliseconds(),
	})
}

// tooLarge is a payload over the limit. timer_set refuses it.
func (l *life) tooLarge(kind history.Kind) {
	l.do(history.Op{
		Key: l.key, Kind: kind, Status: event.StatusTooLarge, Body: padded(l.n, maxPayload+1+l.random.IntN(maxPayload)),
		Attempt: 1, TTL: l.long().Milliseconds(),
	})
}

// largest is a payload of the largest size.
func (l *life) largest(kind history.Kind) {
	events := l.inbox.expect(l.key)
	defer l.inbox.forget(l.key)
	if !l.setTo(kind, l.between(300, 3000), padded(l.n, maxPayload), 1) {
		return
	}
	e, ok := l.await(events)
	if !ok {
		return
	}
	if e.Status == "" && l.random.IntN(2) == 0 {
		e.Data = []byte(padded(l.n, maxPayload+1))
		e.data = e.AppendJSON(nil)
	}
	l.retry(l.ctx, e, l.between(300, 1000), delayed)
}

// padded returns a payload of a size, different from the payloads of all other lives.
func padded(n, size int) string {
	head := fmt.Sprintf("%d:", n)
	return head + strings.Repeat("x", size-len(head))
}

// fieldsOf returns the names and values of a hash.
func fieldsOf(op history.Op) []any {
	if op.Fields == 0 {
		return []any{hashField, hashValue(op.Payload)}
	}
	all := make([]any, 0, 2*op.Fields)
	for i := range op.Fields {
		all = append(all, hashField+strconv.Itoa(i), "value")
	}
	return all
}
