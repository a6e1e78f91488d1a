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
	// watchInterval is the interval of looks at Redis and the streams.
	watchInterval = 2 * time.Second
	// markPause is the pause before another try to mark a stream.
	markPause = time.Minute
	// twinInterval is the interval of questions to the installation's other timerds for their Redis. After an answer of
	// another Redis the next question comes after twinAgain: that timerd may be in the middle of a failover.
	twinInterval = 30 * time.Second
	twinAgain    = 5 * time.Second
	twinTime     = time.Second
	// If nobody received mostUnheard questions in a row and NATS is there, the right to ask is missing: the next one
	// comes after unheardPause.
	mostUnheard  = 3
	unheardPause = 10 * time.Minute
)

// state holds the results of a member's checks of Redis and the streams.
type state struct {
	id             string
	joined         bool  // Redis has the identity
	foreignRedis   error // Redis belongs to another installation now
	foreignStreams error // streams belong to another installation
	unread         error // the identity in Redis cannot be read
	twin           error // a timerd of the installation serves another Redis

	unmarked error // a stream has no mark, and gets none
	unasked  bool  // other timerds cannot be asked for their Redis
}

// Permit returns nil while the streams are the installation's, as far as known, and otherwise the fault: then timerd
// must not publish to them or take from them. Timers wait in Redis, and retry requests in their stream, so nothing is
// lost; and no event gets into a stream where it could pass for another installation's. It answers from memory.
func (m *Member) Permit() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.state.foreignRedis, m.state.foreignStreams)
}

// Healthy is Permit with further faults for an operator: the identity in Redis cannot be read, or a timerd of the same
// installation serves another Redis, as after the start of a copy of Redis.
func (m *Member) Healthy() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return errors.Join(m.state.foreignRedis, m.state.foreignStreams, m.state.unread, m.state.twin)
}

// Guarded returns nil while the member can guard the installation against another one, and otherwise the missing
// protections. Timers fire meanwhile.
func (m *Member) Guarded() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var cannot []string
	if m.state.unasked {
		cannot = append(cannot,
			"other timerds of this installation cannot be asked whether they serve the same Redis, so a running copy "+
				"of it would not be noticed")
	}
	if m.state.unmarked != nil {
		cannot = append(cannot,
			"a stream has no mark of this installation, so another one may take it for its own: "+
				m.state.unmarked.Error())
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

// Run looks at Redis and the streams again and again until ctx ends. It restores a lost identity, and notices if Redis
// or a stream belongs to another installation. At the end, the member stops answering questions. Call it once.
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

// look looks at both sides once. A side that cannot be read keeps its last state.
func (m *Member) look(ctx context.Context) {
	id, err := m.site.read(ctx)
	was := m.ID()
	if err == nil && id == "" {
		if id, err = m.site.put(ctx, cmp.Or(was, newID())); err == nil && was != "" {
			m.log.Warn("Redis has lost the identity of the installation; restoring it", "installation", was)
		}
	}
	if err == nil && was == "" { // unknown at the start
		m.log.Info("read this Redis's installation", "installation", id)
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
		return // the publisher's own check reports this
	}
	foreign := m.foreign(owners)
	m.update(func(s *state) { s.foreignStreams = foreign })
	if err == nil && m.Permit() == nil {
		m.mark(ctx, owners) // else the next look tries again
	}
}

// changed returns an error if Redis has another identity than at the start.
func (m *Member) changed(id string) error {
	was := m.ID()
	if id == was {
		return nil
	}
	return fmt.Errorf("this Redis belonged to installation %.100q when timerd started and belongs to %.100q now, as "+
		"if its data had been replaced; "+
		"to fix it: restart timerd, which then checks the streams", was, id)
}

// lookForTwins asks the installation's other timerds for their Redis, until ctx ends.
func (m *Member) lookForTwins(ctx context.Context) {
	suspected := false
	unheard := 0 // questions in a row without even this member's answer
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

// errNoID means that no question is possible, because the installation is unknown yet.
var errNoID = errors.New("the installation is not known yet")

// twin asks the installation's other timerds for their Redis, once. It returns an error about a timerd that serves
// another Redis, and whether this member received the question itself. err means that the question could not be asked.
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
			twin = fmt.Errorf("%.100q is of the same installation %.100q and serves another Redis, which may be a "+
				"copy of this one; "+
				"to fix it: stop one of the two, or give it streams of its own with TIMERD_SUBJECT_PREFIX and "+
				"TIMERD_STREAM, delete %s in its Redis, and restart it",
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
