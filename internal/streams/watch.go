package streams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

const (
	// watchInterval is how often Redis and the streams are looked at.
	watchInterval = 2 * time.Second
	// markPause is how long to wait before another try to mark a stream.
	markPause = time.Minute
	// twinInterval is how often others of the installation are asked which Redis they serve, and twinAgain how soon one
	// that serves another Redis is asked again: it may be in the middle of a failover.
	twinInterval = 30 * time.Second
	twinAgain    = 5 * time.Second
	twinTime     = time.Second
	// After mostUnheard questions in a row that nobody heard though NATS is there, as without the rights to ask, the next
	// comes after unheardPause.
	mostUnheard  = 3
	unheardPause = 10 * time.Minute
)

// state is what a member knows.
type state struct {
	id             string
	joined         bool  // Redis has the identity
	foreignRedis   error // Redis belongs to another installation by now
	foreignStreams error // streams do
	unread         error // Redis does not tell
	twin           error // a timerd of the installation serves another Redis

	unmarked error // a stream has no mark, and gets none
	unasked  bool  // other timerds cannot be asked which Redis they serve
}

// Permit returns nil while the streams are the installation's, as far as is known, and otherwise what is wrong: then
// nothing is to be published to them or taken from them. Timers wait in Redis and retry requests in their stream, so
// nothing is lost, and nothing reaches a stream in which another installation's event could pass for it. It answers from
// memory.
func (m *Member) Permit() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.state.foreignRedis, m.state.foreignStreams)
}

// Healthy is Permit with what else an operator should know: that Redis does not tell its identity, or that a timerd of
// the same installation serves another Redis, as after a copy of Redis was started.
func (m *Member) Healthy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.state.foreignRedis, m.state.foreignStreams, m.state.unread, m.state.twin)
}

// Guarded returns nil while the member can do what guards the installation against another one, and otherwise what it
// cannot. Timers fire and are heard meanwhile.
func (m *Member) Guarded() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var cannot []string
	if m.state.unasked {
		cannot = append(cannot, "other timerds of this installation cannot be asked whether they serve the same Redis, so a running copy of it would not be noticed")
	}
	if m.state.unmarked != nil {
		cannot = append(cannot, "a stream has no mark of this installation, so another one may take it for its own: "+m.state.unmarked.Error())
	}
	if len(cannot) == 0 {
		return nil
	}
	return &diag.Fault{
		What:   strings.Join(cannot, "; "),
		Remedy: "give timerd's NATS user the rights in deploy/README.md, then restart timerd",
		Err:    m.state.unmarked,
	}
}

// Run looks at Redis and the streams again and again until ctx ends: it puts an identity back that one of them has lost,
// and notices one that has become another's. Then it ends the answers. Call it once.
func (m *Member) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			m.look(ctx)
			backoff.Sleep(ctx, watchInterval)
		}
	})
	wg.Go(func() { m.lookForTwins(ctx) })
	wg.Wait()
	return m.leave()
}

// look looks at both sides once. What cannot be read now is as it was before.
func (m *Member) look(ctx context.Context) {
	id, err := m.site.read(ctx)
	was := m.ID()
	if err == nil && id == "" {
		if id, err = m.site.put(ctx, cmp.Or(was, newID())); err == nil && was != "" {
			m.log.Warn("Redis has lost the identity of the installation, which is put back", "installation", was)
		}
	}
	if err == nil && was == "" { // it could not tell at the start
		m.log.Info("Redis tells its installation", "installation", id)
		m.streams.Installation = id
		err = m.enter(ctx, id)
	}
	foreignRedis := m.changed(id)
	m.update(func(s *state) {
		if s.unread = err; err == nil {
			s.foreignRedis, s.joined = foreignRedis, true
		}
	})
	within, cancel := context.WithTimeout(ctx, callTimeout)
	owners, failed := ownersOf(within, m.site.js, m.streams.configs()...)
	cancel()
	if failed != nil {
		return // the publisher's own look at the stream tells
	}
	foreign := m.foreign(owners)
	m.update(func(s *state) { s.foreignStreams = foreign })
	if err == nil && m.Permit() == nil {
		m.mark(ctx, owners) // or the next look does
	}
}

// changed returns an error if Redis has another identity than at the start.
func (m *Member) changed(id string) error {
	was := m.ID()
	if id == was {
		return nil
	}
	return fmt.Errorf("this Redis belonged to installation %.100q when timerd started and belongs to %.100q now, as if its data had been replaced; "+
		"to fix it: restart timerd, which then tells whether the streams fit", was, id)
}

// lookForTwins asks the others of the installation which Redis they serve, until ctx ends.
func (m *Member) lookForTwins(ctx context.Context) {
	suspected := false
	unheard := 0 // questions in a row that not even this member answered
	for {
		twin, heard, err := m.twin(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil, !m.site.js.Conn().IsConnected(): // Redis or NATS is away
		case !heard:
			unheard++
		default:
			unheard = 0
			m.update(func(s *state) {
				s.unasked = false
				if s.twin = nil; suspected {
					s.twin = twin
				}
			})
			suspected = twin != nil
		}
		pause := twinInterval
		switch {
		case unheard >= mostUnheard:
			pause = unheardPause
		case suspected || unheard > 0:
			pause = twinAgain
		}
		if unheard == mostUnheard {
			m.update(func(s *state) { s.unasked = true })
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// errNoID says that nobody can be asked, because it is not known yet for whom.
var errNoID = errors.New("the installation is not known yet")

// twin asks once. It returns an error about a timerd that serves another Redis, and whether this member has heard the
// question itself. err says that nobody could be asked.
func (m *Member) twin(ctx context.Context) (twin error, heard bool, err error) {
	isTwin := func(a Answer) bool { return a.Elsewhere() && a.Instance != m.instance }
	id := m.ID()
	if id == "" {
		return nil, false, errNoID
	}
	found, err := m.site.ask(ctx, id, "", twinTime, isTwin)
	for _, a := range found {
		heard = true
		if isTwin(a) {
			twin = fmt.Errorf("%.100q is of the same installation %.100q and serves another Redis, which may be a copy of this one; "+
				"to fix it: stop one of the two, or give it streams of its own with TIMERD_SUBJECT_PREFIX and TIMERD_STREAM, delete %s in its Redis, and restart it",
				a.Instance, id, keys.Installation)
		}
	}
	return twin, heard, err
}

func (m *Member) isJoining() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.state.joined
}

func (m *Member) update(change func(*state)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.state)
}
