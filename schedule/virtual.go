package schedule

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Open returns the schedule as New does. If the installation of a single Redis is virtual, its steps go by the virtual
// clock. A Redis that is silent for a second, or whose user may not read the identity of the installation, counts as
// not virtual.
func Open(ctx context.Context, rdb redis.UniversalClient, maxPayload int) *Schedule {
	if _, isCluster := rdb.(*redis.ClusterClient); isCluster {
		return New(rdb, maxPayload)
	}
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	if id, err := rdb.Get(ctx, keys.Installation).Result(); err == nil && keys.IsVirtual(id) {
		return NewVirtual(rdb, maxPayload)
	}
	return New(rdb, maxPayload)
}

// NewVirtual is New for a Redis whose installation is virtual; see MakeVirtual.
func NewVirtual(rdb redis.UniversalClient, maxPayload int) *Schedule {
	s := New(rdb, maxPayload)
	s.virtual = true
	s.scripts.Store(newVirtualScripts(maxPayload, s.db))
	return s
}

// IsVirtual reports whether due times are by a virtual clock, as of timerd dev --virtual.
func (ix *Index) IsVirtual() bool { return ix.virtual }

// Ahead returns the lead of the virtual clock over Redis's; 0 without a virtual clock.
func (ix *Index) Ahead(ctx context.Context) (time.Duration, error) {
	if !ix.virtual {
		return 0, nil
	}
	text, err := ix.rdb.Get(ctx, keys.Single.Ahead()).Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	ms, wrong := strconv.ParseInt(text, 10, 64)
	if err = errors.Join(err, wrong); err != nil {
		return 0, fmt.Errorf("schedule: read the virtual clock: %w", err)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// dueClock asks a server for the clock of due times. It returns a function that has the answer once the pipeline was
// executed.
func (ix *Index) dueClock(ctx context.Context, pipe redis.Pipeliner) func() time.Time {
	if !ix.virtual {
		return pipe.Time(ctx).Val
	}
	at, ahead := pipe.Time(ctx), pipe.IncrBy(ctx, keys.Single.Ahead(), 0)
	return func() time.Time { return at.Val().Add(time.Duration(ahead.Val()) * time.Millisecond) }
}

// readDueClock is dueClock for one server by itself.
func (ix *Index) readDueClock(ctx context.Context, server *redis.Client) (time.Time, error) {
	var now func() time.Time
	_, err := server.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		now = ix.dueClock(ctx, pipe)
		return nil
	})
	if err != nil {
		return time.Time{}, err
	}
	return now(), nil
}

// VirtualState is the state of the schedule at a virtual time.
type VirtualState struct {
	Now    Millis
	Due    int    // timers that are due and not claimed
	Firing int    // firings that are claimed, owed or given back
	Next   Millis // when something is due next; Nothing if there is no timer
	// Released is the time of the first timer that a resume has released for later; Nothing if there is none.
	Released Millis
	Holds    bool     // there may be holds, or resumes
	Restored bool     // timers of a restored Redis wait to be compared with the streams
	Open     []string // keys of some that are due or firing
}

// errNotVirtual says that the clock of due times is Redis's own.
var errNotVirtual = errors.New("schedule: this installation has no virtual clock")

// Advance moves the virtual clock to a time, unless that has passed, wakes the timerd, and returns the state of the
// schedule then.
func (s *Schedule) Advance(ctx context.Context, to Millis, names int) (VirtualState, error) {
	if !s.virtual {
		return VirtualState{}, errNotVirtual
	}
	advance := s.Script(lua, "virtual/advance")
	reply, err := ReadReply(advance.Run(ctx, s.rdb, []string{keys.Single.Prefix()}, int64(to), names), 8, 0)
	if err != nil {
		return VirtualState{}, fmt.Errorf("schedule: advance the virtual clock: %w", err)
	}
	return VirtualState{
		Now: Millis(reply.Int(0)), Due: int(reply.Int(1)), Firing: int(reply.Int(2)), Next: Millis(reply.Int(3)),
		Released: Millis(reply.Int(4)), Holds: reply.Int(5) == 1, Restored: reply.Int(6) == 1,
		Open: reply.List(7).texts(),
	}, nil
}

// probePrefix begins the keys that AwaitKeys sets. Every key of four parts is a timer of timerd dev.
const probePrefix = "timerd:advance:probe:"

// The interval of AwaitKeys's looks, and the limit for removing its key.
const (
	probeInterval = 500 * time.Microsecond
	probeRemoval  = time.Second
)

// AwaitKeys waits until the timerd of a virtual installation has taken in the keys that clients have set by now: a
// server's events come in order, so it sets a key of its own and waits for its timer.
func (s *Schedule) AwaitKeys(ctx context.Context) (err error) {
	probe := probePrefix + rand.Text()
	defer func() { // also after an error: without its key, a late event makes no timer
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeRemoval)
		defer cancel()
		if wrong := s.rdb.FCall(within, "timer_cancel", []string{probe}).Err(); wrong != nil && err == nil {
			err = fmt.Errorf("schedule: cancel a timer: %w", wrong)
		}
	}()
	if err := s.rdb.Set(ctx, probe, "", time.Hour).Err(); err != nil {
		return fmt.Errorf("schedule: set a key: %w", err)
	}
	for {
		err := s.rdb.ZScore(ctx, keys.Single.Due(), probe).Err()
		if err == nil {
			return nil
		}
		if !errors.Is(err, redis.Nil) {
			return fmt.Errorf("schedule: look for the timer of a key: %w", err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(probeInterval):
		}
	}
}

// Flush deletes the keys of a virtual installation, as between two tests. It keeps the keys that mark the installation
// as virtual, with its time and its timerd.
func (s *Schedule) Flush(ctx context.Context) error {
	if !s.virtual {
		return errNotVirtual
	}
	p := keys.Single
	names := []string{p.Data(), keys.Installation, p.Ahead(), p.Database(), p.Members(), p.About(), p.Counts(),
		p.Hearing()}
	if err := s.Script(lua, "virtual/flush").Run(ctx, s.rdb, names).Err(); err != nil {
		return fmt.Errorf("schedule: delete all keys: %w", err)
	}
	return nil
}

// MakeVirtual makes the installation of an empty Redis a virtual one, with an identity of its own. Its error says if
// the Redis belongs to an installation.
func MakeVirtual(ctx context.Context, rdb redis.UniversalClient, id string) error {
	id = keys.VirtualInstallation + strings.ToLower(id)
	was, err := rdb.SetArgs(ctx, keys.Installation, id, redis.SetArgs{Mode: "NX", Get: true}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return nil
	case err != nil:
		return fmt.Errorf("schedule: make the installation virtual: %w", err)
	}
	return fmt.Errorf("schedule: this Redis is served by a timerd already, of the installation %s", was)
}
