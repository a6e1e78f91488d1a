// Package history finds the events of timers, and the deliveries of webhooks, in the streams, newest first. A stream
// has no index of timers, so a search reads it in windows from its end back, for a limited time, and a later search
// continues there.
package history

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

const (
	// defaultWork is the duration of a search.
	defaultWork = time.Second
	// searches limits simultaneous searches.
	searches = 2

	defaultLimit = 50
	maxLimit     = 200
)

// Reader searches the streams of an installation. Its methods may be called concurrently; few run at a time, and the
// others wait.
type Reader struct {
	js    jetstream.JetStream
	names keys.Names
	slots chan struct{}
	logs  map[string]*absence // of the streams that not all users may read, by kind
	first uint64              // messages in the first window

	// Work is the time after which a search returns its matches. Default: 1 s. It takes some 150 ms more, or longer if
	// NATS is slow.
	Work time.Duration
	// LogWait is the longest wait for each answer about the deliveries or the history in a search of several streams.
	// Default: 1 s until the stream is open, 2 s for its messages.
	LogWait time.Duration
}

// New returns a Reader of the streams with these names. Give it a js with its own connection, because its reads delay
// everything else on the connection.
func New(js jetstream.JetStream, names keys.Names) *Reader {
	return &Reader{
		js: js, names: names, slots: make(chan struct{}, searches),
		logs:  map[string]*absence{keys.Delivery: {}, keys.History: {}},
		first: firstWindow, Work: defaultWork,
	}
}

// Page is the result of a search.
type Page struct {
	Records []Record // newest first
	Place   string   // where to continue; "" if the beginning of every readable stream was reached
	Looked  uint64   // messages read or skipped for this page
	// Since is the time since which all messages were searched, for this page and those before it. It is the zero Time
	// if the beginning of every stream was reached.
	Since   time.Time
	Streams []Reach // the same by stream and kind; without those of deliveries and the history if they do not exist
}

// Reach is the extent of a stream's search.
type Reach struct {
	Stream    string
	Kind      string    // keys.Fired, keys.Dead, keys.Delivery, keys.History or keys.Operator
	Messages  uint64    // number of messages in the stream
	Seq       uint64    // the first message searched; 0 if none was
	Since     time.Time // its stored time
	Beginning bool      // Seq is the stream's first message
	Missing   bool      // there is no such stream
	Away      string    // the reason why it was not searched, or not further, if it may exist; "" otherwise
}

// streams returns the streams that are searched. A place names them in this order, so a new stream comes last.
func (r *Reader) streams(q Query) []*cursor {
	var cursors []*cursor
	for _, kind := range []string{keys.Fired, keys.Dead, keys.Delivery, keys.History, keys.Operator} {
		ofHistory := kind == keys.History || kind == keys.Operator
		if q.Kind == "" && (!ofHistory || q.Key != (keys.Key{})) || q.Kind == kind {
			cursors = append(cursors, &cursor{
				js: r.js, stream: r.stream(kind), match: newMatcher(q, r.names.SubjectPrefix(), kind), size: r.first,
			})
		}
	}
	return cursors
}

// Search returns the matches of a query before a place, the Place of an earlier page; "" is the end of the streams. It
// returns at most limit records (default 50, at most 200), and some MiB of them. It ends after Work; the page may then
// be empty although there are more matches.
//
// Its error has the fix; it wraps ErrPlace for an invalid place. After finds, the page and its place are valid beside
// the error. For a query about several streams an unreadable stream of deliveries, or of the history, is no error: not
// all users have that right. If it does not answer, it is not asked for a minute, and a later page continues in it.
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
		c.limit, c.place = s.limit, places[i]
		if i > 0 {
			c.log, c.logWait = r.logs[c.match.isIn()], r.LogWait
		}
		err := c.do(ctx, openStep, c.open)
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
		// Matches in one stream may have to wait for another stream, so the search continues until the page has come
		// further.
		c := s.newest()
		if err = c.do(ctx, lookStep, c.look); err != nil || !time.Now().Before(until) &&
			s.page().Place != begin {
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

// newest returns the cursor with the latest position, nil if all have reached the beginning.
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

// ready returns the matches that are newer than all messages not yet searched, newest first. Each stream keeps its
// order, even if the clocks of NATS differ.
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

// page returns the ready matches. The next page finds the rest again.
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
		reach := Reach{Stream: c.stream, Kind: c.match.kind, Missing: c.missing, Messages: c.count, Seq: c.next,
			Since: c.since}
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
		if !c.missing || c.match.isIn() == keys.Fired || c.match.kind == keys.Dead { // most have no webhooks
			p.Streams = append(p.Streams, reach)
		}
	}
	if !done {
		p.Place = formatPlace(next)
	}
	return p
}
