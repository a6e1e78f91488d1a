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

// Query selects unsettled timers. The zero Query selects all.
type Query struct {
	Namespace keys.Namespace
	Prefix    string    // the first bytes of the key
	ID        string    // bytes that the last part of the key contains
	States    []State   // empty: any
	From      time.Time // due then or later, by the Redis server's clock; the zero Time: no bound
	Before    time.Time // due before; the zero Time: no bound
}

// ParseQuery reads the text of a search field:
//
//	shop, pay:order, *:order       a namespace, as [keys.ParseNamespace] reads it
//	pay:order:callback:88, pay:    the beginning of keys, byte for byte: four parts, or a text that ends in a colon
//	pay:ord*                       the beginning of keys, byte for byte: the text before the star
//	pay:*:*:88                     a namespace of three parts with a star among them, and what ids in it contain
//
// An empty text selects all.
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

// has reports whether the query selects the timers of a key, judged by the key alone.
func (q Query) has(k keys.Key) bool {
	return q.Namespace.Match(k) && strings.Contains(k.ID, q.ID) &&
		(q.Prefix == "" || strings.HasPrefix(k.String(), q.Prefix))
}

// wants reports whether the query selects timers in a state.
func (q Query) wants(s State) bool { return len(q.States) == 0 || slices.Contains(q.States, s) }

// from and before return the bounds of the selected due times; before is exclusive.
func (q Query) from() schedule.Millis {
	if q.From.IsZero() {
		return schedule.AtOnce
	}
	// due times are whole ms
	return max(schedule.MillisOf(q.From.Add(time.Millisecond-time.Nanosecond)), schedule.AtOnce)
}

func (q Query) before() schedule.Millis {
	if q.Before.IsZero() {
		return schedule.Never
	}
	return schedule.MillisOf(q.Before.Add(time.Millisecond - time.Nanosecond))
}

// Place is a place in the order of all timers: by due time, and for the same due time by name in the index. The order
// is the same on one server and on many. A place stays valid when timers come and go, or slots move. The zero Place is
// the beginning.
type Place struct {
	due  schedule.Millis
	name string // after the entry of this name; empty: before all entries of the due time
}

// IsZero reports whether p is the beginning.
func (p Place) IsZero() bool { return p == Place{} }

// String returns p as ParsePlace reads it: letters, digits, - and _. The beginning is empty.
func (p Place) String() string {
	if p.IsZero() {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(append(binary.AppendUvarint(nil, uint64(max(p.due, 0))), p.name...))
}

// mostDue is later than any due time.
const mostDue = 1 << 52

// mostName is over the length of any entry's name, in bytes.
const mostName = keys.MaxKeyBytes + 64

// ParsePlace reads a text that String has returned.
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

// isBefore reports whether an entry comes after p.
func (p Place) isBefore(e entry) bool { return p.due < e.due || p.due == e.due && p.name < e.name }
