package listener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// subscribeTimeout is how long a subscription may take to be confirmed.
const subscribeTimeout = 5 * time.Second

// session is one subscription.
type session struct {
	*Listener
	sub    *redis.PubSub
	canary *canary
	apps   *apps
}

// session subscribes once and follows the events until something ends it. It returns why.
func (l *Listener) session(parent context.Context) error {
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	flagsErr := enableFlags(ctx, l.rdb)

	s := &session{Listener: l, sub: l.rdb.Subscribe(ctx), canary: newCanary(l)}
	s.apps = newApps(l, s.sub)
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

	if err := l.node.StartHearing(ctx); err != nil {
		return err
	}
	defer l.node.StopHearing()
	if err := s.apps.refresh(ctx); err != nil {
		return err
	}
	l.Logger.Info("subscribed to keyspace events", "db", l.db, "namespaces", l.namespaces.String())

	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil) // before the wait
	wg.Go(func() { end(s.canary.run(ctx, flagsErr)) })
	wg.Go(func() { end(s.refreshApps(ctx)) })
	l.OnGap("subscribed")
	for {
		message, err := s.sub.Receive(ctx)
		switch m := message.(type) {
		case nil:
			if !redis.IsPermissionError(err) || ctx.Err() != nil || !s.apps.refuse(err) {
				return l.explain(ctx, err)
			}
		case *redis.Subscription:
			if !s.apps.confirm(m) {
				return errors.New("the client has reconnected behind our back")
			}
		case *redis.Message:
			if err := s.take(ctx, m); err != nil {
				return err
			}
		}
	}
}

// subscribe subscribes to what every session needs and waits until the server has confirmed it.
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
			s.node.StopHearing() // nobody hears them
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
			if !s.apps.confirm(m) {
				confirmed++
			}
		case *redis.Message:
			if err := s.take(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// refreshApps looks again for the apps that are known, whenever that is asked for, until ctx ends.
func (s *session) refreshApps(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.refresh:
			if err := s.apps.refresh(ctx); err != nil {
				return err
			}
		}
	}
}

// explain returns why the session was ended from within, or else the error that ended it.
func (l *Listener) explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// take sorts one message: a canary's, a message of the function library, or a hint. An error ends the session.
func (s *session) take(ctx context.Context, m *redis.Message) error {
	if m.Channel == keys.WakeChannel {
		if app, ok := strings.CutPrefix(m.Payload, keys.AppMessage); ok {
			return s.apps.announce(ctx, app)
		}
		if p, due, ok := keys.ParseWake(m.Payload); ok {
			s.OnWake(p, schedule.Millis(due))
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
		return s.canary.receive(key, event)
	}
	parsed, fault := keys.Parse(key)
	ours := !errors.Is(fault, keys.ErrNotTimer) && s.namespaces.Match(parsed)
	if ours && fault != nil && kind == schedule.Touched {
		s.OnRefused(key, fault)
	}
	if fault != nil || !ours && !s.apps.takes(parsed.App, kind) {
		return nil //nolint:nilerr // somebody else's key, or one that was refused
	}
	if !s.hints.add(schedule.Hint{Kind: kind, Key: key, Known: !ours}, s.canary.heardSince()) {
		return fmt.Errorf("dropped %d keyspace events that Redis was too slow to take in", maxHints)
	}
	return nil
}

// kindOf says what an event on a keyspace channel hints at, or 0 for nothing: expired comes on a channel of its own,
// and neither reading a missing key nor the creation of one says more than the event beside it.
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
