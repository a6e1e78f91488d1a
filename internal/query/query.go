package query

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Query says which timers are meant, of those that are not settled. The zero Query means all.
type Query struct {
	Namespace keys.Namespace
	Prefix    string    // the first bytes of the key
	ID        string    // bytes that the last part of the key contains
	States    []State   // empty: any
	From      time.Time // due then or later, by the Redis server's clock; the zero Time: no bound
	Before    time.Time // due before; the zero Time: no bound
}

// ParseQuery reads what is typed into a search field:
//
//	shop, pay:order, *:order       a namespace, as [keys.ParseNamespace] reads it
//	pay:order:callback:88, pay:    what keys begin with, byte for byte: a text of four parts, or one that ends in a colon
//	pay:ord*                       likewise, without the star
//	pay:*:*:88                     a namespace of three parts with a star among them, and what ids in it contain
//
// An empty text means all.
func ParseQuery(text string) (Query, error) {
	parts := strings.SplitN(text, ":", 4)
	last := parts[len(parts)-1]
	switch {
	case text == "":
		return Query{}, nil
	case len(parts) == 4 && slices.Contains(parts[:3], "*"):
		n, err := keys.ParseNamespace(strings.Join(parts[:3], ":"))
		return Query{Namespace: n, ID: last}, err
	case len(parts) == 4, last == "":
		return Query{Prefix: text}, nil
	case len(last) > 1 && strings.HasSuffix(last, "*"):
		return Query{Prefix: strings.TrimSuffix(text, "*")}, nil
	}
	n, err := keys.ParseNamespace(text)
	return Query{Namespace: n}, err
}

// has tells whether the timers of a key are meant, as far as that depends on the key.
func (q Query) has(k keys.Key) bool {
	return q.Namespace.Match(k) && strings.Contains(k.ID, q.ID) && (q.Prefix == "" || strings.HasPrefix(k.String(), q.Prefix))
}

// wants tells whether timers in a state are meant.
func (q Query) wants(s State) bool { return len(q.States) == 0 || slices.Contains(q.States, s) }

// from and before return the first due time that is meant, and the first one that is not any more.
func (q Query) from() schedule.Millis {
	if q.From.IsZero() {
		return schedule.AtOnce
	}
	return max(schedule.MillisOf(q.From.Add(time.Millisecond-time.Nanosecond)), schedule.AtOnce) // as due times are whole ms
}

func (q Query) before() schedule.Millis {
	if q.Before.IsZero() {
		return schedule.Never
	}
	return schedule.MillisOf(q.Before.Add(time.Millisecond - time.Nanosecond))
}

// Place is a place in the order of all timers: that of their due times and, of the same due time, of their names in the
// index. It is the same on one server and on many, and stays what it is when timers come and go, or slots move. The zero Place is
// the beginning.
type Place struct {
	due  schedule.Millis
	name string // after the entry of this name; empty: before all entries of the due time
}

// IsZero tells whether p is the beginning.
func (p Place) IsZero() bool { return p == Place{} }

// String returns p as ParsePlace reads it: letters, digits, - and _. That of the beginning is empty.
func (p Place) String() string {
	if p.IsZero() {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(binary.AppendUvarint(nil, uint64(max(p.due, 0))), p.name...))
}

// mostDue is later than any due time.
const mostDue = 1 << 52

// mostName is more bytes than the name of an entry has.
const mostName = keys.MaxKeyBytes + 64

// ParsePlace reads what String returned.
func ParsePlace(text string) (Place, error) {
	if text == "" {
		return Place{}, nil
	}
	said, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return Place{}, fmt.Errorf("not a place in a list of timers: %w", err)
	}
	due, n := binary.Uvarint(said)
	if n <= 0 || due >= mostDue || len(said)-n > mostName {
		return Place{}, errors.New("not a place in a list of timers")
	}
	return Place{due: schedule.Millis(due), name: string(said[n:])}, nil
}

// isBefore tells whether an entry comes after p.
func (p Place) isBefore(e entry) bool { return p.due < e.due || p.due == e.due && p.name < e.name }
