package history

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// fromEnd is the place after the last message.
const fromEnd = math.MaxUint64

// cursor is the progress of one stream's search, from its newest message back.
type cursor struct {
	js     jetstream.JetStream
	stream string
	match  matcher
	limit  int // number of wanted records

	log     *absence      // the search works without the stream; nil if it does not
	logWait time.Duration // the Reader's LogWait
	missing bool          // there is no such stream
	away    error         // the reason why it cannot be searched, or not further
	place   uint64        // its beginning
	count   uint64        // its messages
	first   uint64        // its first message
	last    uint64
	average uint64 // bytes of a message

	next   uint64    // all messages from this sequence on were searched
	since  time.Time // all messages stored since then were searched
	found  []Record  // the matches among them, oldest first
	bytes  int       // of found
	looked uint64    // messages

	size uint64 // of the next window
	rare bool   // few messages are in the namespace
	mark uint64 // the last known message in the namespace, from next on; or the stream's last message
}

// open reads the bounds of the stream, and goes to the place in it.
func (c *cursor) open(ctx context.Context) error {
	stream, err := Open(ctx, c.js, c.stream)
	if errors.Is(err, ErrNoStream) {
		c.missing = true
		return nil
	}
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	c.count, c.first, c.last, c.since = state.Msgs, max(state.FirstSeq, 1), state.LastSeq, state.LastTime
	c.next, c.mark, c.average = min(c.place, c.last+1), c.last, 1
	if state.Msgs > 0 {
		c.average = max(state.Bytes/state.Msgs, 1)
		c.size = min(c.size, 1+heavyBytes/4/c.average)
	}
	if c.next <= c.last {
		return c.tellSince(ctx)
	}
	return c.jump(ctx)
}

// jump goes to the last message of the subject, if only one subject is searched, or only actions: NATS knows its place.
func (c *cursor) jump(ctx context.Context) error {
	if !c.match.one() && c.match.kind != keys.Operator || c.done() {
		return nil
	}
	m, ok, err := last(ctx, c.js, c.stream, c.match.filter)
	switch {
	case err != nil:
		return err
	case !ok:
		c.next = c.first
	default:
		c.next, c.mark, c.since = m.seq+1, m.seq, m.stored
	}
	return nil
}

// tellSince reads the stored time of the first message searched.
func (c *cursor) tellSince(ctx context.Context) error {
	m, ok, err := next(ctx, c.js, c.stream, ">", c.next)
	if err == nil && ok {
		c.since = m.stored
	}
	return err
}

// done reports whether the beginning of the stream was reached.
func (c *cursor) done() bool { return c.missing || c.away != nil || c.next <= c.first }

// look searches the next window of earlier messages. After an error it can be called again.
func (c *cursor) look(ctx context.Context) error {
	w := c.window()
	began := time.Now()
	err := w.look(ctx)
	switch {
	case errors.Is(err, errHeavy), w.slow(err):
		c.size, c.rare = max(c.size/16, 1), false
		return nil
	case errors.Is(err, errDense):
		c.rare = false
		return nil
	case err != nil:
		return err
	}
	if took := time.Since(began); !w.picks && took < windowTime/2 && w.read <= maxWindow/2 {
		c.size *= 2 // most of these sequences may belong to deleted messages
	} else if !w.picks && took > windowTime*2 {
		c.size = max(c.size/2, 1)
	}
	c.rare = !c.match.all() && w.covered*sparse < w.to-w.from
	if w.lowest > 0 {
		c.mark = w.lowest
	}
	c.looked += w.to - w.from + 1
	c.found, c.bytes, c.next = append(w.found, c.found...), c.bytes+w.bytes, w.from
	if c.since = w.since; c.since.IsZero() {
		return c.tellSince(ctx)
	}
	return nil
}

// window returns the next window to search.
func (c *cursor) window() *window {
	w := &window{cursor: c, from: c.first, to: c.next - 1}
	size, most := c.size, pickBytes/c.average
	if w.picks = c.rare && c.mark-min(c.mark, c.next) < most; w.picks {
		size = max(size, most)
	}
	if c.next-c.first > size {
		w.from = c.next - size
	}
	return w
}
