package doctor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
)

const (
	// rateSpan is how far back the rate of a stream is taken from, and shortestSpan the shortest time that a
	// stream which is younger counts as, so that a few messages just after its birth do not count as a rate.
	rateSpan     = time.Hour
	shortestSpan = time.Minute
	// filling is which part of the room that there is a fix leaves to the stream.
	filling = 0.8
)

// growth judges how the streams grow that consumers do not empty.
func (d *NATS) growth(ctx context.Context, r *diag.Findings) {
	if d.account == nil {
		return
	}
	for _, stream := range []string{d.want.FiredStream(), d.want.DeliveryStream()} {
		d.growthOf(ctx, stream, r)
	}
}

// growthOf compares how large a stream becomes at its present rate with the room that there is. It says nothing where the
// stream is missing or cannot be read, which other checks tell.
func (d *NATS) growthOf(ctx context.Context, name string, r *diag.Findings) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout)
	defer cancel()
	stream, err := d.js.Stream(ctx, name)
	if err != nil {
		return
	}
	info := stream.CachedInfo()
	perSecond, err := d.rate(ctx, info)
	if err != nil {
		return
	}
	config, room := info.Config, d.room(info)
	copies := float64(max(config.Replicas, 1))
	each := float64(info.State.Bytes) / float64(max(info.State.Msgs, 1))
	aDay := perSecond * each * copies * (24 * time.Hour).Seconds()
	size, kept := math.Inf(1), "for ever"
	if config.MaxAge > 0 {
		size, kept = aDay*config.MaxAge.Hours()/24, "for "+diag.Duration(config.MaxAge)
	}
	if config.MaxBytes > 0 {
		size = min(size, float64(config.MaxBytes)*copies)
	}
	rate := fmt.Sprintf("%s gets %.3g messages/s of %.0f bytes and keeps them %s", name, perSecond, each, kept)
	switch {
	case aDay == 0:
		r.OK("%s has got no messages lately", name)
	case size <= room && math.IsInf(size, 1): // there is no end to either
		r.OK("%s: %s a day, without an end", rate, showBytes(aDay))
	case size <= room:
		r.OK("%s: %s", rate, showBytes(size))
	default:
		r.Warn(fmt.Sprintf("give JetStream a larger disk; or, if nobody needs the oldest, which this drops, read or not: nats stream edit %[1]s --max-age=%[2]s --force; or: nats stream edit %[1]s --max-bytes=%.0[3]fKB --force",
			name, shownAge(room*filling/aDay), math.Floor(room*filling/copies/1024)),
			"%s: %s a day, and there is room for %s: a full store delays every timer", rate, showBytes(aDay), showBytes(room))
	}
}

// rate returns how many messages a second a stream has got lately.
func (d *NATS) rate(ctx context.Context, info *jetstream.StreamInfo) (float64, error) {
	if info.State.Msgs == 0 {
		return 0, nil
	}
	now := info.TimeStamp
	if now.IsZero() {
		now = time.Now()
	}
	start := now.Add(-rateSpan)
	consumer, err := d.js.CreateConsumer(ctx, info.Config.Name, jetstream.ConsumerConfig{
		Description:       "timerd doctor: counts messages",
		DeliverPolicy:     jetstream.DeliverByStartTimePolicy,
		OptStartTime:      &start,
		AckPolicy:         jetstream.AckNonePolicy,
		HeadersOnly:       true,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: 2 * answerTimeout,
	})
	if err != nil {
		return 0, err
	}
	counted := consumer.CachedInfo()
	_ = d.js.DeleteConsumer(ctx, info.Config.Name, counted.Name) // otherwise the server does, when it is inactive
	span := min(max(now.Sub(info.State.FirstTime), shortestSpan), rateSpan)
	return float64(counted.NumPending) / span.Seconds(), nil
}

// room returns how many bytes of storage there are for a stream, infinitely many if no limit is known.
func (d *NATS) room(info *jetstream.StreamInfo) float64 {
	own := float64(info.State.Bytes) * float64(max(info.Config.Replicas, 1))
	room := math.Inf(1)
	if most := d.account.Limits.MaxStore; most > 0 {
		room = float64(most) - float64(d.account.Store) + own
	}
	if d.FreeDisk > 0 {
		room = min(room, float64(d.FreeDisk)+own)
	}
	return max(room, 0)
}

// shownAge writes so many days as the nats command takes them.
func shownAge(days float64) string {
	if hours := days * 24; hours >= 2 {
		return fmt.Sprintf("%.0fh", math.Floor(hours))
	}
	return fmt.Sprintf("%.0fm", max(math.Floor(days*24*60), 10))
}

// showBytes writes a number of bytes with three digits and a unit.
func showBytes(n float64) string {
	units := []string{"bytes", "kB", "MB", "GB", "TB", "PB"}
	i := 0
	for n >= 1000 && i < len(units)-1 {
		n /= 1000
		i++
	}
	return fmt.Sprintf("%.3g %s", n, units[i])
}
