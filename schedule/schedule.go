// Package schedule is timerd's durable index of timers in Redis and every
// atomic step on it. The steps themselves are in timerd.lua; this package
// loads and calls them.
//
// A timer is pending, then owed or claimed, then settled. Each step is one
// script or transaction, so a process that dies before, in or after one leaves
// the timer in a state that any other timerd goes on from. All times are those
// of the Redis server's clock.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// DefaultMaxPayload is the payload limit in bytes where none is configured.
const DefaultMaxPayload = 256 << 10

// Bounds of one script call, so that none holds Redis for much longer than a
// millisecond: at 5 to 8 µs a timer, and one copy of the payloads each way.
const (
	MaxHints      = 128     // hints that one observe call takes in
	MaxClaim      = 128     // firings that one claim call returns
	maxClaimBytes = 1 << 20 // payload bytes that one claim call returns, about
)

// ErrRedisTooOld says that the server lacks what the schedule stands on.
var ErrRedisTooOld = errors.New("timerd needs Redis 7.0 or later, or Valkey")

// Schedule calls the steps on the index. Its methods may be called
// concurrently.
type Schedule struct {
	rdb        redis.UniversalClient
	maxPayload int
	scripts    *scripts
}

// New returns the schedule in the Redis that rdb talks to. Payloads of more than
// maxPayload bytes are not kept: their timers fire without data.
func New(rdb redis.UniversalClient, maxPayload int) *Schedule {
	return &Schedule{rdb: rdb, maxPayload: maxPayload, scripts: newScripts(maxPayload)}
}

// HintKind says what a keyspace event hints at.
type HintKind byte

// The kinds of hint. Only Expired is evidence; the others have the key's state
// read again.
const (
	Touched HintKind = 't' // the key was set or changed
	Audited HintKind = 'a' // an audit came across the key; there was no event
	Gone    HintKind = 'g' // the key was deleted, renamed or moved away
	Evicted HintKind = 'v' // Redis evicted the key
	Expired HintKind = 'x' // the key's TTL ran out
)

// Hint is a keyspace event of a timer's key.
type Hint struct {
	Kind HintKind
	Key  string
	// Known restricts the hint to a timer that the schedule has already, because
	// the key is in none of the namespaces.
	Known bool
}

// code returns the kind as the script reads it.
func (h Hint) code() string {
	if h.Known {
		return strings.ToUpper(string(h.Kind))
	}
	return string(h.Kind)
}

// Observed is what a step of taking in hints or auditing did.
type Observed struct {
	Head        int64 // the first due time in unix ms, or -1 where nothing is pending
	Owed        int   // timers that are to fire at once
	Adopted     int   // timers new to the schedule
	Rescheduled int   // timers whose due time changed
	Cancelled   int   // timers that were deleted or lost their TTL
}

// Add adds the counts of other to o and takes over its head.
func (o *Observed) Add(other Observed) {
	o.Head = other.Head
	o.Owed += other.Owed
	o.Adopted += other.Adopted
	o.Rescheduled += other.Rescheduled
	o.Cancelled += other.Cancelled
}

// NoEvents is the since of a caller that hears no keyspace events.
const NoEvents = math.MaxInt64

// Observe takes hints in, in their order, up to MaxHints in one atomic step. It is
// safe to repeat after an error. The keys must be timer keys. since is the unix
// ms from when on the caller has heard every event: it decides where a key lives
// on though it was due. heard is the unix ms at which the first of the hints
// happened at the earliest: an expired event proves nothing about a timer that the
// schedule does not know if it is so old that others may have fired and forgotten
// that. Both are by the server's clock.
func (s *Schedule) Observe(ctx context.Context, hints []Hint, since, heard int64) (Observed, error) {
	seen := Observed{Head: -1}
	for len(hints) > 0 {
		n := min(len(hints), MaxHints)
		args := append(make([]any, 0, 2*n+2), since, heard)
		for _, h := range hints[:n] {
			args = append(args, h.code(), h.Key)
		}
		reply, err := s.scripts.observe.Run(ctx, s.rdb, []string{keys.Single.Due()}, args...).Int64Slice()
		if err != nil {
			return seen, fmt.Errorf("schedule: observe %d keys: %w", n, err)
		}
		if len(reply) != 6 {
			return seen, fmt.Errorf("schedule: observe: unexpected reply of %d elements", len(reply))
		}
		seen.Add(Observed{
			Head:        reply[0],
			Owed:        int(reply[1]),
			Adopted:     int(reply[2]),
			Rescheduled: int(reply[3]),
			Cancelled:   int(reply[4]),
		})
		hints = hints[reply[5]:]
	}
	return seen, nil
}

// Claimed is the outcome of a claim.
type Claimed struct {
	Firings     []Firing
	At          time.Time // the Redis server's clock at the claim
	Sent        time.Time // the local instant before the claim was sent
	Next        int64     // unix ms from when on there is something to claim; 0 at once, -1 nothing known
	Untidy      bool      // more tombstones are to be removed: claim again when idle
	Rescheduled int       // timers that were due but whose key had got a later TTL
	Cancelled   int       // timers that were due but whose key had lost its TTL
	Corrupt     []error   // entries that are no timers; they were removed
}

// Claim takes up to MaxClaim firings under a lease: what is owed, what somebody
// claimed whose lease ran out, and what is due. known is the first due time
// that the caller knew of: earlier ones have the trigger sweep. since is as for
// Observe. Firings that a
// crashed or failed caller does not settle can be claimed again when the lease
// is over; so can those of a claim whose reply was lost.
func (s *Schedule) Claim(ctx context.Context, p keys.Partition, lease time.Duration, known, since int64) (Claimed, error) {
	sent := time.Now()
	reply, err := s.scripts.claim.Run(ctx, s.rdb, []string{p.Due()}, lease.Milliseconds(), MaxClaim, maxClaimBytes, since).Slice()
	if err != nil {
		return Claimed{}, fmt.Errorf("schedule: claim: %w", err)
	}
	const fixed = 6
	if len(reply) < fixed || (len(reply)-fixed)%3 != 0 {
		return Claimed{}, fmt.Errorf("schedule: claim: unexpected reply of %d elements", len(reply))
	}
	at, err := redisTime(reply[0], reply[1])
	if err != nil {
		return Claimed{}, fmt.Errorf("schedule: claim: %w", err)
	}
	c := Claimed{At: at, Sent: sent, Firings: make([]Firing, 0, (len(reply)-fixed)/3)}
	c.Next, _ = reply[2].(int64)
	untidy, _ := reply[3].(int64)
	c.Untidy = untidy == 1
	rescheduled, _ := reply[4].(int64)
	cancelled, _ := reply[5].(int64)
	c.Rescheduled, c.Cancelled = int(rescheduled), int(cancelled)
	var corrupt []Firing
	for i := fixed; i < len(reply); i += 3 {
		ref, _ := reply[i].(string)
		record, _ := reply[i+1].(string)
		how, _ := reply[i+2].(string)
		f, err := newFiring(ref, record)
		if err != nil {
			// It must not hold up the others.
			c.Corrupt = append(c.Corrupt, err)
			corrupt = append(corrupt, Firing{Ref: ref, Partition: p})
			continue
		}
		f.Partition, f.ClaimedAt, f.Received, f.Lease = p, at, sent, lease
		switch {
		case how == "r":
			f.Trigger = TriggerReclaim
		case f.Trigger == "" && how == "d" && f.Due < known:
			f.Trigger = TriggerSweep
		case f.Trigger == "":
			f.Trigger = TriggerDeadline
		}
		c.Firings = append(c.Firings, f)
	}
	if err := s.Settle(ctx, corrupt); err != nil {
		c.Corrupt = append(c.Corrupt, err)
	}
	return c, nil
}

// newFiring reads a ref and a record, as timerd.lua writes them.
func newFiring(ref, record string) (Firing, error) {
	due, rest, ok1 := strings.Cut(ref, ":")
	attempt, key, ok2 := strings.Cut(rest, ":")
	header, payload, ok3 := strings.Cut(record, ":")
	if !ok1 || !ok2 || !ok3 {
		return Firing{}, fmt.Errorf("corrupt entry %q", ref)
	}
	f := Firing{Ref: ref}
	var err error
	if f.Key, err = keys.Parse(key); err != nil {
		return f, fmt.Errorf("corrupt entry %q: %w", ref, err)
	}
	if f.Due, err = strconv.ParseInt(due, 10, 64); err != nil {
		return f, fmt.Errorf("corrupt entry %q: %w", ref, err)
	}
	if attempt != "" {
		if f.Attempt, err = strconv.Atoi(attempt); err != nil {
			return f, fmt.Errorf("corrupt entry %q: %w", ref, err)
		}
	}
	flags := strings.TrimLeft(header, "0123456789")
	if strings.Contains(flags, "x") {
		f.Trigger = TriggerExpired
	}
	f.Status = statusOf(flags)
	if f.Status == PayloadPresent {
		f.Payload = []byte(payload)
	}
	return f, nil
}

// statusOf reads a record's flags.
func statusOf(flags string) Status {
	switch {
	case strings.Contains(flags, "m"):
		return PayloadMissing
	case strings.Contains(flags, "l"):
		return PayloadTooLarge
	}
	return PayloadPresent
}

// redisTime reads the two elements of a TIME reply.
func redisTime(seconds, micros any) (time.Time, error) {
	s, _ := seconds.(string)
	us, _ := micros.(string)
	sec, err1 := strconv.ParseInt(s, 10, 64)
	usec, err2 := strconv.ParseInt(us, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return time.Time{}, fmt.Errorf("unexpected server time: %w", err)
	}
	return time.Unix(sec, usec*1000), nil
}

// Settle forgets firings that NATS has acknowledged, whoever holds their claim
// by now. It is safe to repeat; after an error it may have happened or not.
func (s *Schedule) Settle(ctx context.Context, firings []Firing) error {
	refs := make([]any, 0, len(firings))
	for i := range firings {
		refs = append(refs, firings[i].Ref)
	}
	if len(refs) == 0 {
		return nil
	}
	p := firings[0].Partition
	_, err := s.rdb.TxPipelined(ctx, func(tx redis.Pipeliner) error {
		tx.ZRem(ctx, p.Firing(), refs...)
		tx.Do(ctx, append([]any{"HDEL", p.FiringData()}, refs...)...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule: settle %d firings: %w", len(refs), err)
	}
	return nil
}

// Release gives claims back unpublished, so that anybody may claim them at
// once. Claims that somebody else has taken meanwhile stay theirs. It is safe
// to repeat.
func (s *Schedule) Release(ctx context.Context, firings []Firing) error {
	if len(firings) == 0 {
		return nil
	}
	args := make([]any, 0, 2*len(firings))
	for i := range firings {
		args = append(args, firings[i].Ref, firings[i].leaseEnd())
	}
	err := s.scripts.release.Run(ctx, s.rdb, []string{firings[0].Partition.Due()}, args...).Err()
	if err != nil {
		return fmt.Errorf("schedule: release %d firings: %w", len(firings), err)
	}
	return nil
}

// AuditPage compares about count pending timers with their keys, from cursor
// on; 0 begins, and a returned 0 ends. mayEvict says that keys may have been
// evicted, so that a key's absence does not mean that it was deleted. A whole
// round looks at every timer that is pending throughout at least once.
func (s *Schedule) AuditPage(ctx context.Context, p keys.Partition, cursor uint64, count int, mayEvict bool) (next uint64, seen Observed, err error) {
	evict := 0
	if mayEvict {
		evict = 1
	}
	reply, err := s.scripts.audit.Run(ctx, s.rdb, []string{p.Due()}, cursor, count, evict).Slice()
	if err != nil {
		return 0, seen, fmt.Errorf("schedule: audit: %w", err)
	}
	if len(reply) != 4 {
		return 0, seen, fmt.Errorf("schedule: audit: unexpected reply of %d elements", len(reply))
	}
	text, _ := reply[0].(string)
	if next, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, seen, fmt.Errorf("schedule: audit: unexpected cursor: %w", err)
	}
	rescheduled, _ := reply[2].(int64)
	cancelled, _ := reply[3].(int64)
	return next, Observed{Head: -1, Rescheduled: int(rescheduled), Cancelled: int(cancelled)}, nil
}

// Beat notes that the timerd of the given instance id is alive, and returns its
// rank among those that gave a sign of life within ttl, and how many they are.
// The order is by id, the same for all.
func (s *Schedule) Beat(ctx context.Context, p keys.Partition, instance string, ttl time.Duration) (rank, of int, err error) {
	alive, err := s.scripts.beat.Run(ctx, s.rdb, []string{p.Members()}, instance, ttl.Milliseconds()).StringSlice()
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: beat: %w", err)
	}
	for i, id := range alive {
		if id == instance {
			rank = i
		}
	}
	return rank, len(alive), nil
}

// Retire withdraws a timerd that stops, so that the others close ranks at once.
func (s *Schedule) Retire(ctx context.Context, p keys.Partition, instance string) error {
	if err := s.rdb.ZRem(ctx, p.Members(), instance).Err(); err != nil {
		return fmt.Errorf("schedule: retire: %w", err)
	}
	return nil
}

// Counts returns how many timers are pending, and how many firings are owed or
// claimed.
func (s *Schedule) Counts(ctx context.Context, p keys.Partition) (pending, firing int64, err error) {
	var due, held *redis.IntCmd
	_, err = s.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		due, held = pipe.ZCard(ctx, p.Due()), pipe.ZCard(ctx, p.Firing())
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: counts: %w", err)
	}
	return due.Val(), held.Val(), nil
}
