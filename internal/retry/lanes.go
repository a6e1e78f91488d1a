package retry

import (
	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

const (
	// maxLanes is of how many lanes something is remembered at most, besides those with tries.
	maxLanes = 20_000
	// timerShare and letterShare are the parts of the window that tries in lanes without trust may fill together, those
	// of timers and those of dead letters, which may take long. failingShare is up to which part another one may be in a
	// failing lane. serverShare is the part that tries on one server of a cluster may fill, so that those on others have room before it
	// is known that it does not answer.
	timerShare   = 2
	letterShare  = 4
	failingShare = 4
	serverShare  = 2
)

// lanes says which requests may be tried. What one request meets with, others may not: a slot of a Redis Cluster that is
// on the move, dead letters of a subject that NATS refuses, a full stream of dead letters. So each request is of a lane,
// of those that fail together: the subject of its dead letter, or else its key's part of the schedule.
//
//   - A lane is trusted once a request of it was carried out, and may fill the window.
//   - Lanes that nothing is known of may fill a share of the window together: of timers half, of dead letters a quarter.
//   - One is failing if the last try did. One request at a time tries it, as long as such tries fill no more than a
//     quarter of the window.
//
// Above the lanes by part of the schedule there are those by server, each of which may fill half of the window at most: a server that
// does not answer is one failure, not one for each of its slots.
//
// Requests that may not be tried are given back. Consumer.mu guards it.
type lanes struct {
	share     int // the part of the window that tries in lanes without trust may fill
	each      int // the part that those in one trusted lane may fill
	known     map[string]*lane
	untrusted int // tries in lanes without trust
}

type lane struct {
	tries            int
	trusted, failing bool
}

func newLanes(share, each int) lanes {
	return lanes{share: share, each: each, known: map[string]*lane{}}
}

// laneOfServer returns the lane of all requests to set timers again on a server.
func laneOfServer(name string) string { return "redis " + name }

// laneOfTimer returns the lane of a request to set a timer again in a partition.
func laneOfTimer(p keys.Partition) string { return "redis " + p.Prefix() }

// laneOfLetter returns the lane of a request that becomes a dead letter.
func laneOfLetter(prefix string, e *event.Event) string { return e.Key.Subject(prefix, keys.Dead) }

// enter returns the lane of that name if a request may be tried in it now, and else nil. window is how many requests
// are tried at once. Each enter that returns a lane takes a leave.
func (l *lanes) enter(name string, window int) *lane {
	on := l.known[name]
	if on == nil {
		on = &lane{}
		if len(l.known) >= maxLanes {
			l.forget()
		}
		l.known[name] = on
	}
	switch {
	case on.trusted && on.tries >= max(window/l.each, 1):
		return nil
	case on.trusted:
	case on.failing && (on.tries > 0 || l.untrusted >= max(window/failingShare, 1)), l.untrusted >= max(window/l.share, 1):
		return nil
	}
	on.tries++
	if !on.trusted {
		l.untrusted++
	}
	return on
}

// says is what the outcome of a try says of its lane.
type says int

const (
	nothing says = iota
	works
	fails
)

// leave ends a try. It returns whether it is news that the lane fails.
func (l *lanes) leave(on *lane, outcome says) (news bool) {
	on.tries--
	if !on.trusted {
		l.untrusted--
	}
	failed := outcome == fails
	switch {
	case outcome == nothing:
		return false
	case failed && on.trusted:
		l.untrusted += on.tries
	case !failed && !on.trusted:
		l.untrusted -= on.tries
	}
	news = failed && !on.failing
	on.trusted, on.failing = !failed, failed
	return news
}

// failing tells whether the lane of that name fails.
func (l *lanes) failing(name string) bool {
	on := l.known[name]
	return on != nil && on.failing
}

// restore takes it that the lane of that name works again.
func (l *lanes) restore(name string) {
	if on := l.known[name]; on != nil {
		on.failing = false
	}
}

// forget forgets half of the lanes without tries, those first that are not trusted.
func (l *lanes) forget() {
	left := maxLanes / 2
	for _, trusted := range []bool{false, true} {
		for name, on := range l.known { // in random order
			if on.tries == 0 && on.trusted == trusted && left > 0 {
				delete(l.known, name)
				left--
			}
		}
	}
}
