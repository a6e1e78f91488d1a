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

// ClaimRequest is a partition to claim from.
type ClaimRequest struct {
	Partition keys.Partition
	Known     Millis // the first due time that the caller knew of: what was due before fires by TriggerSweep
}

// ClaimResult is the outcome of a claim.
type ClaimResult struct {
	Partition   keys.Partition
	Firings     []Firing
	At          time.Time // the Redis server's clock at the claim
	Next        Millis    // from when on there is something to claim; AtOnce, or Nothing that is known
	Untidy      bool      // more tombstones are to be removed: claim again when idle
	Rescheduled int       // timers that were due but whose key had got a later TTL
	Cancelled   int       // timers that were due but whose key had lost its TTL
	SetAside    int       // due timers that wait, without stopping others, because the key cannot be read
	SetAsideKey string    // the key of one of them
	Corrupt     []error   // entries that are no timers; they were removed
	Err         error     // why the claim failed; then the rest is empty
}

// Claim takes firings under a lease, up to MaxClaim from each of several partitions: what is owed, what somebody claimed whose
// lease ran out, and what is due. The results are in the order of the requests; an error for one says nothing about the
// others. Firings that a crashed or failed caller does not settle can be claimed again when the lease is over; so can those of
// a claim whose reply was lost.
func (n *Node) Claim(ctx context.Context, requests []ClaimRequest, lease time.Duration) []ClaimResult {
	calls := make([]call, len(requests))
	for i, r := range requests {
		calls[i] = call{r.Partition, []any{lease.Milliseconds(), MaxClaim, MaxClaimBytes, int64(n.partitionHeardSince(r.Partition))}}
	}
	sent := time.Now()
	replies := n.schedule.run(ctx, n.schedule.scripts.Load().claim, calls)
	received := time.Now()
	results := make([]ClaimResult, 0, len(requests))
	for i, r := range requests {
		result, err := n.readClaim(ctx, r, lease, sent, replies[i])
		if err != nil {
			result = ClaimResult{Err: fmt.Errorf("schedule: claim: %w", err)}
		} else {
			n.ReadClock(result.At, sent, received)
		}
		result.Partition = r.Partition
		results = append(results, result)
	}
	return results
}

// readClaim reads the reply to a claim and removes what is corrupt.
func (n *Node) readClaim(ctx context.Context, request ClaimRequest, lease time.Duration, sent time.Time, cmd *redis.Cmd) (ClaimResult, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return ClaimResult{}, err
	}
	p := request.Partition
	const fixed = 8
	if len(reply) < fixed || (len(reply)-fixed)%3 != 0 {
		return ClaimResult{}, fmt.Errorf("unexpected reply of %d elements", len(reply))
	}
	at, err := redisTime(reply[0], reply[1])
	if err != nil {
		return ClaimResult{}, err
	}
	c := ClaimResult{At: at, Firings: make([]Firing, 0, (len(reply)-fixed)/3)}
	next, _ := reply[2].(int64)
	c.Next = Millis(next)
	untidy, _ := reply[3].(int64)
	c.Untidy = untidy == 1
	rescheduled, _ := reply[4].(int64)
	cancelled, _ := reply[5].(int64)
	aside, _ := reply[6].(int64)
	c.Rescheduled, c.Cancelled, c.SetAside = int(rescheduled), int(cancelled), int(aside)
	c.SetAsideKey, _ = reply[7].(string)
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
		f.MayBeStored = how == "r" || how == "p"
		switch {
		case how == "r":
			f.Trigger = TriggerReclaim
		case f.Trigger == "" && how == "d" && f.Due < request.Known:
			f.Trigger = TriggerSweep
		case f.Trigger == "":
			f.Trigger = TriggerDeadline
		}
		c.Firings = append(c.Firings, f)
	}
	if err := n.schedule.Settle(ctx, corrupt); err != nil {
		c.Corrupt = append(c.Corrupt, err)
	}
	return c, nil
}

// newFiring reads a ref and a record, as the scripts write them.
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
	ms, err := strconv.ParseInt(due, 10, 64)
	if err != nil {
		return f, fmt.Errorf("corrupt entry %q: %w", ref, err)
	}
	f.Due = Millis(ms)
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
