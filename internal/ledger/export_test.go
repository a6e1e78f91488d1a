package ledger

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/internal/streams"
)

// LookNow compares as Run does each minute.
func (k Keeper) LookNow(ctx context.Context) error {
	was, err := streams.ReadState[record](ctx, k.JetStream, k.Streams, stateComparison)
	if err != nil {
		return err
	}
	return k.compare(ctx, was, was.Looked.Add(time.Minute))
}

// Look looks as Run does, whenever that was last.
func (k Keeper) Look(ctx context.Context) error { return k.look(ctx) }

// Age has the last comparison be unexplained for so much longer.
func (k Keeper) Age(ctx context.Context, by time.Duration) error {
	return streams.ChangeState(ctx, k.JetStream, k.Streams, stateComparison, func(kept *record) bool {
		kept.Last.Unexplained = kept.Last.Unexplained.Add(-by)
		return true
	})
}
