// Package listener follows the keyspace events of one Redis server and hands
// what they hint at to the schedule.
//
// Redis sends these events to whoever listens at the moment, and never again.
// So the listener's second duty is to notice when it may have missed some: it
// reports every such gap, and somebody else answers it with an audit.
package listener

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Back-off between sessions, how long a subscription may take, and how often an
// error that stays the same is logged.
const (
	sayAgain         = time.Minute
	minBackoff       = 50 * time.Millisecond
	maxBackoff       = 5 * time.Second
	subscribeTimeout = 5 * time.Second
	// lastTake bounds what is done for hints that are left at the end.
	lastTake = time.Second
)

// maxApps is how many apps outside the namespaces are followed: as many as a
// partition remembers.
const maxApps = 1000

// Observer is the part of the schedule that takes hints in: that on the server.
type Observer interface {
	Observe(ctx context.Context, hints []schedule.Hint, since, heard int64) (schedule.Observed, error)
	Apps(ctx context.Context) ([]string, error)
	Home() keys.Partition // whose keys the server takes
}

// Listener follows one server. Set its fields before Run.
type Listener struct {
	rdb        *redis.Client
	observer   Observer
	db         int
	namespaces keys.Namespaces
	instance   string

	// Logger gets what happens to the subscription. Default: slog.Default().
	Logger *slog.Logger
	// CanaryInterval is how often a canary is sent; CanaryTimeout is for how long
	// one may stay away before events count as lost. Defaults: 1s and 3s.
	CanaryInterval, CanaryTimeout time.Duration

	// OnObserved is called after each batch of hints was taken in.
	OnObserved func(schedule.Observed)
	// OnWake is called when a client has set a timer, due at the given unix ms,
	// that is the first of its partition to be due. In a cluster, all servers tell.
	OnWake func(p keys.Partition, due int64)
	// OnSince is called with the unix ms, on the server's clock, from when on every
	// event is heard, and with schedule.NoEvents when that is over.
	OnSince func(since int64)
	// OnGap is called, once events flow again, after any time in which some may
	// have been missed.
	OnGap func(reason string)
	// OnComplete is called with false when the events that adoption needs stay
	// away although others come, and with true when they are back.
	OnComplete func(complete bool)
	// Busy tells whether timers are being fired as fast as possible: then expired
	// events have time, because most are of timers that will have fired shortly.
	// It is called often. Default: they are not.
	Busy func() bool
	// OnRefused is called for a key in one of the namespaces that is too long.
	OnRefused func(key string, err error)

	hints      *hintBuffer
	since      atomic.Int64
	clock      serverClock
	incomplete bool   // what OnComplete was last told, negated; the canary's
	missing    string // what was last said to be missing; the canary's

	mu    sync.Mutex
	state error // why events do not flow; nil while they do
}

// New returns a listener to the events of a database of the server that rdb
// talks to. instance tells this process from all others that use the server.
func New(rdb *redis.Client, observer Observer, db int, namespaces keys.Namespaces, instance string) *Listener {
	l := &Listener{
		rdb: rdb, observer: observer, db: db, namespaces: namespaces, instance: instance,
		Logger:         slog.Default(),
		CanaryInterval: time.Second,
		CanaryTimeout:  3 * time.Second,
		OnObserved:     func(schedule.Observed) {},
		OnWake:         func(keys.Partition, int64) {},
		OnSince:        func(int64) {},
		OnGap:          func(string) {},
		OnComplete:     func(bool) {},
		OnRefused:      func(string, error) {},
		Busy:           func() bool { return false },
		hints:          newHintBuffer(),
		state:          errors.New("not subscribed yet"),
	}
	l.since.Store(schedule.NoEvents)
	return l
}

// Healthy returns nil while events flow, and otherwise what is wrong.
func (l *Listener) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

func (l *Listener) setState(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = err
}

func (l *Listener) setSince(since int64) {
	l.since.Store(since)
	l.OnSince(since)
}

// Run follows the events until ctx ends. Whatever fails is tried again.
func (l *Listener) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	l.hints.busy = l.Busy
	wg.Go(func() { l.observe(ctx) })

	backoff, said, saidAt := minBackoff, "", time.Time{}
	for attempt := 1; ; attempt++ {
		began := time.Now()
		err := l.session(ctx)
		l.hints.flush() // before anything is said to be heard from then on
		if ctx.Err() != nil {
			return
		}
		l.setState(err)
		if time.Since(began) > 2*l.CanaryTimeout {
			backoff, attempt, said = minBackoff, 1, ""
		}
		if err.Error() != said || time.Since(saidAt) > sayAgain {
			l.Logger.Warn("keyspace events do not flow; subscribing again", "err", err, "attempt", attempt, "delay", backoff)
			said, saidAt = err.Error(), time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// session is one subscription.
type session struct {
	*Listener
	sub    *redis.PubSub
	canary *canary
	// followed has the apps in none of the namespaces for whose timers the
	// function library was called; asked has the patterns of their keys.
	followed, asked map[string]bool
}

// session subscribes once and follows the events until something ends it. It
// returns why.
func (l *Listener) session(parent context.Context) error {
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	flagsErr := enableFlags(ctx, l.rdb)

	s := &session{Listener: l, sub: l.rdb.Subscribe(ctx), canary: newCanary(l), followed: map[string]bool{}, asked: map[string]bool{}}
	// Closing the subscription is the only way to end a read without a deadline,
	// and a deadline that ran out in the middle of a message would garble the next.
	unsubscribe := func() { _ = s.sub.Close() }
	defer unsubscribe()
	defer context.AfterFunc(ctx, unsubscribe)()

	slow := time.AfterFunc(subscribeTimeout, func() {
		end(fmt.Errorf("subscribe: not confirmed within %s", subscribeTimeout))
	})
	defer slow.Stop()
	if err := s.subscribe(ctx); err != nil {
		return err
	}
	if !slow.Stop() {
		return context.Cause(ctx)
	}

	if err := l.hearFromNowOn(ctx); err != nil {
		return err
	}
	defer l.setSince(schedule.NoEvents)
	if err := s.followAll(ctx); err != nil {
		return err
	}
	l.Logger.Info("subscribed to keyspace events", "db", l.db, "namespaces", l.namespaces.String())

	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil) // before the wait
	wg.Go(func() { end(s.canary.run(ctx, flagsErr)) })
	l.OnGap("subscribed")
	for {
		message, err := s.sub.Receive(ctx)
		switch m := message.(type) {
		case nil:
			if !redis.IsPermissionError(err) || ctx.Err() != nil {
				return l.explain(ctx, err)
			}
			l.Logger.Warn("cannot follow the keys of timers outside the namespaces, so DEL and EXPIRE on them go unnoticed until an audit; allow the user these channels",
				"err", err, "channels", slices.Sorted(maps.Keys(s.asked)))
		case *redis.Subscription:
			if !s.asked[m.Channel] {
				return errors.New("the client has reconnected behind our back")
			}
		case *redis.Message:
			if err := s.take(ctx, m); err != nil {
				return err
			}
		}
	}
}

// hearFromNowOn notes that every event is heard from now on, by the server's
// clock.
func (l *Listener) hearFromNowOn(ctx context.Context) error {
	now, err := l.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	l.clock.read(now, time.Now())
	l.setSince(now.UnixMilli())
	return nil
}

// subscribe subscribes to what every session needs and waits until the server
// has confirmed it.
func (s *session) subscribe(ctx context.Context) error {
	channels := []string{keys.ExpiredChannel(s.db), keys.WakeChannel}
	for _, key := range s.canary.keys {
		channels = append(channels, keys.KeyspacePrefix(s.db)+key)
	}
	patterns := make([]string, len(s.namespaces))
	for i, n := range s.namespaces {
		patterns[i] = keys.KeyspacePattern(s.db, n)
	}
	refused := func(err error) error {
		err = s.explain(ctx, err)
		if redis.IsPermissionError(err) {
			return fmt.Errorf("subscribe: %w; the user needs the channels %q", err, slices.Concat(channels, patterns))
		}
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := s.sub.Subscribe(ctx, channels...); err != nil {
		return refused(err)
	}
	if len(patterns) > 0 {
		if err := s.sub.PSubscribe(ctx, patterns...); err != nil {
			return refused(err)
		}
	}
	for confirmed := 0; confirmed < len(channels)+len(patterns); {
		message, err := s.sub.Receive(ctx)
		if err != nil {
			return refused(err)
		}
		switch m := message.(type) {
		case *redis.Subscription:
			confirmed++
		case *redis.Message:
			if err := s.take(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// followAll follows the apps that the function library was called for so far.
func (s *session) followAll(ctx context.Context) error {
	apps, err := s.observer.Apps(ctx)
	if err != nil {
		return err
	}
	for _, app := range apps {
		if err := s.follow(ctx, app); err != nil {
			return err
		}
	}
	return nil
}

// follow subscribes to the keys of an app, unless a namespace has them all.
func (s *session) follow(ctx context.Context, app string) error {
	n := keys.Namespace{App: app}
	pattern := keys.KeyspacePattern(s.db, n)
	if s.namespaces.Cover(n) || s.followed[app] || len(s.followed) == maxApps {
		return nil
	}
	s.followed[app], s.asked[pattern] = true, true
	if err := s.sub.PSubscribe(ctx, pattern); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// explain returns why the session was ended from within, or else the error
// that ended it.
func (l *Listener) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// take sorts one message: a canary's, a message of the function library, or a
// hint. An error ends the session.
func (s *session) take(ctx context.Context, m *redis.Message) error {
	if m.Channel == keys.WakeChannel {
		if app, ok := strings.CutPrefix(m.Payload, keys.AppMessage); ok {
			return s.follow(ctx, app)
		}
		if p, due, ok := keys.ParseWake(m.Payload); ok {
			s.OnWake(p, due)
		}
		return nil
	}
	key, event, kind := m.Payload, "expired", schedule.Expired
	if name, ok := keys.KeyspaceKey(s.db, m.Channel); ok {
		key, event = name, m.Payload
		if kind = kindOf(event); kind == 0 {
			return nil
		}
	}
	if slices.Contains(s.canary.keys, key) {
		return s.canary.seen(key, event)
	}
	parsed, fault := keys.Parse(key)
	ours := !errors.Is(fault, keys.ErrNotTimer) && s.namespaces.Match(parsed)
	if ours && fault != nil && kind == schedule.Touched {
		s.OnRefused(key, fault)
	}
	if fault != nil || !ours && !s.followed[parsed.App] {
		return nil //nolint:nilerr // somebody else's key, or one that was refused
	}
	if !s.hints.add(schedule.Hint{Kind: kind, Key: key, Known: !ours}, s.canary.heardSince()) {
		return fmt.Errorf("dropped %d keyspace events that Redis was too slow to take in", maxHints)
	}
	return nil
}

// kindOf says what an event on a keyspace channel hints at, or 0 for nothing:
// expired comes on a channel of its own, and neither reading a missing key nor
// the creation of one says more than the event beside it.
func kindOf(event string) schedule.HintKind {
	switch event {
	case "expired", "keymiss", "new":
		return 0
	case "del", "rename_from", "move_from":
		return schedule.Gone
	case "evicted":
		return schedule.Evicted
	}
	return schedule.Touched
}

// observe hands the hints to the schedule, as many at a time as have gathered
// while the last ones were taken in. Hints that Redis does not take are kept
// and tried again.
//
// What is left when ctx ends is handed over once, because nobody will hear it again;
// so calls to the schedule go on for a while.
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
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		seen, err := l.observer.Observe(work, hints, l.since.Load(), l.clock.at(heard))
		if moving, ok := errors.AsType[*schedule.MovingError](err); ok {
			if !late.add(moving.Hints, heard) {
				l.OnGap("slots moved for too long")
			}
			err = nil
		}
		if err == nil {
			l.OnObserved(seen)
			return true
		}
		if ctx.Err() != nil {
			l.Logger.Warn("ended with keyspace events not taken in; an audit follows at the next start", "err", err, "waiting", len(hints))
			return false
		}
		if backoff == minBackoff {
			l.Logger.Warn("keyspace events wait: Redis does not take them", "err", err, "waiting", len(hints))
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff):
		}
	}
}
