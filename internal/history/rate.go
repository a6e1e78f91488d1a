package history

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

const (
	// messagesSpan is the time over which a stream's rate is measured. A younger stream counts as at least shortestSpan
	// old, so that a few messages just after its creation do not make a high rate.
	messagesSpan = time.Hour
	shortestSpan = time.Minute
)

// Rate returns the stream's messages per second of the last hour that it still has.
func Rate(ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo) (float64, error) {
	if info.State.Msgs == 0 {
		return 0, nil
	}
	now := info.TimeStamp
	if now.IsZero() {
		now = time.Now()
	}
	start := now.Add(-messagesSpan)
	consumer, err := js.CreateConsumer(ctx, info.Config.Name, jetstream.ConsumerConfig{
		Description:       "timerd: counts messages",
		DeliverPolicy:     jetstream.DeliverByStartTimePolicy,
		OptStartTime:      &start,
		AckPolicy:         jetstream.AckNonePolicy,
		HeadersOnly:       true,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: idleConsumer,
	})
	if err != nil {
		return 0, err
	}
	counted := consumer.CachedInfo()
	_ = js.DeleteConsumer(ctx, info.Config.Name, counted.Name) // otherwise the server deletes it once inactive
	span := min(max(now.Sub(info.State.FirstTime), shortestSpan), messagesSpan)
	return float64(counted.NumPending) / span.Seconds(), nil
}

// Rates returns the messages per second of the streams of firings, dead letters, deliveries and the history, by their
// names. It leaves out streams that do not exist or cannot be read.
func (r *Reader) Rates(ctx context.Context) map[string]float64 {
	rates := map[string]float64{}
	for _, kind := range []string{keys.Fired, keys.Dead, keys.Delivery, keys.History} {
		stream, err := Open(ctx, r.js, r.stream(kind))
		if err != nil {
			continue
		}
		if rate, err := Rate(ctx, r.js, stream.CachedInfo()); err == nil {
			rates[stream.CachedInfo().Config.Name] = rate
		}
	}
	return rates
}

// Beside returns the state of the streams that no timer passes: the history, and the installation's own data. It leaves
// out streams that do not exist or cannot be read.
func (r *Reader) Beside(ctx context.Context) (all []*jetstream.StreamInfo) {
	for _, name := range []string{r.names.HistoryStream(), r.names.StateStream()} {
		if stream, err := Open(ctx, r.js, name); err == nil {
			all = append(all, stream.CachedInfo())
		}
	}
	return all
}
