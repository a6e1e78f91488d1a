package schedule

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

const (
	// longestClaim and longestPause bound a claim and a pause: a clock that was ahead wrote any that lies further
	// ahead. Package config allows no longer lease, and package notify makes no longer pause.
	longestClaim, longestPause = 30 * time.Second, time.Minute
	// setBackPage bounds the firings, and the tombstones, changed by one call: some 0.5 ms.
	setBackPage = 256
)

// IsBehind reports whether the server's clock was set back: whether it shows less than it has shown before.
func (n *Node) IsBehind() bool { return n.evidence.isBehind() }

// PutRight rewrites the times of a clock that was ahead, once the clock is back. It plans again the occurrences that
// were planned while the clock was ahead, except where FROM, EXPIRE, a move or a shift has set them that far ahead. It
// shortens claims and pauses that last longer than any can: such claims end after a lease from now, such pauses at
// once, and timers spaced by a resume keep their intervals. It returns the numbers of occurrences planned and of claims
// and pauses shortened. It is for one goroutine at a time.
func (n *Node) PutRight(ctx context.Context, lease time.Duration) (planned, shortened int, err error) {
	var repeating, others []string
	longest := max(longestClaim, lease)
	args := []any{AheadBy.Milliseconds(), max(longest, longestPause).Milliseconds()}
	err = n.Master().RunOver(ctx, n.schedule.step("ahead"), Chunk, args, func(cmd *redis.Cmd) error {
		found, err := ReadReply(cmd, 2, 0)
		if err == nil {
			repeating, others = append(repeating, found.List(0).texts()...), append(others, found.List(1).texts()...)
		}
		return err
	})
	if err == nil {
		shortened, err = n.setBack(ctx, partitionsOf(others), longest, lease)
	}
	for _, p := range partitionsOf(repeating) {
		if err != nil {
			break
		}
		var some int
		some, err = n.replan(ctx, p)
		planned += some
	}
	if err != nil {
		return planned, shortened, fmt.Errorf("schedule: rewrite the times of a clock that was ahead: %w", err)
	}
	return planned, shortened, nil
}

// partitionsOf returns the partitions with hash tags.
func partitionsOf(hashTags []string) []keys.Partition {
	all := make([]keys.Partition, len(hashTags))
	for i, tag := range hashTags {
		all[i] = keys.Partition(tag)
	}
	return all
}

// setBack shortens claims and pauses in some partitions. Timers spaced by a resume come earlier by the same time in all
// of them, so a first pass finds the earliest.
func (n *Node) setBack(
	ctx context.Context, partitions []keys.Partition, longest, lease time.Duration,
) (shortened int, err error) {
	earlier := int64(math.MaxInt64)
	var spaced []keys.Partition
	for _, p := range partitions {
		some, first, err := n.schedule.setBack(ctx, p, longest, lease, "")
		if shortened += some; err != nil {
			return shortened, err
		}
		if first >= 0 {
			earlier = min(earlier, first)
			spaced = append(spaced, p)
		}
	}
	for _, p := range spaced {
		some, _, err := n.schedule.setBack(ctx, p, longest, lease, earlier)
		if shortened += some; err != nil {
			return shortened, err
		}
	}
	return shortened, nil
}

// setBack shortens claims and pauses in a partition. earlier is the shift of timers spaced by a resume, in ms; with ""
// they stay, and firstSpaced is the ms until the first of them fires, or -1.
func (s *Schedule) setBack(
	ctx context.Context, p keys.Partition, longest, lease time.Duration, earlier any,
) (shortened int, firstSpaced int64, err error) {
	firstSpaced = -1
	for skip := int64(0); ; {
		args := []any{
			AheadBy.Milliseconds(), longest.Milliseconds(), longestPause.Milliseconds(), lease.Milliseconds(),
			earlier, skip, setBackPage,
		}
		reply, err := ReadReply(s.Run(ctx, s.step("set_back"), []Call{{Partition: p, Args: args}})[0], 5, 0)
		if err != nil {
			return shortened, firstSpaced, err
		}
		skip += reply.Int(1)
		shortened += int(reply.Int(2))
		if firstSpaced < 0 {
			firstSpaced = reply.Int(4)
		}
		if reply.Int(0) < setBackPage && reply.Int(3) < setBackPage {
			return shortened, firstSpaced, nil
		}
	}
}
