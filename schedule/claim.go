package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// ClaimRequest is a partition to claim from.
type ClaimRequest struct {
	Partition keys.Partition
	Known     Millis // the first due time that the caller knew of: timers due before it fire by TriggerSweep
	// Expected is about how many firings there are: looking for more costs Redis a little. 0 means MaxClaim. The next
	// claim takes the rest.
	Expected int
	// Patience is for how long what is due is left to others: a claim by which the usual is claimed takes nothing that
	// is due for a shorter time.
	Patience time.Duration
	// Leases says that a lease may be over by now. In a cluster the usual way of a claim does not look for any by
	// itself.
	Leases bool
}

// ClaimResult is the outcome of a claim.
type ClaimResult struct {
	Partition   keys.Partition
	Firings     []Firing
	At          time.Time // the Redis server's clock at the claim
	Next        Millis    // when there is something to claim next; AtOnce, or Nothing if nothing is known
	Untidy      bool      // more tombstones are to be removed: claim again when idle
	Full        bool      // of a cluster: it was not made by the usual way, and Next may be the end of a lease
	Rescheduled int       // timers that were due but whose key had got a later TTL
	Cancelled   int       // timers that were due but whose key had lost its TTL
	Parked      int       // due timers that wait, without stopping others, because the key cannot be read
	ParkedKey   string    // the key of one of them
	Corrupt     []error   // entries that were not timers; they were removed
	Err         error     // why the claim failed; then the rest is empty
}

// Claim takes firings under a lease, up to MaxClaim from each of several partitions: those that are owed, those whose
// lease has ended, and those that are due. The results are in the order of the requests; an error for one says nothing
// about the others. Firings that a caller does not settle, because it crashed, failed or never got the reply, can be
// claimed again when the lease is over.
//
// Claim also plans new cron timers; only those it cannot plan are returned, with Fault set.
func (n *Node) Claim(ctx context.Context, requests []ClaimRequest, lease time.Duration) []ClaimResult {
	n.readHoldsAgain(ctx)
	var results []ClaimResult
	if !n.schedule.cluster && n.detour.taken() {
		results = n.claimInFull(ctx, requests, lease)
	} else {
		var unusual []int
		results, unusual = n.claimShort(ctx, requests, lease)
		redo(results, unusual, requests, func(rest []ClaimRequest) []ClaimResult { return n.claimInFull(ctx, rest, lease) })
	}
	var plans []Firing
	for i := range results {
		results[i].Firings, plans = n.schedule.takePlans(results[i].Firings, plans)
	}
	if len(plans) > 0 {
		_ = n.schedule.settleRepeating(ctx, Outcomes(OutcomeUnfired, plans...)) // else the timerd that claims them after the lease plans them
	}
	return results
}

// redo claims once more what is at some places among the requests, and puts the results there.
func redo(results []ClaimResult, places []int, requests []ClaimRequest, claim func([]ClaimRequest) []ClaimResult) {
	if len(places) == 0 {
		return
	}
	some := make([]ClaimRequest, len(places))
	for i, at := range places {
		some[i] = requests[at]
	}
	for i, result := range claim(some) {
		results[places[i]] = result
	}
}

// holdsAgainTimeout bounds how long a claim waits for the list of holds.
const holdsAgainTimeout = time.Second

// readHoldsAgain reads the list of holds if a claim has had no answer since that was done last: the server, or this
// timerd, may have been cut off while something was held, and have an older list. Where the list cannot be had, claims
// go on by what is known.
func (n *Node) readHoldsAgain(ctx context.Context) {
	if !n.cutOff.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holdsAgainTimeout)
	defer cancel()
	_, _ = n.schedule.Holds(ctx) // see above
}

// claimShort claims by the short way, from many partitions with each call. It returns the indices of the requests for
// which that does not do, where nothing was moved.
func (n *Node) claimShort(ctx context.Context, requests []ClaimRequest, lease time.Duration) (results []ClaimResult, declined []int) {
	results = make([]ClaimResult, len(requests))
	for first := 0; first < len(requests); {
		some := requests[first:min(first+maxPartitions, len(requests))]
		sent := time.Now()
		reply, at, err := n.runShort(ctx, some, lease)
		for i, request := range some {
			result := &results[first+i]
			*result = ClaimResult{Partition: request.Partition, Err: err, At: at}
			if err != nil {
				continue
			}
			if i == len(reply) {
				some = some[:i] // no more was looked at
				break
			}
			failed, _ := reply[i].(error)
			switch part := reply.List(i); {
			case failed != nil:
				result.Err = n.claimFailed(failed)
			case len(part) == 0:
				n.detour.take(detourLength)
				declined = append(declined, first+i)
			case len(part) == 1 && request.Known == Never: // nothing is due: there may be something to tidy up
				declined = append(declined, first+i)
			default:
				result.Next = Millis(part.Int(0))
				n.readFirings(ctx, result, request, lease, sent, part[1:], shortForm())
			}
		}
		first += len(some)
	}
	return results, declined
}

// runShort runs the short way for the first ones of some requests. It returns what each of them brought: of one at
// least.
func (n *Node) runShort(ctx context.Context, requests []ClaimRequest, lease time.Duration) (parts Reply, at time.Time, err error) {
	most, patience := MaxClaim, requests[0].Patience
	if e := requests[0].Expected; e > 0 {
		most = min(e, MaxClaim)
	}
	args := []any{lease.Milliseconds(), MaxClaim, MaxClaimBytes, n.schedule.holding.Load(), most, patience.Milliseconds(), n.ClaimedChannel()}
	for _, r := range requests {
		args = append(args, r.Partition.Prefix(), r.Leases)
	}
	sent := time.Now()
	const head = 2
	reply, err := ReadReply(n.schedule.step("claim_short").Run(ctx, n.server, nil, args...), head+1, 1)
	received := time.Now()
	if err == nil {
		at, err = redisTime(reply.Text(0), reply.Text(1))
	}
	if err != nil {
		return nil, at, n.claimFailed(err)
	}
	n.ReadClock(at, sent, received)
	return reply[head:], at, nil
}

// claimFailed notes and wraps the error of a claim.
func (n *Node) claimFailed(err error) error {
	if !isAnswer(err) {
		n.cutOff.Store(true)
	}
	return fmt.Errorf("schedule: claim: %w", err)
}

// claimInFull claims by the script that can do everything. Where a partition's copy of the list of holds is older than
// what this timerd knows of it, it brings the two together and claims once more.
func (n *Node) claimInFull(ctx context.Context, requests []ClaimRequest, lease time.Duration) []ClaimResult {
	said := n.schedule.holding.Load()
	results := n.claimBy(ctx, said, requests, lease)
	var behind []int
	for i, result := range results {
		if redis.HasErrorPrefix(result.Err, "BEHIND timerd") {
			behind = append(behind, i)
		}
	}
	if len(behind) > 0 && n.catchUp(ctx, said) == nil {
		redo(results, behind, requests, func(rest []ClaimRequest) []ClaimResult {
			return n.claimBy(ctx, n.schedule.holding.Load(), rest, lease)
		})
	}
	return results
}

// claimBy claims in full by what is known of the list of holds.
func (n *Node) claimBy(ctx context.Context, holding int64, requests []ClaimRequest, lease time.Duration) []ClaimResult {
	calls := make([]Call, len(requests))
	for i, r := range requests {
		looked, channel := n.lookedUpTo(r.Partition), n.ClaimedChannel()
		calls[i] = Call{Partition: r.Partition, ArgsOn: func(server *redis.Client) []any {
			since := n.heardSinceOn(server, r.Partition)
			return []any{lease.Milliseconds(), MaxClaim, MaxClaimBytes, int64(since), holding, looked, channel}
		}}
	}
	sent := time.Now()
	replies := n.schedule.Run(ctx, n.schedule.step("claim"), calls)
	received := time.Now()
	results := make([]ClaimResult, len(requests))
	for i, r := range requests {
		result, err := n.readClaim(ctx, r, lease, sent, received, replies[i])
		if err != nil {
			result = ClaimResult{Partition: r.Partition, Err: n.claimFailed(err)}
		}
		if result.Untidy {
			n.detour.take(1)
		}
		results[i] = result
	}
	return results
}

// lookedUpTo returns up to where claims have looked for what is free among many due timers that are held, or "". It is
// only a hint: where it is wrong, what is free waits until those before it are moved.
func (n *Node) lookedUpTo(p keys.Partition) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.looked[p]
}

// lookFrom keeps from where the next claim goes on to look.
func (n *Node) lookFrom(p keys.Partition, place string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if place == "" {
		delete(n.looked, p)
	} else {
		n.looked[p] = place
	}
}

// catchUp reads the list of holds again, and copies it to the node's partitions if it is as claims said that it is:
// then the copies are old, because whoever changed the list died, or lost in a failover.
func (n *Node) catchUp(ctx context.Context, said int64) error {
	l, err := n.schedule.Holds(ctx)
	if err == nil && l.claimGeneration() == said {
		_, err = l.CopyTo(ctx, n)
	}
	return err
}

// claimForm is the form of a script's reply: how many elements are before the firings, and how many each of these has.
type claimForm struct{ before, each int }

func fullForm() claimForm  { return claimForm{9, 3} }
func shortForm() claimForm { return claimForm{1, 2} }

// readClaim reads the reply to a claim in full.
func (n *Node) readClaim(ctx context.Context, request ClaimRequest, lease time.Duration, sent, received time.Time, cmd *redis.Cmd) (ClaimResult, error) {
	form := fullForm()
	reply, err := ReadReply(cmd, form.before, form.each)
	if err != nil {
		return ClaimResult{}, err
	}
	at, err := redisTime(reply.Text(0), reply.Text(1))
	if err != nil {
		return ClaimResult{}, err
	}
	n.ReadClock(at, sent, received)
	c := ClaimResult{
		Partition: request.Partition, At: at, Full: n.schedule.cluster, Next: Millis(reply.Int(2)), Untidy: reply.Int(3) == 1,
		Rescheduled: int(reply.Int(4)), Cancelled: int(reply.Int(5)), Parked: int(reply.Int(6)), ParkedKey: reply.Text(7),
	}
	n.lookFrom(request.Partition, reply.Text(8))
	n.readFirings(ctx, &c, request, lease, sent, reply[form.before:], form)
	return c, nil
}

// readFirings reads the firings that a claim has brought, and removes what is corrupt.
func (n *Node) readFirings(ctx context.Context, c *ClaimResult, request ClaimRequest, lease time.Duration, sent time.Time, rows Reply, form claimForm) {
	if len(rows) == 0 {
		return
	}
	took := max(n.clock.latest(c.At, time.Now()).Sub(sent), 0)
	c.Firings = make([]Firing, 0, len(rows)/form.each)
	var corrupt []Firing
	for i := 0; i+form.each <= len(rows); i += form.each {
		ref, how := rows.Text(i), "d"
		if form == fullForm() {
			how = rows.Text(i + 2)
		}
		f, err := newFiring(ref, rows.Text(i+1))
		if err != nil {
			// It must not hold up the others.
			c.Corrupt = append(c.Corrupt, err)
			corrupt = append(corrupt, Firing{Ref: ref, Partition: request.Partition})
			continue
		}
		f.Partition, f.ClaimedAt, f.Received, f.Took, f.Lease = request.Partition, c.At, sent, took, lease
		f.MayBeStored, f.freed = how == "r" || how == "p", how == "f"
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
	if err := n.schedule.Settle(ctx, Outcomes(OutcomeUnfired, corrupt...)); err != nil {
		c.Corrupt = append(c.Corrupt, err)
	}
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
