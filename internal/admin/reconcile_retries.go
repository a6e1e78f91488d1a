package admin

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/retry"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// FiredEvent is an event in the stream of firings.
type FiredEvent struct {
	Key string `json:"key"`
	ID  string `json:"id"`
	Seq uint64 `json:"seq"` // its number in the stream
}

// unfinished is a webhook delivery whose last record says that it is tried again.
type unfinished struct {
	last   event.Delivery
	key    keys.Key
	seq    uint64 // of its event; 0 until it is found
	others bool   // its timer has other events, which are later ones if the delivery's own is older than Since
}

// retries sets the lost retries of webhooks again, and lists the other keys that have fired.
type retries struct {
	*Reconciliation
	reader *history.Reader
	dry    bool

	deliveries map[string]*unfinished // by the ids of their timers' first events
	// called are the keys with a record of a delivery, and fired the last events of all other keys; nil if no list of
	// these is wanted.
	called map[keys.Key]bool
	fired  map[keys.Key]FiredEvent
}

// setRetries sets again the webhook deliveries whose last record since Since says that they are tried again, if their
// timer has no later event: Redis may have lost the retry. They fire at once, with the attempt of the lost retry. A
// retry that Redis has is not set twice.
func (r *Reconciliation) setRetries(ctx context.Context, dry bool, out *Reconciled) (err error) {
	rs := retries{Reconciliation: r, reader: history.New(r.JetStream, r.Streams.Names), dry: dry,
		deliveries: map[string]*unfinished{}, called: map[keys.Key]bool{}}
	if r.List {
		rs.fired = map[keys.Key]FiredEvent{}
	}
	if err := rs.readDeliveries(ctx); err != nil {
		return err
	}
	if len(rs.deliveries) > 0 || r.List {
		if err := rs.readEvents(ctx); err != nil {
			return err
		}
	}
	out.Fired = slices.SortedFunc(maps.Values(rs.fired), func(a, b FiredEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	var known map[keys.Key]bool
	out.Retries, known, out.Unset, err = rs.set(ctx)
	out.Doubtful = slices.DeleteFunc(out.Doubtful, func(key keys.Key) bool { return known[key] })
	return err
}

// readDeliveries finds the deliveries to be tried again.
func (rs *retries) readDeliveries(ctx context.Context) error {
	err := rs.reader.EachSince(ctx, keys.Delivery, rs.Since, func(r history.Record) bool {
		if r.Fault != "" {
			return true
		}
		if rs.fired != nil {
			rs.called[r.Key] = true
		}
		switch r.Delivery.Result {
		case event.ResultRetry, event.ResultPostponed:
			rs.deliveries[r.Delivery.Origin] = &unfinished{last: r.Delivery, key: r.Key}
		case event.ResultDelivered, event.ResultDead:
			delete(rs.deliveries, r.Delivery.Origin)
		}
		return true
	})
	if errors.Is(err, history.ErrNoStream) { // there are no webhooks
		return nil
	}
	return err
}

// readEvents finds the events of the deliveries, and drops deliveries whose timers have later ones. It collects the
// last events of other keys.
func (rs *retries) readEvents(ctx context.Context) error {
	waiting := map[keys.Key]int{}
	for _, d := range rs.deliveries {
		waiting[d.key]++
	}
	for from, more := uint64(0), true; more; more = from > 0 {
		var found []history.Identity
		var err error
		if found, from, err = rs.reader.Identities(ctx, keys.Fired, rs.Since, from, reconcileIDs); err != nil {
			return err
		}
		for _, id := range found {
			if rs.fired != nil && !rs.called[id.Key] {
				key := id.Key.String()
				rs.fired[id.Key] = FiredEvent{keys.EncodeText(key), keys.EventID(key, id.Due, id.Attempt), id.Seq}
			}
			if waiting[id.Key] == 0 {
				continue
			}
			m, there, err := rs.reader.Get(ctx, keys.Fired, id.Seq)
			if err != nil {
				return err
			}
			d := rs.deliveries[m.Event.FirstID()]
			switch {
			case !there || m.Fault != "" || d == nil:
			case m.Event.ID == d.last.ID:
				d.seq = id.Seq
			case d.seq > 0:
				delete(rs.deliveries, d.last.Origin)
				waiting[id.Key]--
			default:
				d.others = true
			}
		}
	}
	maps.DeleteFunc(rs.deliveries, func(_ string, d *unfinished) bool { return d.seq == 0 && d.others })
	return nil
}

// set sets the deliveries again, in the order of their events. known are the keys whose retry is set, now or before.
func (rs *retries) set(ctx context.Context) (set int64, known map[keys.Key]bool, failed []keys.Key, err error) {
	known = map[keys.Key]bool{}
	now, err := rs.Schedule.Clock(ctx)
	if err != nil {
		return 0, known, nil, err
	}
	all := slices.SortedFunc(maps.Values(rs.deliveries), func(a, b *unfinished) int {
		return cmp.Compare(a.seq, b.seq)
	})
	for _, d := range all {
		if ctx.Err() != nil {
			return set, known, failed, context.Cause(ctx)
		}
		fresh, err := rs.setOne(ctx, d, schedule.MillisOf(now))
		switch {
		case errors.Is(err, errNoEvent), errors.Is(err, schedule.ErrTooManyRetries),
			errors.Is(err, schedule.ErrGuardSlot):
			failed = append(failed, d.key)
		case err != nil:
			return set, known, failed, err
		case fresh:
			set++
			fallthrough
		default:
			known[d.key] = true
		}
	}
	return set, known, failed, nil
}

// errNoEvent means that the stream has no event that can be set again.
var errNoEvent = errors.New("no event to set again")

// setOne sets one delivery again, and reports whether it was not set before.
func (rs *retries) setOne(ctx context.Context, d *unfinished, now schedule.Millis) (fresh bool, err error) {
	if d.seq == 0 {
		return false, errNoEvent
	}
	m, there, err := rs.reader.Get(ctx, keys.Fired, d.seq)
	if err != nil {
		return false, err
	}
	if !there || NoResend(m) != nil || len(m.Event.Data) > rs.Schedule.MaxPayload() {
		return false, errNoEvent
	}
	again := retry.Again(m.Event, now, d.last.Result == event.ResultPostponed)
	if rs.dry {
		is, err := rs.Schedule.IsRetried(ctx, again)
		return !is, err
	}
	// Without ctx's end, so that the result of a started retry is known.
	_, fresh, err = rs.Schedule.Retry(context.WithoutCancel(ctx), again)
	return fresh, err
}
