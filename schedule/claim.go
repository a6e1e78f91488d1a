package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Claimed is the outcome of a claim.
type Claimed struct {
	Partition   keys.Partition
	Firings     []Firing
	At          time.Time // the Redis server's clock at the claim
	Sent        time.Time // the local instant before the claim was sent
	Next        int64     // unix ms from when on there is something to claim; 0 at once, -1 nothing known
	Untidy      bool      // more tombstones are to be removed: claim again when idle
	Rescheduled int       // timers that were due but whose key had got a later TTL
	Cancelled   int       // timers that were due but whose key had lost its TTL
	Corrupt     []error   // entries that are no timers; they were removed
	Err         error     // why the claim failed; then the rest is empty
}

// Claim takes up to MaxClaim firings under a lease: what is owed, what somebody
// claimed whose lease ran out, and what is due. known is the first due time
// that the caller knew of: earlier ones have the trigger sweep. since is as for
// Observe. Firings that a
// crashed or failed caller does not settle can be claimed again when the lease
// is over; so can those of a claim whose reply was lost.
func (s *Schedule) Claim(ctx context.Context, p keys.Partition, lease time.Duration, known, since int64) (Claimed, error) {
	c := s.ClaimEach(ctx, []Want{{p, known, since}}, lease)[0]
	return c, c.Err
}

// Want is a partition to claim from.
type Want struct {
	Partition    keys.Partition
	Known, Since int64 // see Claim
}

// ClaimEach claims from several partitions at a time, up to MaxClaim firings from
// each. The outcomes are in the order of wants. An error for one partition says
// nothing about the others.
func (s *Schedule) ClaimEach(ctx context.Context, wants []Want, lease time.Duration) []Claimed {
	calls := make([]call, len(wants))
	for i, w := range wants {
		calls[i] = call{w.Partition, []any{lease.Milliseconds(), MaxClaim, maxClaimBytes, w.Since}}
	}
	sent := time.Now()
	replies := s.run(ctx, s.scripts.claim, calls)
	all := make([]Claimed, 0, len(wants))
	for i, w := range wants {
		c, err := s.readClaim(ctx, w, lease, sent, replies[i])
		if err != nil {
			c = Claimed{Err: fmt.Errorf("schedule: claim: %w", err)}
		}
		c.Partition = w.Partition
		all = append(all, c)
	}
	return all
}

// readClaim reads the reply to a claim and removes what is corrupt.
func (s *Schedule) readClaim(ctx context.Context, want Want, lease time.Duration, sent time.Time, cmd *redis.Cmd) (Claimed, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return Claimed{}, err
	}
	p := want.Partition
	const fixed = 6
	if len(reply) < fixed || (len(reply)-fixed)%3 != 0 {
		return Claimed{}, fmt.Errorf("unexpected reply of %d elements", len(reply))
	}
	at, err := redisTime(reply[0], reply[1])
	if err != nil {
		return Claimed{}, err
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
		case f.Trigger == "" && how == "d" && f.Due < want.Known:
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
// by now. It is safe to repeat; after an error it may have happened or not. An
// error that concerns only some of them is a *PartError.
func (s *Schedule) Settle(ctx context.Context, firings []Firing) error {
	err := s.onEach(ctx, s.scripts.settle, firings, func(f *Firing) []any { return []any{f.Ref} })
	if err != nil {
		return fmt.Errorf("schedule: settle %d firings: %w", len(firings), err)
	}
	return nil
}

// Release gives claims back unpublished, so that anybody may claim them at
// once. Claims that somebody else has taken meanwhile stay theirs. It is safe
// to repeat. Errors are as those of Settle.
func (s *Schedule) Release(ctx context.Context, firings []Firing) error {
	err := s.onEach(ctx, s.scripts.release, firings, func(f *Firing) []any { return []any{f.Ref, f.leaseEnd()} })
	if err != nil {
		return fmt.Errorf("schedule: release %d firings: %w", len(firings), err)
	}
	return nil
}

// PartError says that a step failed for some of the firings that it was about.
type PartError struct {
	Left []Firing // those that it failed for
	Err  error    // why it failed for one of them
}

func (e *PartError) Error() string { return fmt.Sprintf("%d of them failed: %v", len(e.Left), e.Err) }

// Unwrap returns why the step failed.
func (e *PartError) Unwrap() error { return e.Err }

// onEach runs a script once for each partition of the firings, with what args
// returns for each firing.
func (s *Schedule) onEach(ctx context.Context, script *redis.Script, firings []Firing, args func(*Firing) []any) error {
	var calls []call
	var members [][]Firing
	at := map[keys.Partition]int{}
	for i := range firings {
		f := &firings[i]
		n, ok := at[f.Partition]
		if !ok {
			n = len(calls)
			at[f.Partition] = n
			calls, members = append(calls, call{p: f.Partition}), append(members, nil)
		}
		calls[n].args, members[n] = append(calls[n].args, args(f)...), append(members[n], *f)
	}
	var failed PartError
	for i, reply := range s.run(ctx, script, calls) {
		if err := reply.Err(); err != nil {
			failed.Left, failed.Err = append(failed.Left, members[i]...), err
		}
	}
	switch {
	case failed.Err == nil:
		return nil
	case len(failed.Left) == len(firings):
		return failed.Err
	}
	return &failed
}
