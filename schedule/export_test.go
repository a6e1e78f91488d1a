package schedule

import (
	"context"
	"time"
)

// ClaimInFull is Claim by the script that can do everything.
func (n *Node) ClaimInFull(ctx context.Context, r ClaimRequest, lease time.Duration) ClaimResult {
	return n.claimInFull(ctx, []ClaimRequest{r}, lease)[0]
}

// ClaimShort is Claim by the short way alone. It tells whether that did.
func (n *Node) ClaimShort(ctx context.Context, r ClaimRequest, lease time.Duration) (c ClaimResult, done bool) {
	results, unusual := n.claimShort(ctx, []ClaimRequest{r}, lease)
	return results[0], len(unusual) == 0
}

// HearSince says since when every event was heard, as StartHearing does of now.
func (n *Node) HearSince(since Millis) { n.hearSince(since) }
