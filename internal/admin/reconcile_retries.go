package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

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

// unfinished is a webhook delivery whose record says that it is tried again.
type unfinished struct {
	key       keys.Key
	id        string // of its event
	postponed bool
	at        time.Time // of the record
	seq       uint64    // of its event; 0 until it is found
	others    bool      // its timer has other events before its own, or while that is not found
}

// retries sets the lost retries of webhooks again, and lists the other keys that have fired.
type retries struct {
	*Reconciliation
	reader   *history.Reader
	progress func()
	dry      bool

	since time.Time // of records
	from  time.Time // of events: the due time of the first unfinished one, or Since
	// deliveries are by the ids of their timers' first events, and then by those of their own.
	deliveries map[string]map[string]*unfinished
	// called are the keys with a record of a delivery, and fired the last events of all other keys; nil if no list of
	// these is wanted.
	called map[keys.Key]bool
	fired  map[keys.Key]FiredEvent
}

// rememberedFor is the time for which a schedule surely knows of the retries that were set.
const rememberedFor = 23 * time.Hour

// setRetries sets again the webhook deliveries with a record since Since that says that they are tried again, if their
// timer has no later event and no dead letter: Redis may have lost the retry. They fire at once, with the attempt of
// the lost retry. A retry that Redis has, or had within a day, is not set again; nor is one of a record so old that
// Redis may have forgotten it.
func (r *Reconciliation) setRetries(ctx context.Context, dry bool, progress func(),
	out *Reconciled) (err error) {
	rs := retries{Reconciliation: r, reader: history.New(r.JetStream, r.Streams.Names), progress: progress, dry: dry,
		since: r.Since, from: r.Since, deliveries: map[string]map[string]*unfinished{}, called: map[keys.Key]bool{}}
	if r.List {
		rs.fired = map[keys.Key]FiredEvent{}
	}
	last := r.Known // if timers wait, the last heartbeat before the restore: later ones were sent since
	if len(r.waits) == 0 {
		var err error
		if last, _, err = r.Schedule.LastHeartbeat(ctx); err != nil {
			return err
		}
	}
	if oldest := last.Add(-rememberedFor); !last.IsZero() && oldest.After(rs.since) {
		rs.since = oldest
	}
	if err := rs.readDeliveries(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		out.NoDeliveries = err
		return nil
	}
	if len(rs.deliveries) > 0 || r.List {
		for _, kind := range []string{keys.Fired, keys.Dead} {
			if err := rs.readEvents(ctx, kind); err != nil {
				return err
			}
		}
	}
	out.Fired = slices.SortedFunc(maps.Values(rs.fired), func(a, b FiredEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	out.Retries, out.Unset, err = rs.set(ctx)
	return err
}

// readDeliveries finds the deliveries to be tried again. Each group of timerd deliver has records of its own: one that
// asked for a retry is as good as all.
func (rs *retries) readDeliveries(ctx context.Context) error {
	err := rs.reader.EachSince(ctx, keys.Delivery, rs.since, func(r history.Record) bool {
		rs.progress()
		if r.Fault != "" || rs.isOthers(r.Key) {
			return true
		}
		if rs.fired != nil {
			rs.called[r.Key] = true
		}
		d := r.Delivery
		if d.Result != event.ResultRetry && d.Result != event.ResultPostponed {
			return true
		}
		of := rs.deliveries[d.Origin]
		if of == nil {
			of = map[string]*unfinished{}
			rs.deliveries[d.Origin] = of
		}
		of[d.ID] = &unfinished{key: r.Key, id: d.ID, postponed: d.Result == event.ResultPostponed, at: d.Time}
		if _, due, _, ok := keys.ParseEventID(d.ID); ok && time.UnixMilli(due).Before(rs.from) {
			rs.from = time.UnixMilli(due)
		}
		return true
	})
	if errors.Is(err, history.ErrNoStream) { // there are no webhooks
		return nil
	}
	return err
}

// readEvents finds the events of the deliveries, and drops deliveries whose timers have later ones, or have dead
// letters. It collects the last events of other keys.
func (rs *retries) readEvents(ctx context.Context, kind string) error {
	waiting := map[keys.Key]bool{}
	for _, of := range rs.deliveries {
		for _, d := range of {
			waiting[d.key] = true
		}
	}
	since := rs.from
	if kind == keys.Dead {
		since = rs.since
	}
	for from, more := uint64(0), true; more; more = from > 0 {
		var found []history.Identity
		var err error
		if found, from, err = rs.reader.Identities(ctx, kind, since, from, reconcileIDs); err != nil {
			return err
		}
		for _, id := range found {
			rs.progress()
			if kind == keys.Fired && rs.fired != nil && !rs.called[id.Key] {
				key := id.Key.String()
				rs.fired[id.Key] = FiredEvent{keys.EncodeText(key), keys.EventID(key, id.Due, id.Attempt), id.Seq}
			}
			if !waiting[id.Key] {
				continue
			}
			m, there, err := rs.reader.Get(ctx, kind, id.Seq)
			if err != nil {
				return err
			}
			if there && m.Fault == "" {
				rs.note(kind, m)
			}
		}
	}
	if kind == keys.Fired {
		for origin, of := range rs.deliveries {
			// Without its own event, the others are later ones.
			maps.DeleteFunc(of, func(_ string, d *unfinished) bool { return d.seq == 0 && d.others })
			if len(of) == 0 {
				delete(rs.deliveries, origin)
			}
		}
	}
	return nil
}

// note notes an event, or a dead letter, of a timer with unfinished deliveries.
func (rs *retries) note(kind string, m history.Record) {
	of := rs.deliveries[m.Event.FirstID()]
	for id, d := range of {
		switch {
		case d.key != m.Key:
		case kind == keys.Dead:
			if m.Stored.After(d.at.Add(-history.ClocksApart)) {
				delete(of, id)
			}
		case m.Event.ID == id:
			d.seq = m.Seq
		case d.seq > 0:
			delete(of, id)
		default:
			d.others = true
		}
	}
}

// set sets the deliveries again, in the order of their events. unset are the keys of deliveries that cannot be.
func (rs *retries) set(ctx context.Context) (set int64, unset []keys.Key, err error) {
	now, err := rs.Schedule.Clock(ctx)
	if err != nil {
		return 0, nil, err
	}
	var all []*unfinished
	for _, of := range rs.deliveries {
		all = slices.AppendSeq(all, maps.Values(of))
	}
	slices.SortFunc(all, func(a, b *unfinished) int {
		return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.id, b.id))
	})
	for _, d := range all {
		if ctx.Err() != nil {
			return set, unset, context.Cause(ctx)
		}
		rs.progress()
		fresh, err := rs.setOne(ctx, d, schedule.MillisOf(now))
		switch {
		case errors.Is(err, errNoEvent), errors.Is(err, schedule.ErrTooManyRetries),
			errors.Is(err, schedule.ErrGuardSlot):
			unset = append(unset, d.key)
		case err != nil:
			return set, unset, fmt.Errorf("set the retry of %s again: %w", keys.EncodeText(d.key.String()), err)
		case fresh:
			set++
		}
	}
	return set, unset, nil
}

// errNoEvent means that the stream has no event that can be set again.
var errNoEvent = errors.New("no event to set again")

// setOne sets one delivery again, and reports whether it was not set before.
func (rs *retries) setOne(ctx context.Context, d *unfinished, now schedule.Millis) (fresh bool, err error) {
	if was, err := rs.Schedule.IsRetried(ctx, d.key, d.id); was || err != nil { // an id that timerd made
		return false, err
	}
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
	again := retry.Again(m.Event, now, d.postponed)
	if rs.dry {
		was, err := rs.Schedule.IsRetried(ctx, d.key, again.EventID)
		return !was, err
	}
	// Without ctx's end, so that the result of a started retry is known.
	_, fresh, err = rs.Schedule.Retry(context.WithoutCancel(ctx), again)
	return fresh, err
}
