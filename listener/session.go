package listener

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// mostCompared limits the expired keys with which a claimed key is compared.
const mostCompared = 64

// subscribeTimeout bounds the confirmation of a subscription.
const subscribeTimeout = 5 * time.Second

// session is one subscription.
type session struct {
	rdb        *redis.Client
	db         int
	namespaces keys.Namespaces
	evidence   Evidence
	directory  Directory
	hints      *buffer
	coverage   Coverage
	reported   *reported
	canary     *canary
	apps       *apps
	log        *slog.Logger
	agenda     Agenda
	metrics    Metrics
	lag        func() time.Duration

	sub    *redis.PubSub
	change change // of the last message
	// expired has the keys of the expired events just read. A claim message usually follows and explains them. The keys
	// are valid until the next read.
	expired [][]byte

	keyspacePrefix string // of the channels of keys
	expiredChannel string
	canaryPrefix   []byte // of the keys of canaries
	claimedPrefix  []byte // of a message with claimed keys
	nextPrefix     []byte // of a message with the next due times
	claimsChannel  string // sharded channel of these messages in a cluster; "" if none
}

// change is the key that the last consecutive messages have set or changed. The zero value stands for anything else.
type change struct {
	key   string
	noted bool // the last hint of the key is the change's own
}

// run subscribes once and follows the events until something ends it. It returns the cause.
func (s *session) run(parent context.Context) error {
	ctx, end := context.WithCancelCause(parent)
	defer end(nil)
	_, flagsErr := enableFlags(ctx, s.rdb)

	s.keyspacePrefix, s.expiredChannel = keys.KeyspacePrefix(s.db), keys.ExpiredChannel(s.db)
	s.claimedPrefix, s.nextPrefix = []byte(keys.ClaimedMessage(s.db)), []byte(keys.NextMessage(s.db))
	s.canaryPrefix = []byte(keys.CanaryPrefix)
	client := s.client(ctx, end)
	defer func() { _ = client.Close() }()
	s.sub = client.Subscribe(ctx)
	s.apps.sub = s.sub
	// Only closing the subscription ends a read without a deadline. A deadline that ran out in the middle of a message
	// would garble the next message.
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

	// Until now messages waited unread. From here on they are read without a delay.
	defer s.evidence.StopHearing()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil) // before the wait
	wg.Go(func() { end(s.watch(ctx, flagsErr)) })
	wg.Go(func() { end(s.followClaims(ctx)) })
	return s.follow(ctx)
}

// watch lets other timerds rely on the events, and checks that they arrive, until ctx ends or the session does. It
// returns the cause. The messages are read meanwhile.
func (s *session) watch(ctx context.Context, flagsErr error) error {
	if err := s.evidence.StartHearing(ctx); err != nil {
		return err
	}
	if err := s.apps.begin(ctx); err != nil {
		return err
	}
	s.log.Info("subscribed to keyspace events", "db", s.db, "namespaces", s.namespaces.String())
	s.coverage.Gap("subscribed")
	failed := make(chan error, 2)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, end := context.WithCancelCause(ctx)
	wg.Go(func() { failed <- s.canary.run(ctx, flagsErr) })
	wg.Go(func() { failed <- s.refreshApps(ctx) })
	err := <-failed
	end(err)
	return err
}

// follow reads from the subscription, whose messages go to the session, until the session ends. It returns the cause.
func (s *session) follow(ctx context.Context) error {
	for {
		message, err := s.sub.Receive(ctx)
		switch m := message.(type) {
		case nil:
			if _, moved := redis.IsMovedError(err); moved { // the claims channel: followClaims finds the new one
				continue
			}
			if !redis.IsPermissionError(err) || ctx.Err() != nil || !s.apps.refuse(err) {
				return cause(ctx, err)
			}
		case *redis.Subscription:
			key, _ := strings.CutPrefix(m.Channel, s.keyspacePrefix)
			if !isClaimsChannel(m) && !s.canary.confirm(m, key) && !s.apps.confirm(m) {
				return errors.New("the client has reconnected by itself")
			}
		}
	}
}

// client returns a client like the listener's whose connections pass their messages to the session. An error of receive
// goes to end.
func (s *session) client(ctx context.Context, end context.CancelCauseFunc) *redis.Client {
	options := *s.rdb.Options()
	dial := options.Dialer
	options.Dialer = func(dialCtx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(dialCtx, network, address)
		if err != nil {
			return nil, err
		}
		noted := func(err error) error {
			if err != nil {
				end(err)
			}
			return err
		}
		return &pushConn{
			Conn: c, lag: s.lag,
			receive: func(channel, payload []byte) error { return noted(s.receive(ctx, channel, payload)) },
			caughtUp: func() {
				_ = noted(s.flushExpired())
				s.hints.caughtUp()
			},
		}, nil
	}
	return redis.NewClient(&options)
}

// subscribe subscribes to the channels that every session needs, and waits until the server has confirmed them.
func (s *session) subscribe(ctx context.Context) error {
	channels := []string{keys.ExpiredChannel(s.db), keys.WakeChannel}
	channels = append(channels, s.channelsOf(*s.canary.keys.Load())...)
	patterns := make([]string, len(s.namespaces))
	for i, n := range s.namespaces {
		patterns[i] = keys.KeyspacePattern(s.db, n)
	}
	refused := func(err error) error {
		err = cause(ctx, err)
		if redis.IsPermissionError(err) {
			s.evidence.StopHearing() // no subscription receives them
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
		if m, ok := message.(*redis.Subscription); ok && !s.apps.confirm(m) {
			confirmed++
		}
	}
	return s.subscribeClaims(ctx)
}

// subscribeClaims subscribes to the claims channel of a cluster's master. Without it each expired event costs a call;
// none is lost.
func (s *session) subscribeClaims(ctx context.Context) error {
	channel := s.directory.ClaimedChannel()
	if channel == keys.WakeChannel {
		return nil
	}
	if err := s.sub.SSubscribe(ctx, channel); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	_, err := s.sub.Receive(ctx)
	var refused redis.Error
	switch _, moved := redis.IsMovedError(err); {
	case err == nil || moved:
		s.claimsChannel = channel
	case !errors.As(err, &refused):
		return fmt.Errorf("subscribe: %w", cause(ctx, err))
	case !s.reported.warnedNoClaims:
		s.reported.warnedNoClaims = true
		s.log.Warn("cannot subscribe to messages about claims, which costs Redis more; allow the user SSUBSCRIBE, "+
			"SUNSUBSCRIBE and SPUBLISH", "err", err)
	}
	return nil
}

// followClaims moves to the new claims channel after the cluster's slots have moved, until ctx ends.
func (s *session) followClaims(ctx context.Context) error {
	tick := time.NewTicker(s.canary.interval)
	defer tick.Stop()
	for s.claimsChannel != "" {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		channel := s.directory.ClaimedChannel()
		if channel == s.claimsChannel {
			continue
		}
		// Claims that are announced on the old channel meanwhile are missed here: the schedule is asked about their
		// events.
		if err := errors.Join(s.sub.SUnsubscribe(ctx, s.claimsChannel), s.sub.SSubscribe(ctx, channel)); err != nil {
			return fmt.Errorf("subscribe: %w", err)
		}
		s.claimsChannel = channel
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

// isClaimsChannel reports whether a confirmation is about the claims channel.
func isClaimsChannel(m *redis.Subscription) bool {
	return m.Kind == "ssubscribe" || m.Kind == "sunsubscribe"
}

// refreshApps reads the known apps, and again after each audit, until ctx ends.
func (s *session) refreshApps(ctx context.Context) error {
	if err := s.apps.refresh(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.coverage.Audited():
			if err := s.apps.refresh(ctx); err != nil {
				return err
			}
		}
	}
}

// moveCanaries moves the subscription to the events of other canaries' keys.
func (s *session) moveCanaries(ctx context.Context, to, from []string) error {
	err := errors.Join(s.sub.Subscribe(ctx, s.channelsOf(to)...), s.sub.Unsubscribe(ctx, s.channelsOf(from)...))
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// channelsOf returns the channels of the events of some keys.
func (s *session) channelsOf(names []string) []string {
	channels := make([]string, len(names))
	for i, name := range names {
		channels[i] = s.keyspacePrefix + name
	}
	return channels
}

// cause returns the cause for which the session ended itself, or else err.
func cause(ctx context.Context, err error) error {
	if within := context.Cause(ctx); within != nil {
		return within
	}
	return err
}

// receive dispatches one message: of a canary, of the function library, of a claim, or a hint. An error ends the
// session.
func (s *session) receive(ctx context.Context, channel, payload []byte) error {
	last := s.change
	s.change = change{}
	keyspace := len(channel) > len(s.keyspacePrefix) && string(channel[:len(s.keyspacePrefix)]) == s.keyspacePrefix
	own := string(channel) == keys.WakeChannel || keys.IsClaimedChannel(channel)
	switch {
	case keyspace && string(payload) == expired:
		return nil // expired has a channel of its own
	case string(channel) == s.expiredChannel &&
		(!bytes.HasPrefix(payload, s.canaryPrefix) || !s.canary.owns(string(payload))):
		s.expired = append(s.expired, payload)
		return nil
	case own && len(payload) == 0:
		return nil // a client counts the subscribers
	case own:
		if claimed, ok := bytes.CutPrefix(payload, s.claimedPrefix); ok {
			s.explain(claimed)
			return nil
		}
		if next, ok := bytes.CutPrefix(payload, s.nextPrefix); ok {
			s.receiveNext(string(next))
			return nil
		}
	}
	if err := s.flushExpired(); err != nil { // before the hint of this message
		return err
	}
	switch {
	case keyspace:
		kind := kindOf(payload)
		if kind == 0 {
			return nil
		}
		return s.hint(string(channel[len(s.keyspacePrefix):]), payload, kind, last)
	case string(channel) == s.expiredChannel:
		return s.hint(string(payload), []byte(expired), schedule.Expired, last)
	case own:
		return s.receiveWake(ctx, payload, last)
	}
	return nil
}

// explain drops the expired events and hints of keys whose timers were claimed after them.
func (s *session) explain(claimed []byte) {
	if len(s.expired) > 0 {
		// Events and claims come in the same order. The schedule is asked about the other hints.
		at := 0
		for key := range keys.ParseClaimed(claimed) {
			for i := range min(len(s.expired), mostCompared) {
				if j := (at + i) % len(s.expired); bytes.Equal(s.expired[j], key) {
					s.expired[j], at = nil, j+1
					break
				}
			}
		}
		s.expired = slices.DeleteFunc(s.expired, func(key []byte) bool { return key == nil })
	}
	s.hints.explain(claimed)
}

// flushExpired adds the expired events that no claim has explained to the hints.
func (s *session) flushExpired() error {
	for _, key := range s.expired {
		if err := s.hint(string(key), []byte(expired), schedule.Expired, change{}); err != nil {
			return err
		}
	}
	s.expired = s.expired[:0]
	return nil
}

// receiveNext reads the next due times of the partitions of a claim.
func (s *session) receiveNext(message string) {
	at, next, ok := keys.ParseNext(message)
	if !ok {
		return
	}
	for p, due := range next {
		s.agenda.Claimed(p, schedule.Millis(at), schedule.Millis(due))
	}
}

// receiveWake reads a message of the function library. last is the change before it.
func (s *session) receiveWake(ctx context.Context, payload []byte, last change) error {
	text := string(payload)
	if app, ok := strings.CutPrefix(text, keys.AppMessage); ok {
		return s.apps.announce(ctx, app)
	}
	wake, ok := keys.ParseWake(text)
	if !ok || wake.Key != "" && wake.DB != s.db {
		return nil
	}
	if wake.Key != "" {
		s.metrics.Set()
	}
	if last.noted && last.key == wake.Key {
		s.hints.retract(wake.Key)
	}
	s.agenda.Wake(wake.Partition, schedule.Millis(wake.Due))
	return nil
}

// hint reads an event of a key. last is the change before it.
func (s *session) hint(key string, event []byte, kind schedule.HintKind, last change) error {
	if s.canary.owns(key) {
		return s.canary.receive(key, string(event))
	}
	parsed, fault := keys.Parse(key)
	ours := !errors.Is(fault, keys.ErrNotTimer) && s.namespaces.Match(parsed)
	if ours && fault != nil && kind == schedule.Touched {
		s.metrics.Refused(key, fault)
	}
	if fault != nil || !ours && !s.apps.takes(parsed.App, kind) {
		return nil //nolint:nilerr // somebody else's key, or one that was refused
	}
	noted, fits := s.hints.hear(schedule.Hint{Kind: kind, Key: key, Known: !ours}, s.canary.heardSince())
	if !fits {
		return fmt.Errorf("dropped %d keyspace events, because Redis was too slow to process them", maxHints)
	}
	if kind == schedule.Touched {
		s.change = change{key, noted || last.noted && last.key == key}
	}
	return nil
}

// expired is the name of the event of a key whose TTL ran out.
const expired = "expired"

// kindOf returns the kind of the hint in an event on a keyspace channel. It returns 0 for events without a hint:
// expired has a channel of its own, and the read of a missing key, or the creation of a key, adds nothing to the other
// events.
func kindOf(event []byte) schedule.HintKind {
	switch string(event) {
	case expired, "keymiss", "new":
		return 0
	case "del", "rename_from", "move_from":
		return schedule.Gone
	case "evicted":
		return schedule.Evicted
	}
	return schedule.Touched
}
