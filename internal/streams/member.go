package streams

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

const (
	// redisPatience is the time for reading the identity from Redis at the start, if the streams have one, or if a
	// cluster's master with the identity may be away while all others work; alonePatience is the time otherwise.
	redisPatience = 3 * time.Second
	alonePatience = 30 * time.Second
	// leastTry is the least time of one try.
	leastTry = 500 * time.Millisecond
	// askTime is the time to answer for the timerds of an identity that only the streams have.
	askTime = 2 * time.Second
	// lookAgain is the pause before another look at streams that another installation is marking.
	lookAgain = 100 * time.Millisecond
	// reservedTime is the time that another installation may take to mark them, or JetStream to forget a dead one.
	reservedTime = 15 * time.Second
	// callTimeout bounds a call to Redis or NATS.
	callTimeout = 2 * time.Second
)

// Member is one timerd of an installation. Its methods may be called concurrently.
type Member struct {
	instance string
	site     site
	streams  Config
	limits   limits
	log      *slog.Logger
	answers  *nats.Subscription

	markAfter time.Time // the next try to mark streams, after a failure; for Run's goroutine

	mu    sync.Mutex
	state state
}

// limits replaces the constants of the same names; tests set shorter ones.
type limits struct{ redisPatience, alonePatience, reservedTime time.Duration }

// site is the places of an identity.
type site struct {
	rdb   redis.UniversalClient
	js    jetstream.JetStream
	names keys.Names
}

// Join finds the installation of the timerd with the given instance id, and makes Redis and the streams agree on it. It
// creates missing streams. It returns an error with the fix if the streams are another installation's, or do not fit.
// Until its Run returns, the member answers questions for the installation over NATS.
func Join(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams Config, instance string,
	log *slog.Logger) (*Member, error) {
	return join(ctx, rdb, js, streams, instance, log, limits{redisPatience, alonePatience, reservedTime})
}

func join(ctx context.Context, rdb redis.UniversalClient, js jetstream.JetStream, streams Config, instance string,
	log *slog.Logger, l limits) (*Member, error) {
	m := &Member{instance: instance, site: site{rdb, js, streams.Names}, streams: streams, limits: l, log: log}
	if err := m.settle(ctx); err != nil {
		return nil, errors.Join(err, m.leave())
	}
	m.update(func(s *state) { s.joined = s.unread == nil })
	m.streams.Installation = m.ID()
	if err := m.claimStreams(ctx); err != nil {
		return nil, errors.Join(err, m.leave())
	}
	return m, nil
}

// ID returns the identity of the installation. It is empty while neither Redis nor the streams have one, because the
// cluster's master with it is away.
func (m *Member) ID() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state.id
}

// settle finds or creates the identity, and starts the member's answers.
func (m *Member) settle(ctx context.Context) error {
	owners, err := ownersOf(ctx, m.site.js, m.streams.configs()...)
	if err != nil {
		return err
	}
	owner := firstOwner(owners)
	patience := m.limits.redisPatience
	if owner == "" && !m.site.isCluster() {
		patience = m.limits.alonePatience
	}
	id, err := m.persistentlyRead(ctx, patience)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && owner != "" && !redis.IsPermissionError(err):
		// The streams name their installation. Run finds out later whether this Redis belongs to the same installation.
		m.log.Warn("this Redis's installation is unknown yet; using the installation of the streams", "installation",
			owner, "err", err)
		m.update(func(s *state) { s.unread = err })
		return m.enter(ctx, owner)
	case err != nil && m.site.isCluster() && !redis.IsPermissionError(err):
		m.log.Warn("this Redis's installation is unknown until the master with the identity is back; "+
			"until then the streams belong to none", "err", err)
		m.update(func(s *state) { s.unread = err })
		return nil
	case err != nil:
		return err
	case id != "":
		return m.enter(ctx, id)
	case owner == "":
		if id, err = m.site.put(ctx, newID()); err == nil {
			err = m.enter(ctx, id)
		}
		return err
	}
	m.streams.Installation = owner
	if err := m.foreign(owners); err != nil { // several installations own them
		return err
	}
	return m.settleAs(ctx, owner)
}

// settleAs gives a Redis without an identity the streams' identity, or a new one if another Redis has that.
func (m *Member) settleAs(ctx context.Context, owner string) error {
	// Timerds starting at the same time on another Redis ask too, and must be answered.
	if err := m.enter(ctx, owner); err != nil {
		return err
	}
	elsewhere, err := m.isElsewhere(ctx, owner)
	if err != nil {
		return err
	}
	id := owner
	if elsewhere { // kept even if that timerd is away later
		id = newID()
	}
	if id, err = m.site.put(ctx, id); err != nil {
		return err
	}
	if id == owner {
		m.log.Info("this Redis is new, or was flushed; giving it the streams' installation", "installation", owner)
		return nil
	}
	return errors.Join(m.leave(), m.enter(ctx, id))
}

// isElsewhere reports whether an installation belongs to another Redis: one of its timerds answers that serves another
// one, and none that serves this one. It returns an error if that is unknown.
func (m *Member) isElsewhere(ctx context.Context, id string) (bool, error) {
	found, err := m.site.ask(ctx, id, m.instance, askTime, Answer.isHere)
	switch {
	case err != nil:
		return false, err
	case slices.ContainsFunc(found, Answer.isHere):
		return false, nil
	case slices.ContainsFunc(found, Answer.Elsewhere):
		return true, nil
	}
	for _, a := range found {
		if a.Redis == unknownRedis {
			return false, fmt.Errorf(
				"this Redis belongs to no installation yet, and the streams to installation %.100q; its timerd %.100q "+
					"is running, "+
					"and does not reach its own Redis, so it is unknown whether that is this one; try again when it "+
					"does, or stop it", id, a.Instance)
		}
	}
	return false, nil // nobody answers, except starting timerds of this Redis
}

// enter makes the member part of an installation, and starts its answers.
func (m *Member) enter(ctx context.Context, id string) (err error) {
	m.update(func(s *state) { s.id = id })
	m.answers, err = m.answer(context.WithoutCancel(ctx), id)
	return err
}

// leave ends the answers.
func (m *Member) leave() error {
	if m.answers == nil {
		return nil
	}
	err := m.answers.Unsubscribe()
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrBadSubscription) {
		return nil
	}
	return err
}

// claimStreams creates the streams, and marks unmarked ones. If several installations do so at the same time, one gets
// them all.
func (m *Member) claimStreams(ctx context.Context) error {
	if err := Ensure(ctx, m.site.js, m.streams); err != nil {
		return err
	}
	for began := time.Now(); ; {
		owners, err := ownersOf(ctx, m.site.js, m.streams.configs()...)
		if err != nil {
			return err
		}
		if err := m.foreign(owners); err != nil {
			return err
		}
		if m.mark(ctx, owners) {
			break
		}
		if time.Since(began) > m.limits.reservedTime {
			m.log.Warn("another timerd has reserved the streams and does not mark them; starting without their mark",
				"err", stillReserved(m.streams))
			m.update(func(s *state) { s.unmarked = stillReserved(m.streams) })
			break
		}
		if !backoff.Sleep(ctx, lookAgain) { // another installation is marking them, unless it has died
			return context.Cause(ctx)
		}
	}
	owners, err := ownersOf(ctx, m.site.js, m.streams.configs()...)
	if err != nil {
		return err
	}
	return m.foreign(owners)
}

// foreign returns a fault for each stream that belongs to another installation.
func (m *Member) foreign(owners []Owner) error {
	var faults []error
	for _, o := range owners {
		if fault := m.streams.Foreign(o); fault != nil {
			faults = append(faults, fault)
		}
	}
	return errors.Join(faults...)
}

// mark marks the streams without a mark. It returns false if another installation is about to. A failure is no reason
// to stop: streams created by timerd have their mark from the beginning.
func (m *Member) mark(ctx context.Context, owners []Owner) bool {
	bare := slices.ContainsFunc(owners, isBare)
	if !bare {
		m.update(func(s *state) { s.unmarked = nil })
	}
	if !bare || time.Now().Before(m.markAfter) || m.ID() == "" {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reserved, err := reserve(ctx, m.site.js, m.streams)
	if reserved {
		err = m.markReserved(ctx)
	}
	m.update(func(s *state) { s.unmarked = err })
	if err != nil {
		m.log.Warn("cannot mark a stream as this installation's; another one could take it", "err", err)
		m.markAfter = time.Now().Add(markPause)
	}
	return reserved || err != nil
}

// markReserved marks the streams without a mark, once no other installation is marking any. If another one has marked a
// stream, it marks none.
func (m *Member) markReserved(ctx context.Context) error {
	owners, err := ownersOf(ctx, m.site.js, m.streams.configs()...)
	if err != nil || m.foreign(owners) != nil {
		return err
	}
	for _, o := range owners {
		if !isBare(o) {
			continue
		}
		o.Installation = m.ID()
		if err := SetOwner(ctx, m.site.js, o); err != nil {
			return err
		}
		m.log.Info("marked the stream as this installation's", "source", o.Stream, "installation", m.ID())
	}
	return nil
}

// isBare reports whether a stream has no mark.
func isBare(o Owner) bool { return o.Installation == "" }

// firstOwner returns the first identity of a stream, "" if none has one.
func firstOwner(owners []Owner) string {
	for _, o := range owners {
		if o.Installation != "" {
			return o.Installation
		}
	}
	return ""
}

// newID returns a unique identity.
func newID() string { return strings.ToLower(rand.Text()) }

// isCluster reports whether Redis has several masters, and any of them may be away.
func (s site) isCluster() bool {
	_, is := s.rdb.(*redis.ClusterClient)
	return is
}

// read returns the identity in Redis, "" if there is none, or not yet on the server that the client reads from.
func (s site) read(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id, err := s.rdb.Get(ctx, keys.Installation).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return id, about(err)
}

// persistentlyRead is read, tried for a while.
func (m *Member) persistentlyRead(ctx context.Context, patience time.Duration) (string, error) {
	deadline := time.Now().Add(patience)
	pace := backoff.Backoff{Policy: backoff.Policy{First: 50 * time.Millisecond, Longest: time.Second}, Logger: m.log}
	for {
		within, cancel := context.WithTimeout(ctx, max(time.Until(deadline), leastTry))
		id, err := m.site.read(within)
		cancel()
		if err == nil || redis.IsPermissionError(err) || time.Now().After(deadline) {
			return id, err
		}
		if !backoff.Sleep(ctx, pace.Fail("cannot read the installation from Redis, trying again", err)) {
			return "", context.Cause(ctx)
		}
	}
}

// put gives Redis an identity if it has none, and returns its identity. It asks the master, even if the client reads
// from replicas.
func (s site) put(ctx context.Context, id string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	was, err := s.rdb.SetArgs(ctx, keys.Installation, id, redis.SetArgs{Mode: "NX", Get: true}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return id, nil
	case err == nil && was == "":
		return "", &diag.Fault{What: "the identity of the installation, key " + keys.Installation + ", is empty",
			Remedy: "redis-cli DEL " + keys.Installation}
	}
	return was, about(err)
}

// about adds the subject to an error of Redis, and the fix for a missing right.
func about(err error) error {
	switch {
	case redis.IsPermissionError(err):
		return fmt.Errorf("the identity of the installation, key %s: %w; to fix it: let the Redis user read and "+
			"write timerd:*, as in deploy/users.acl", keys.Installation, err)
	case err != nil:
		return fmt.Errorf("the identity of the installation, key %s: %w", keys.Installation, err)
	}
	return nil
}
