// Package listener follows the keyspace events of one Redis server and hands what they hint at to the schedule.
//
// Redis sends these events to whoever listens at the moment, and never again. So the listener's second duty is to
// notice when it may have missed some: it reports every such gap, and somebody else answers it with an audit.
package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// The pauses between sessions, and between tries to take hints in.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 5 * time.Second
)

// unhealthyAfter is for how long Redis must have taken in no hints to count.
const unhealthyAfter = 3 * time.Second

// lastTake bounds what is done for hints that are left at the end.
const lastTake = time.Second

// Observer takes hints in.
type Observer interface {
	Observe(ctx context.Context, hints []schedule.Hint, heard time.Time) (schedule.Observed, error)
}

// Evidence is what the schedule knows of what can have been heard, and when.
type Evidence interface {
	StartHearing(ctx context.Context) error
	StopHearing()
	ReadClock(server, sent, received time.Time)
	Mark(ctx context.Context, info, canary string) error
}

// Directory says what the schedule has on the server.
type Directory interface {
	Apps(ctx context.Context) ([]string, error)
	AnyPartition() keys.Partition // whose keys the server takes
}

// Node is the part of the schedule on the server: a schedule.Node.
type Node interface {
	Observer
	Evidence
	Directory
}

// Coverage is told how far the events can be relied on. Its methods never block.
type Coverage interface {
	// Gap is called, once events flow again, after any time in which some may have been missed.
	Gap(reason string)
	// SetComplete is called with false when the events that adoption needs stay away although others come, and with true when
	// they are back.
	SetComplete(complete bool)
	// SetBeyond is called with true when there are apps outside the namespaces whose keys are not followed, so that only
	// audits find changes of them, and with false when there are none any more.
	SetBeyond(beyond bool)
	// Audited receives when some of the apps may have been forgotten.
	Audited() <-chan struct{}
}

// Listener follows one server. Set its fields before Run.
type Listener struct {
	rdb        *redis.Client
	node       Node
	coverage   Coverage
	db         int
	namespaces keys.Namespaces
	instance   string

	// Logger gets what happens to the subscription. Default: slog.Default().
	Logger *slog.Logger
	// CanaryInterval is how often a canary is sent; CanaryTimeout is for how long
	// one may stay away before events count as lost. Defaults: 1s and 3s.
	CanaryInterval, CanaryTimeout time.Duration

	// OnWake is called with the time at which the first timer of a partition is due, or schedule.AtOnce or Nothing: after
	// hints of it were taken in, and when a client has set that timer, of which in a cluster all servers tell.
	OnWake func(p keys.Partition, due schedule.Millis)
	// Busy tells whether timers are being fired as fast as possible: then expired events have time, because most are of
	// timers that will have fired shortly. It is called often. Default: they are not.
	Busy func() bool

	// OnObserved is called after each batch of hints was taken in.
	OnObserved func(schedule.Observed)
	// OnSet is called for each timer that the function library tells to have set. In a cluster, it does not tell.
	OnSet func()
	// OnRefused is called for a key in one of the namespaces that is too long.
	OnRefused func(key string, err error)

	hints      *hintBuffer
	beyond     bool   // what SetBeyond was last called with; the session's
	incomplete bool   // what SetComplete was last called with, negated; the canary's
	missing    string // what was last said to be missing; the canary's

	mu    sync.Mutex
	state error          // why events do not flow; nil while they do
	takes backoff.Outage // whether Redis takes hints in
}

// New returns a listener to the events of a database of the server that rdb
// talks to. instance tells this process from all others that use the server.
func New(rdb *redis.Client, node Node, coverage Coverage, db int, namespaces keys.Namespaces, instance string) *Listener {
	return &Listener{
		rdb: rdb, node: node, coverage: coverage, db: db, namespaces: namespaces, instance: instance,
		Logger:         slog.Default(),
		CanaryInterval: time.Second,
		CanaryTimeout:  3 * time.Second,
		OnObserved:     func(schedule.Observed) {},
		OnWake:         func(keys.Partition, schedule.Millis) {},
		OnSet:          func() {},
		OnRefused:      func(string, error) {},
		Busy:           func() bool { return false },
		hints:          newHintBuffer(),
		state:          errors.New("not subscribed yet"),
	}
}

// Healthy returns nil while events flow and Redis takes in what they hint at, and otherwise what is wrong. That it does
// not take them in counts after some seconds.
func (l *Listener) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != nil {
		return l.state
	}
	if err := l.takes.Err(unhealthyAfter); err != nil {
		return fmt.Errorf("taking keyspace events in has been %w", err)
	}
	return nil
}

// noteTake notes how an attempt to have hints taken in ended.
func (l *Listener) noteTake(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takes.Note(err)
}

func (l *Listener) setState(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = err
}

// Run follows the events until ctx ends. Whatever fails is tried again.
func (l *Listener) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	l.hints.busy = l.Busy
	wg.Go(func() { l.observe(ctx) })

	retry := backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: l.Logger}
	for {
		began := time.Now()
		err := l.session(ctx)
		l.hints.flush() // before anything is said to be heard from then on
		if ctx.Err() != nil {
			return
		}
		l.setState(err)
		if time.Since(began) > 2*l.CanaryTimeout {
			retry.Succeed()
		}
		if !backoff.Sleep(ctx, retry.Fail("keyspace events do not flow; subscribing again", err)) {
			return
		}
	}
}

// observe hands the hints to the schedule, as many at a time as came while the last ones were taken in. Hints that
// Redis does not take are kept and tried again.
//
// What is left when ctx ends is handed over once, because nobody will hear it again; so calls to the schedule go on for
// a while.
func (l *Listener) observe(ctx context.Context) {
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastTake, end) })()

	late := newLateHints()
	for ctx.Err() == nil {
		hints, heard := l.hints.wait(ctx, late.pause())
		hints = late.append(hints, heard)
		for l.take(ctx, work, hints, heard, late) && late.pause() <= 0 {
			hints, heard = late.take()
		}
	}
	l.hints.flush()
	hints, heard, _ := l.hints.take()
	l.take(ctx, work, late.append(hints, heard), heard, late)
	hints, heard = late.take()
	l.take(ctx, work, hints, heard, late)
	if n := len(late.hints); n > 0 {
		l.Logger.Warn("ended while the slots of keys are moving; an audit follows at the next start", "waiting", n)
	}
}

// take hands hints to the schedule until it has taken them in, or they are late. It
// returns false if it failed after ctx had ended. work is for the calls.
func (l *Listener) take(ctx, work context.Context, hints []schedule.Hint, heard time.Time, late *lateHints) bool {
	for batch := range slices.Chunk(hints, schedule.MaxHints) {
		if batch = late.append(batch, heard); len(batch) > 0 && !l.takeBatch(ctx, work, batch, heard, late) {
			return false
		}
	}
	return true
}

func (l *Listener) takeBatch(ctx, work context.Context, hints []schedule.Hint, heard time.Time, late *lateHints) bool {
	retry := backoff.Backoff{Policy: backoff.Policy{First: firstPause, Longest: longestPause}, Logger: l.Logger}
	for {
		asked := time.Now()
		seen, err := l.node.Observe(work, hints, heard)
		if moving, ok := errors.AsType[*schedule.MovingError](err); ok {
			if !late.add(moving.Hints, heard) {
				l.coverage.Gap("slots moved for too long")
			}
			err = nil
		}
		l.noteTake(err)
		if err == nil {
			for _, h := range seen.Heads {
				l.OnWake(h.Partition, h.Due)
			}
			l.OnObserved(seen)
			overtaken := l.hints.keep(seen.Left, asked)
			return len(overtaken) == 0 || l.takeBatch(ctx, work, overtaken, asked, late)
		}
		if ctx.Err() != nil {
			l.Logger.Warn("ended with keyspace events not taken in; an audit follows at the next start", "err", err, "waiting", len(hints))
			return false
		}
		backoff.Sleep(ctx, retry.Fail("keyspace events wait: Redis does not take them", err, "waiting", len(hints)))
	}
}
