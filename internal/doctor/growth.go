package doctor

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
)

// filling is the part of the free room that a fix allows the stream.
const filling = 0.8

// growth judges the growth of the streams that consumers do not empty.
func (d *NATS) growth(ctx context.Context, r *diag.Findings) {
	if d.account == nil {
		return
	}
	for _, stream := range []string{d.want.FiredStream(), d.want.DeliveryStream()} {
		d.growthOf(ctx, stream, r)
	}
}

// growthOf compares a stream's future size at its present rate with the room for it. It adds nothing if the stream is
// missing or unreadable: other checks report that.
func (d *NATS) growthOf(ctx context.Context, name string, r *diag.Findings) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerTimeout)
	defer cancel()
	stream, err := d.js.Stream(ctx, name)
	if err != nil {
		return
	}
	info := stream.CachedInfo()
	perSecond, err := history.Rate(ctx, d.js, info)
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
	case size <= room && math.IsInf(size, 1): // neither a limit nor an end
		r.OK("%s: %s a day, without an end", rate, showBytes(aDay))
	case size <= room:
		r.OK("%s: %s", rate, showBytes(size))
	default:
		r.Warn(fmt.Sprintf("give JetStream a larger disk; or, if nobody needs the oldest, which this drops, read or "+
			"not: nats stream edit %[1]s --max-age=%[2]s --force; or: nats stream edit %[1]s --max-bytes=%.0[3]fKB "+
			"--force",
			name, shownAge(room*filling/aDay), math.Floor(room*filling/copies/1024)),
			"%s: %s a day, and there is room for %s: a full store delays every timer", rate, showBytes(aDay),
			showBytes(room))
	}
}

// room returns the bytes of storage for a stream; infinite if no limit is known.
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

// shownAge formats a number of days for the nats command.
func shownAge(days float64) string {
	if hours := days * 24; hours >= 2 {
		return fmt.Sprintf("%.0fh", math.Floor(hours))
	}
	return fmt.Sprintf("%.0fm", max(math.Floor(days*24*60), 10))
}

// showBytes formats a number of bytes with three digits and a unit.
func showBytes(n float64) string {
	units := []string{"bytes", "kB", "MB", "GB", "TB", "PB"}
	i := 0
	for n >= 1000 && i < len(units)-1 {
		n /= 1000
		i++
	}
	return fmt.Sprintf("%.3g %s", n, units[i])
}
