// Package history finds the events of timers, and the deliveries of webhooks, in the streams, newest first. A stream has no
// index of timers, so a search reads it in windows from its end back, for as long as somebody waits, and a later search
// continues there.
package history

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

const (
	// defaultWork is how long a search looks before it returns.
	defaultWork = time.Second
	// searches is how many may run at the same time.
	searches = 2

	defaultLimit = 50
	maxLimit     = 200
)

// Reader searches the streams of an installation. Its methods may be called concurrently; few run at a time, and the others
// wait.
type Reader struct {
	js    jetstream.JetStream
	names keys.Names
	slots chan struct{}
	log   absence // of the stream of deliveries
	first uint64  // messages in the first window

	// Work is how long a search runs before it returns its matches. Default: 1 s. It takes some 150 ms more, or
	// longer if NATS is slow.
	Work time.Duration
}

// New returns a Reader of the streams with these names. Give it a js with its own connection, because all else on the connection
// waits while it reads.
func New(js jetstream.JetStream, names keys.Names) *Reader {
	return &Reader{
		js: js, names: names, slots: make(chan struct{}, searches), log: absence{openTime: logOpenTime, lookTime: logLookTime},
		first: firstWindow, Work: defaultWork,
	}
}

// Page is the result of a search.
type Page struct {
	Records []Record // newest first
	Place   string   // where to continue; "" if the beginning of every readable stream was reached
	Looked  uint64   // messages that were read or passed over for this page
	// Since is the time since which all messages were searched, for this page and those before it. It is the zero Time
	// if the beginning of every stream was reached.
	Since   time.Time
	Streams []Reach // the same by stream; without the deliveries if they have no stream
}

// Reach is how far a stream was searched.
type Reach struct {
	Stream    string
	Kind      string    // keys.Fired, keys.Dead or keys.Delivery
	Messages  uint64    // how many the stream has
	Seq       uint64    // the first message searched; 0 if none was
	Since     time.Time // when it was stored
	Beginning bool      // there is none before it
	Missing   bool      // there is no such stream
	Away      string    // why it was not searched, or not further, though it may be there; "" if it was
}

// streams returns the streams that are searched. A place names them in this order: a new one comes last.
func (r *Reader) streams(q Query) []*cursor {
	var cursors []*cursor
	for _, kind := range []string{keys.Fired, keys.Dead, keys.Delivery} {
		if q.Kind == "" || q.Kind == kind {
			cursors = append(cursors, &cursor{
				js: r.js, stream: r.stream(kind), match: newMatcher(q, r.names.SubjectPrefix(), kind), size: r.first,
			})
		}
	}
	return cursors
}

// Search returns the matches of a query before a place, which an earlier page has named; "" is the end of the streams. It
// returns at most limit records, 50 if that is 0 and 200 at most, and some MiB of them. It ends after Work; the page may then be
// empty although there is more.
//
// Its error says what to do; it wraps ErrPlace if there is no such place. If something was found before the failure, the page
// and its place are valid beside the error. If the query is about several streams, it is no error that the stream of deliveries
// cannot be read: not all users may. If it does not answer, it is not asked for a minute, and a later page continues in it.
func (r *Reader) Search(ctx context.Context, q Query, place string, limit int) (Page, error) {
	s := search{cursors: r.streams(q), limit: defaultLimit}
	if limit > 0 {
		s.limit = min(limit, maxLimit)
	}
	places, err := parsePlace(place, len(s.cursors))
	if err != nil {
		return Page{}, err
	}
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return Page{}, ctx.Err()
	}
	missing := 0
	for i, c := range s.cursors {
		c.limit, c.place, c.optional = s.limit, places[i], i > 0 && c.match.kind == keys.Delivery
		err := r.log.read(ctx, c, r.log.openTime, c.open)
		if err != nil {
			return Page{}, err
		}
		if c.missing || c.away != nil {
			missing++
		}
	}
	if missing == len(s.cursors) {
		_, err := Open(ctx, r.js, s.cursors[0].stream)
		return Page{}, err
	}
	begin := s.page().Place
	for until := time.Now().Add(r.Work); !s.enough(); {
		// Matches in one stream may have to wait for another stream, so the search continues until the page has come further.
		c := s.newest()
		if err = r.log.read(ctx, c, r.log.lookTime, c.look); err != nil || !time.Now().Before(until) && s.page().Place != begin {
			break
		}
	}
	return s.page(), err
}

// search searches several streams in the order of time.
type search struct {
	cursors []*cursor
	limit   int
}

// newest returns the cursor that is the least far back, nil if all have reached the beginning.
func (s *search) newest() *cursor {
	var newest *cursor
	for _, c := range s.cursors {
		if !c.done() && (newest == nil || c.since.After(newest.since)) {
			newest = c
		}
	}
	return newest
}

// enough reports whether a page is full, or cannot be.
func (s *search) enough() bool {
	newest, bytes := s.newest(), 0
	for _, c := range s.cursors {
		bytes += c.bytes
	}
	return newest == nil || bytes >= heldBytes || len(s.ready()) >= s.limit
}

// ready returns the matches that are newer than everything not yet searched, newest first. Each stream keeps its order, even if
// the clocks of NATS differ.
func (s *search) ready() []Record {
	var all []Record
	left := make([]int, len(s.cursors))
	for i, c := range s.cursors {
		left[i] = len(c.found)
	}
	for {
		best, at := -1, time.Time{}
		for i, c := range s.cursors {
			switch {
			case left[i] > 0 && (best < 0 || !c.found[left[i]-1].Stored.Before(at)):
				best, at = i, c.found[left[i]-1].Stored
			case left[i] == 0 && !c.done() && (best < 0 || c.since.After(at)):
				best, at = i, c.since
			}
		}
		if best < 0 || left[best] == 0 {
			return all
		}
		left[best]--
		all = append(all, s.cursors[best].found[left[best]])
	}
}

// page returns the matches that are ready. The next page finds the rest again.
func (s *search) page() Page {
	p := Page{Records: s.ready()}
	bytes := 0
	for i, r := range p.Records {
		if bytes += len(r.Data); i == s.limit || i > 0 && bytes > heldBytes {
			p.Records = p.Records[:i]
			break
		}
	}
	next, done := make([]uint64, len(s.cursors)), true
	for i, c := range s.cursors {
		reach := Reach{Stream: c.stream, Kind: c.match.kind, Missing: c.missing, Messages: c.count, Seq: c.next, Since: c.since}
		told := 0
		for _, r := range p.Records {
			if r.Kind == c.match.kind {
				told++
			}
		}
		if told < len(c.found) {
			rest := c.found[len(c.found)-told-1]
			reach.Seq, reach.Since = rest.Seq+1, rest.Stored
		}
		next[i], p.Looked = reach.Seq, p.Looked+c.looked
		if c.away != nil {
			reach.Away = c.away.Error()
			if reach.Seq == 0 { // it was not opened
				next[i] = c.place
			}
		} else if reach.Beginning = reach.Seq <= c.first; !reach.Beginning {
			done = false
			if reach.Since.After(p.Since) {
				p.Since = reach.Since
			}
		}
		if !c.missing || c.match.kind != keys.Delivery { // most have no webhooks
			p.Streams = append(p.Streams, reach)
		}
	}
	if !done {
		p.Place = formatPlace(next)
	}
	return p
}
