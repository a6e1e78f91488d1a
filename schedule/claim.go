package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// ClaimRequest is a partition to claim from.
type ClaimRequest struct {
	Partition keys.Partition
	Known     Millis // the first due time that the caller knew of: timers due before it fire by TriggerSweep
	// Expected is the expected number of firings: to look for more costs Redis a little. 0 means MaxClaim. The next
	// claim takes the rest.
	Expected int
	// Patience is the time for which due timers are left to other timerds: in the usual case, a claim takes only timers
	// that have been due for longer.
	Patience time.Duration
	// Leases says that a lease may be over by now. In a cluster a usual claim does not look for one by itself.
	Leases bool

	full bool // it looks at everything, even where all is as usual
}

// ClaimResult is the outcome of a claim.
type ClaimResult struct {
	Partition   keys.Partition
	Firings     []Firing
	At          time.Time // the Redis server's clock at the claim
	Next        Millis    // time of the next claim; AtOnce, or Nothing if none is known
	Untidy      bool      // more tombstones are to be removed: claim again when idle
	Full        bool      // in a cluster: not a usual claim, so Next may be the end of a lease
	Rescheduled int       // timers that were due but whose key had got a later TTL
	Cancelled   int       // timers that were due but whose key had lost its TTL
	Parked      int       // due timers that wait, without stopping others, because the key cannot be read
	ParkedKey   string    // the key of one of them
	Corrupt     []error   // entries that were not timers; they were removed
	Err         error     // why the claim failed; then the rest is empty

	full bool // it looked at everything
}

// Claim takes firings under a lease, up to MaxClaim from each of several partitions: owed ones, ones whose lease has
// ended, and due timers. The results are in the order of the requests; an error for one says nothing about the others.
// Firings that a caller does not settle, because it crashed, failed or never got the reply, can be claimed again when
// the lease is over.
//
// Claim also plans new cron timers; only those it cannot plan are returned, with Fault set.
func (n *Node) Claim(ctx context.Context, requests []ClaimRequest, lease time.Duration) []ClaimResult {
	n.readHoldsAgain(ctx)
	results := n.claimAll(ctx, requests, lease)
	var plans []Firing
	for i := range results {
		results[i].Firings, plans = n.schedule.takePlans(results[i].Firings, plans)
	}
	if len(plans) > 0 {
		// else the timerd that claims them after the lease plans them
		_ = n.schedule.settleRepeating(ctx, Outcomes(OutcomeUnfired, plans...))
	}
	return results
}

// Prefixes of a claim's errors for a partition: its copy of the list of holds is older than this timerd's; not all of
// it is on the server.
const (
	behindError = "BEHIND timerd"
	awayError   = "AWAY timerd"
)

// claimAll claims. A partition that has moved is claimed from on its new server, an old copy of the list of holds is
// updated first, and data that may be older than before are compared first.
func (n *Node) claimAll(ctx context.Context, requests []ClaimRequest, lease time.Duration) []ClaimResult {
	said := n.schedule.holding.Load()
	results := n.claimHere(ctx, said, requests, lease)
	again(results, restoredError, requests, func(rest []ClaimRequest) []ClaimResult {
		if err := n.compareData(ctx); err != nil {
			return failedClaims(rest, err)
		}
		return n.claimHere(ctx, said, rest, lease)
	})
	again(results, awayError, requests,
		func(rest []ClaimRequest) []ClaimResult { return n.claimElsewhere(ctx, said, rest, lease) })
	again(results, restoredError, requests, func(rest []ClaimRequest) []ClaimResult {
		if err := n.schedule.compareDataOf(ctx, rest); err != nil {
			return failedClaims(rest, err)
		}
		return n.claimElsewhere(ctx, said, rest, lease)
	})
	again(results, behindError, requests, func(rest []ClaimRequest) []ClaimResult {
		if n.catchUp(ctx, said) != nil {
			return nil
		}
		return n.claimHere(ctx, n.schedule.holding.Load(), rest, lease)
	})
	return results
}

// again repeats the claims that failed with a kind of error, and replaces their results.
func again(results []ClaimResult, kind string, requests []ClaimRequest, claim func([]ClaimRequest) []ClaimResult) {
	var places []int
	var some []ClaimRequest
	for i, result := range results {
		if redis.HasErrorPrefix(result.Err, kind) {
			places, some = append(places, i), append(some, requests[i])
		}
	}
	if len(some) == 0 {
		return
	}
	for i, result := range claim(some) {
		results[places[i]] = result
	}
}

// holdsAgainTimeout bounds the wait of a claim for the list of holds.
const holdsAgainTimeout = time.Second

// readHoldsAgain reads the list of holds if a claim has had no answer since the last reading: the server or this timerd
// may have been cut off when a hold began, and have an older list. If that fails, claims use the known list.
func (n *Node) readHoldsAgain(ctx context.Context) {
	if !n.cutOff.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holdsAgainTimeout)
	defer cancel()
	_, _ = n.schedule.Holds(ctx) // see above
}

// claimHere claims from the node's server, from many partitions with each call, by a generation of the list of holds.
func (n *Node) claimHere(ctx context.Context, holding int64, requests []ClaimRequest,
	lease time.Duration) []ClaimResult {
	results := make([]ClaimResult, 0, len(requests))
	for len(results) < len(requests) {
		some := requests[len(results):min(len(results)+maxPartitions, len(requests))]
		sent := time.Now()
		cmd := n.schedule.step("claim").Run(ctx, n.server, nil, n.claimArgs(n.server, holding, some, lease)...)
		results = append(results, n.readClaims(ctx, some, lease, sent, time.Now(), cmd)...)
	}
	return results
}

// claimElsewhere claims from the servers that have the partitions by now.
func (n *Node) claimElsewhere(ctx context.Context, holding int64, requests []ClaimRequest,
	lease time.Duration) (results []ClaimResult) {
	calls := make([]Call, len(requests))
	for i := range requests {
		one := requests[i : i+1]
		calls[i] = Call{Partition: one[0].Partition,
			ArgsOn: func(server *redis.Client) []any { return n.claimArgs(server, holding, one, lease) }}
	}
	sent := time.Now()
	for i, cmd := range n.schedule.Run(ctx, n.schedule.step("claim"), calls) {
		results = append(results, n.readClaims(ctx, requests[i:i+1], lease, sent, time.Now(), cmd)...)
	}
	return results
}

// claimArgs returns the arguments of a claim from some partitions on a server.
func (n *Node) claimArgs(server *redis.Client, holding int64, requests []ClaimRequest, lease time.Duration) []any {
	most := MaxClaim
	if e := requests[0].Expected; e > 0 {
		most = min(e, MaxClaim)
	}
	args := []any{
		lease.Milliseconds(), MaxClaim, MaxClaimBytes, holding, most, requests[0].Patience.Milliseconds(),
		n.ClaimedChannel(), n.schedule.guards, n.schedule.forgiven.Load(), n.homes(server),
	}
	for _, r := range requests {
		args = append(args, r.Partition.Prefix(), r.way(), int64(n.heardSinceOn(server, r.Partition)),
			n.lookedUpTo(r.Partition))
	}
	return args
}

// way returns the extent of a claim: full if nothing is known to be due, as there may be something to tidy up.
func (r ClaimRequest) way() string {
	switch {
	case r.full || r.Known == Never:
		return "full"
	case r.Leases:
		return "leases"
	}
	return "usual"
}

// readClaims reads the reply to a claim, which had room for at least the first partition.
func (n *Node) readClaims(ctx context.Context, requests []ClaimRequest, lease time.Duration, sent, received time.Time,
	cmd *redis.Cmd) []ClaimResult {
	const head = 2
	reply, err := ReadReply(cmd, head+1, 1)
	var at time.Time
	if err == nil {
		at, err = redisTime(reply.Text(0), reply.Text(1))
	}
	if err != nil {
		return failedClaims(requests, n.claimFailed(err))
	}
	n.readDueClock(at, sent, received)
	results := make([]ClaimResult, len(requests))
	parts := reply[head:]
	for i := range min(len(parts), len(requests)) {
		results[i] = ClaimResult{Partition: requests[i].Partition, At: at}
		if failed, is := parts[i].(error); is {
			results[i].Err = n.claimFailed(failed)
		} else {
			n.readPart(ctx, &results[i], requests[i], lease, sent, parts.List(i))
		}
	}
	return results[:min(len(parts), len(requests))]
}

// failedClaims returns the results of requests that have all failed.
func failedClaims(requests []ClaimRequest, err error) []ClaimResult {
	results := make([]ClaimResult, len(requests))
	for i, r := range requests {
		results[i] = ClaimResult{Partition: r.Partition, Err: err}
	}
	return results
}

// claimFailed notes and wraps the error of a claim.
func (n *Node) claimFailed(err error) error {
	if !isAnswer(err) {
		n.cutOff.Store(true)
	}
	return fmt.Errorf("schedule: claim: %w", err)
}

// lookedUpTo returns the last place of the claims' search for free timers among many that are on hold, or "". A wrong
// place only delays a free timer until the held ones before it are moved.
func (n *Node) lookedUpTo(p keys.Partition) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.looked[p]
}

// lookFrom keeps the place where the next claim goes on.
func (n *Node) lookFrom(p keys.Partition, place string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if place == "" {
		delete(n.looked, p)
	} else {
		n.looked[p] = place
	}
}

// catchUp reads the list of holds again, and copies it to the node's partitions if it has the generation that claims
// went by: then the copies are old, because the timerd that changed the list died, or its write was lost in a failover.
func (n *Node) catchUp(ctx context.Context, said int64) error {
	l, err := n.schedule.Holds(ctx)
	if err == nil && l.claimGeneration() == said {
		_, err = l.CopyTo(ctx, n)
	}
	return err
}

// kinds returns the kinds of firings in the order in which a claim takes them.
func kinds() []string { return []string{"owed", "freed", "kept", "reclaimed", "due"} }

// readPart reads a partition's part of the reply to a claim: names and values, as claim.lua has them.
func (n *Node) readPart(ctx context.Context, c *ClaimResult, request ClaimRequest, lease time.Duration, sent time.Time,
	part Reply) {
	values := map[string]int{}
	for i := 0; i+1 < len(part); i += 2 {
		values[part.Text(i)] = i + 1
	}
	number := func(name string) int64 {
		if at, ok := values[name]; ok {
			return part.Int(at)
		}
		return 0
	}
	text := func(name string) string {
		if at, ok := values[name]; ok {
			return part.Text(at)
		}
		return ""
	}
	c.Next, c.Untidy = Millis(number("next")), number("untidy") == 1
	if c.full = number("full") == 1; c.full {
		c.Full = n.schedule.cluster
		c.Rescheduled, c.Cancelled, c.Parked = int(number("rescheduled")), int(number("cancelled")), int(
			number("aside"))
		c.ParkedKey = text("aside_key")
		n.lookFrom(request.Partition, text("looked"))
	}
	past := lastWait{until: Millis(number("waited_until")), lastSeen: Millis(number("last_seen")),
		took: time.Duration(number("waited")) * time.Millisecond}
	var corrupt []Firing
	for _, kind := range kinds() {
		if at, ok := values[kind]; ok {
			corrupt = append(corrupt, n.readFirings(c, request, lease, sent, kind, part.List(at))...)
		}
	}
	for i := range c.Firings {
		past.apply(&c.Firings[i])
	}
	if err := n.schedule.Settle(ctx, Outcomes(OutcomeUnfired, corrupt...)); err != nil {
		c.Corrupt = append(c.Corrupt, err)
	}
}

// readFirings reads the firings of a kind, and returns corrupt ones: they must not hold up the others.
func (n *Node) readFirings(c *ClaimResult, request ClaimRequest, lease time.Duration, sent time.Time, kind string,
	rows Reply) (corrupt []Firing) {
	took := max(n.clock.latest(c.At, time.Now()).Sub(sent), 0)
	for i := 0; i+1 < len(rows); i += 2 {
		f, err := newFiring(rows.Text(i), rows.Text(i+1))
		if err != nil {
			c.Corrupt = append(c.Corrupt, err)
			corrupt = append(corrupt, Firing{Ref: rows.Text(i), Partition: request.Partition})
			continue
		}
		f.Partition, f.ClaimedAt, f.Received, f.Took, f.Lease = request.Partition, c.At, sent, took, lease
		f.MayBeStored = (kind == "reclaimed" || kind == "kept") && f.Refusal == policy.Refusal{}
		f.freed = kind == "freed"
		switch {
		case kind == "reclaimed":
			f.Trigger = TriggerReclaim
		case f.Trigger == "" && kind == "due" && f.Due < request.Known:
			f.Trigger = TriggerSweep
		case f.Trigger == "":
			f.Trigger = TriggerDeadline
		}
		c.Firings = append(c.Firings, f)
	}
	return corrupt
}

// redisTime reads the two elements of a TIME reply.
func redisTime(seconds, micros string) (time.Time, error) {
	sec, err1 := strconv.ParseInt(seconds, 10, 64)
	usec, err2 := strconv.ParseInt(micros, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return time.Time{}, fmt.Errorf("unexpected server time: %w", err)
	}
	return time.Unix(sec, usec*1000), nil
}
