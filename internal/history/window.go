package history

import (
	"context"
	"errors"
	"time"
)

const (
	// The size of a window in messages: large enough that creating a consumer is a small part of the work, and small
	// enough to read while a user waits.
	firstWindow = 1 << 12
	maxWindow   = 1 << 16
	windowTime  = 150 * time.Millisecond
	// heavyMessages and heavyBytes limit a read before the window is made smaller.
	heavyMessages = 2 * maxWindow
	heavyBytes    = 32 << 20
	// heldBytes limits the kept matches, in bytes.
	heldBytes = 4 << 20

	// If fewer than one message in sparse is in the namespace, each of them is requested alone, so that NATS skips the
	// rest. NATS stores nothing during such a search, so it may skip at most pickBytes.
	sparse    = 20
	pickBytes = 32 << 20
)

var (
	// errHeavy says that a window has too many bytes.
	errHeavy = errors.New("a window is too large")
	// errDense says that there are too many messages to request each alone.
	errDense = errors.New("a window has too many messages of a namespace")
)

// window is a part of a stream. It is read from its oldest message on, in NATS's order.
type window struct {
	*cursor
	from, to uint64 // both included
	picks    bool   // each message is requested alone

	read      int      // messages
	readBytes int      // of these
	found     []Record // oldest first
	bytes     int      // of found
	covered   uint64   // messages of the namespace
	lowest    uint64   // the first of them, 0 if there is none
	since     time.Time
}

// look searches the whole window, or its end if that already has enough matches.
func (w *window) look(ctx context.Context) error {
	if w.picks {
		return w.pick(ctx)
	}
	var heavy error
	err := each(ctx, w.js, w.stream, part{from: w.from, to: w.to}, func(m message) bool {
		if w.since.IsZero() {
			w.since = m.stored
		}
		heavy = w.consider(m)
		return heavy == nil
	})
	return errors.Join(err, heavy)
}

// pick requests each message of the namespace alone.
func (w *window) pick(ctx context.Context) error {
	from, to := w.from, w.to
	for seq := from; seq <= to; {
		m, ok, err := next(ctx, w.js, w.stream, w.match.filter, seq)
		if err != nil {
			return err
		}
		if !ok || m.seq > to {
			return nil
		}
		if err := w.consider(m); err != nil {
			return err
		}
		if w.covered*sparse > 2*(to-from+1) {
			return errDense
		}
		seq = m.seq + 1
	}
	return nil
}

// slow reports whether some messages came, but not all in time: a smaller window is readable.
func (w *window) slow(err error) bool {
	return w.log != nil && w.read > 0 && w.from < w.to && errors.Is(err, context.DeadlineExceeded)
}

// consider keeps a message if it matches. It returns errHeavy once the window is over its limits.
func (w *window) consider(m message) error {
	w.read++
	w.readBytes += len(m.data)
	if w.read > heavyMessages || w.readBytes > heavyBytes && w.read > 1 {
		return errHeavy
	}
	if w.match.covers(m.subject) {
		w.keep(m)
	}
	return nil
}

// keep keeps a message of the namespace if it matches.
func (w *window) keep(m message) {
	w.covered++
	if w.lowest == 0 {
		w.lowest = m.seq
	}
	if !w.match.may(m.data) {
		return
	}
	r := w.match.record(w.stream, m)
	if !w.match.match(r) {
		return
	}
	w.found, w.bytes = append(w.found, r), w.bytes+len(r.Data)
	for len(w.found) > w.limit || w.bytes > heldBytes && len(w.found) > 1 {
		w.bytes -= len(w.found[0].Data)
		w.found = w.found[1:]
		w.from, w.lowest, w.since = w.found[0].Seq, w.found[0].Seq, w.found[0].Stored
	}
}
