package history

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// LongestLease is the longest lease of a timerd's claims.
	LongestLease = 30 * time.Second
	// ClocksApart is the longest time by which the clocks of Redis and NATS may differ.
	ClocksApart = 10 * time.Second
)

// ShortStream is the error of a stream that does not reach back far enough.
type ShortStream struct {
	Stream string
	Since  time.Time // when it was to begin
	From   time.Time // when its messages begin; zero if it has none
}

func (e *ShortStream) Error() string {
	if e.From.IsZero() {
		return fmt.Sprintf("the stream %s has no messages from %s on: it was purged, or made anew", e.Stream,
			e.Since.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("the stream %s reaches back to %s, not to %s", e.Stream, e.From.UTC().Format(time.RFC3339Nano),
		e.Since.UTC().Format(time.RFC3339))
}

// Before returns the time from which on the stream of firings is compared with a schedule that knows nothing later than
// a heartbeat: that, less the longest lease and the duplicate window, as a timer that was claimed before it may have
// been settled after it.
func Before(ctx context.Context, js jetstream.JetStream, name string, heartbeat time.Time) (time.Time, error) {
	stream, err := Open(ctx, js, name)
	if err != nil {
		return time.Time{}, err
	}
	return heartbeat.Add(-LongestLease - stream.CachedInfo().Config.Duplicates - ClocksApart), nil
}

// CheckReach returns a *ShortStream if a stream does not reach back to a time. One that begins with its first message
// need not be older than known.
func CheckReach(ctx context.Context, js jetstream.JetStream, name string, since, known time.Time) error {
	stream, err := Open(ctx, js, name)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	is := info.State
	oldest := is.FirstTime
	if is.Msgs == 0 {
		oldest = is.LastTime // when its last message was stored: none has come since
	}
	if is.FirstSeq <= 1 && is.NumDeleted == 0 && !info.Created.After(known) ||
		!oldest.IsZero() && !oldest.After(since) {
		return nil
	}
	return &ShortStream{name, since, is.FirstTime}
}
