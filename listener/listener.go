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
	"strconv"
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
)

// Observer is the part of the schedule that takes hints in.
type Observer interface {
	Observe(ctx context.Context, hints []schedule.Hint, since int64) (schedule.Observed, error)
}

// Listener follows one server. Set its fields before Run.
type Listener struct {
	rdb        *redis.Client
	observer   Observer
	db         int
	namespaces keys.Namespaces
	canaryKey  string

	// Logger gets what happens to the subscription. Default: slog.Default().
	Logger *slog.Logger
	// CanaryInterval is how often a canary is sent; CanaryTimeout is for how long
	// one may stay away before events count as lost. Defaults: 1s and 3s.
	CanaryInterval, CanaryTimeout time.Duration

	// OnObserved is called after each batch of hints was taken in.
	OnObserved func(schedule.Observed)
	// OnWake is called when a client has set a timer, due at the given unix ms,
	// that is the first to be due.
	OnWake func(due int64)
	// OnSince is called with the unix ms, on the server's clock, from when on every
	// event is heard, and with schedule.NoEvents when that is over.
	OnSince func(since int64)
	// OnGap is called, once events flow again, after any time in which some may
	// have been missed.
	OnGap func(reason string)
	// OnComplete is called with false when the events that adoption needs stay
	// away although others come, and with true when they are back.
	OnComplete func(complete bool)
	// OnRefused is called for a key in one of the namespaces that is too long.
	OnRefused func(key string, err error)

	hints      hintBuffer
	since      atomic.Int64
	incomplete bool // what OnComplete was last told, negated; the canary's

	mu    sync.Mutex
	state error // why events do not flow; nil while they do
}

// New returns a listener to the events of a database of the server that rdb
// talks to. instance tells this process from all others that use the server.
func New(rdb *redis.Client, observer Observer, db int, namespaces keys.Namespaces, instance string) *Listener {
	l := &Listener{
		rdb: rdb, observer: observer, db: db, namespaces: namespaces,
		canaryKey:      keys.CanaryKey(instance),
		Logger:         slog.Default(),
		CanaryInterval: time.Second,
		CanaryTimeout:  3 * time.Second,
		OnObserved:     func(schedule.Observed) {},
		OnWake:         func(int64) {},
		OnSince:        func(int64) {},
		OnGap:          func(string) {},
		OnComplete:     func(bool) {},
		OnRefused:      func(string, error) {},
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
	wg.Go(func() { l.observe(ctx) })

	backoff, said, saidAt := minBackoff, "", time.Time{}
	for attempt := 1; ; attempt++ {
		began := time.Now()
		err := l.session(ctx)
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

// session subscribes once and follows the events until something ends it. It
// returns why.
func (l *Listener) session(parent context.Context) error {
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	flagsErr := enableFlags(ctx, l.rdb)

	sub := l.rdb.Subscribe(ctx)
	// Closing the subscription is the only way to end a read without a deadline,
	// and a deadline that ran out in the middle of a message would garble the next.
	unsubscribe := func() { _ = sub.Close() }
	defer unsubscribe()
	defer context.AfterFunc(ctx, unsubscribe)()

	channels := []string{keys.ExpiredChannel(l.db), keys.KeyspacePrefix(l.db) + l.canaryKey, keys.WakeChannel}
	patterns := make([]string, len(l.namespaces))
	for i, n := range l.namespaces {
		patterns[i] = keys.KeyspacePattern(l.db, n)
	}
	refused := func(err error) error {
		if redis.IsPermissionError(err) {
			return fmt.Errorf("subscribe: %w; the user needs the channels %q", err, append(channels, patterns...))
		}
		return fmt.Errorf("subscribe: %w", err)
	}
	if err := sub.Subscribe(ctx, channels...); err != nil {
		return refused(err)
	}
	if len(patterns) > 0 {
		if err := sub.PSubscribe(ctx, patterns...); err != nil {
			return refused(err)
		}
	}

	slow := time.AfterFunc(subscribeTimeout, func() {
		end(fmt.Errorf("subscribe: not confirmed within %s", subscribeTimeout))
	})
	defer slow.Stop()
	for confirmed := 0; confirmed < len(channels)+len(patterns); {
		message, err := sub.Receive(ctx)
		if err != nil {
			return refused(l.explain(ctx, err))
		}
		switch m := message.(type) {
		case *redis.Subscription:
			confirmed++
		case *redis.Message:
			if err := l.take(m, nil); err != nil {
				return err
			}
		}
	}
	if !slow.Stop() {
		return context.Cause(ctx)
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil) // before the wait
	c := newCanary(l)
	wg.Go(func() { end(c.run(ctx, flagsErr)) })
	// From some time before this reading on.
	since, err := l.rdb.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("read the server's clock: %w", err)
	}
	l.setSince(since.UnixMilli())
	defer l.setSince(schedule.NoEvents)
	l.Logger.Info("subscribed to keyspace events", "db", l.db, "namespaces", l.namespaces.String())
	l.OnGap("subscribed")
	for {
		message, err := sub.Receive(ctx)
		if err != nil {
			return l.explain(ctx, err)
		}
		switch m := message.(type) {
		case *redis.Subscription:
			return errors.New("the client has reconnected behind our back")
		case *redis.Message:
			if err := l.take(m, c); err != nil {
				return err
			}
		}
	}
}

// explain returns why the session was ended from within, or else the error
// that ended it.
func (l *Listener) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// take sorts one message: a canary's, a wake-up, or a hint. An error ends the
// session, because events were lost.
func (l *Listener) take(m *redis.Message, c *canary) error {
	if m.Channel == keys.WakeChannel {
		if due, err := strconv.ParseInt(m.Payload, 10, 64); err == nil {
			l.OnWake(due)
		}
		return nil
	}
	key, event, kind := m.Payload, "expired", schedule.Expired
	if name, ok := keys.KeyspaceKey(l.db, m.Channel); ok {
		key, event = name, m.Payload
		if kind = kindOf(event); kind == 0 && key != l.canaryKey {
			return nil
		}
	}
	if key == l.canaryKey {
		if c != nil {
			c.seen(event)
		}
		return nil
	}
	parsed, err := keys.Parse(key)
	if errors.Is(err, keys.ErrNotTimer) || !l.namespaces.Match(parsed) {
		return nil
	}
	if err != nil {
		if kind == schedule.Touched {
			l.OnRefused(key, err)
		}
		return nil
	}
	if !l.hints.add(schedule.Hint{Kind: kind, Key: key}) {
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
func (l *Listener) observe(ctx context.Context) {
	backoff := minBackoff
	for {
		hints := l.hints.wait(ctx)
		if hints == nil {
			return
		}
		for len(hints) > 0 {
			n := min(len(hints), schedule.MaxHints)
			seen, err := l.observer.Observe(ctx, hints[:n], l.since.Load())
			if err == nil {
				l.OnObserved(seen)
				hints, backoff = hints[n:], minBackoff
				continue
			}
			if ctx.Err() != nil {
				return
			}
			if backoff == minBackoff {
				l.Logger.Warn("keyspace events wait: Redis does not take them", "err", err, "waiting", len(hints))
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(backoff):
			}
			backoff = min(2*backoff, maxBackoff)
		}
	}
}
