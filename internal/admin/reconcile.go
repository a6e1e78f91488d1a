package admin

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// reconcileIDs is the number of ids that are read at a time, while those before them are ended.
	reconcileIDs = 8192
	// timerdGone is the time without a heartbeat after which no timerd is running, timerdLook the interval of checks.
	timerdGone = 5 * time.Second
	timerdLook = 200 * time.Millisecond
)

// Reconciliation ends the timers of a restored Redis whose events, or dead letters, are in the streams.
type Reconciliation struct {
	Schedule  *schedule.Schedule
	JetStream jetstream.JetStream
	Streams   streams.Config
	// Since is the time from which the streams are read: before all writes that Redis has lost. Find sets it.
	Since time.Time
	// Known is the last moment that the schedule knows of, or Since. A timer of an event due later may be doubtful.
	Known time.Time
	// List has Run fill Reconciled.Fired.
	List bool

	waits []schedule.Wait // of timers that wait for the comparison, if Find or Waits has found some
	alone bool            // only timers that wait are ended, and set again
}

// Waits returns how many timers wait for the comparison, about: at its end Run frees those of these waits, and of no
// later one. waits is false if there is no wait.
func (r *Reconciliation) Waits(ctx context.Context) (timers int64, waits bool, err error) {
	r.waits, err = r.Schedule.Waits(ctx)
	for _, w := range r.waits {
		timers += w.Timers
	}
	return timers, len(r.waits) > 0, err
}

// Reconciled is the outcome of a Reconciliation.
type Reconciled struct {
	Events, Letters int64 // that were read
	Ended           int64 // timers, or occurrences of them, that were ended
	// Doubtful are the keys with events since Known for which the schedule has a timer under another id only: they may
	// be those timers, moved or set again since, or set again after the restore. They stay.
	Doubtful []keys.Key
	// Retries is the number of webhook deliveries that were set again; Unset are the keys of deliveries that cannot be.
	Retries int64
	Unset   []keys.Key
	// NoDeliveries is the reason why the log of deliveries cannot be read: no retry was looked for, and Fired is
	// empty, as it is unknown which keys have webhooks.
	NoDeliveries error
	// Fired are the last events of keys without webhooks. Retries that their consumers asked for may be lost.
	Fired []FiredEvent
}

// ErrTimerdRuns means that a timerd is running, so the age of the data is unknown.
var ErrTimerdRuns = errors.New("a timerd is at work, so Redis does not tell from when its data is: use --since")

// ErrClusterAge means that the masters of a cluster may have data of several times.
var ErrClusterAge = errors.New("each master of a cluster may have data of another time: use --since")

// ErrHeartbeatAhead means that a heartbeat lies ahead of Redis's clock.
var ErrHeartbeatAhead = errors.New("the last heartbeat lies ahead of Redis's clock: use --since")

// ErrNoHeartbeat means that the schedule has no heartbeat.
var ErrNoHeartbeat = errors.New("there is no heartbeat in Redis, so it does not tell from when its data is: " +
	"use --since")

// Find sets Since and Known by the last heartbeat before timers began to wait, or if none wait by the last one in the
// schedule, less the longest lease and the duplicate window: a timer that was claimed before it may have been settled
// after it. Within timerdGone it shows whether a timerd is running, if none wait. Its error is one of the above, or of
// the servers.
func (r *Reconciliation) Find(ctx context.Context) error {
	if !r.alone {
		if _, _, err := r.Waits(ctx); err != nil {
			return err
		}
	}
	if len(r.waits) > 0 {
		first := slices.MinFunc(r.waits, func(a, b schedule.Wait) int { return cmp.Compare(a.Last, b.Last) })
		if slices.ContainsFunc(r.waits, func(w schedule.Wait) bool { return w.Ahead }) {
			return ErrHeartbeatAhead
		}
		return r.since(ctx, first.Last.Time())
	}
	masters, err := r.Schedule.Masters(ctx)
	if err != nil {
		return err
	}
	if len(masters) > 0 && masters[0].Name != "" {
		return ErrClusterAge
	}
	first, ago, err := r.Schedule.LastHeartbeat(ctx)
	for last := first; err == nil && ago >= 0 && ago < timerdGone && !first.IsZero(); {
		if last.After(first) {
			return ErrTimerdRuns
		}
		if !backoff.Sleep(ctx, timerdLook) {
			return context.Cause(ctx)
		}
		last, ago, err = r.Schedule.LastHeartbeat(ctx)
	}
	switch {
	case err != nil:
		return err
	case first.IsZero():
		return ErrNoHeartbeat
	case ago < 0:
		return ErrHeartbeatAhead
	}
	return r.since(ctx, first)
}

// since sets Since and Known by the last heartbeat.
func (r *Reconciliation) since(ctx context.Context, last time.Time) (err error) {
	r.Known = last
	r.Since, err = history.Before(ctx, r.JetStream, r.Streams.FiredStream(), last)
	return err
}

// Check returns a *history.ShortStream if the stream of firings does not reach back to Since. Of dead letters nothing
// is wanted: they are purged and replayed.
func (r *Reconciliation) Check(ctx context.Context) error {
	return history.CheckReach(ctx, r.JetStream, r.Streams.FiredStream(), r.Since, r.Known)
}

// Run reads the streams from Since on, ends the timers whose ids it finds, and sets lost retries of webhooks again. If
// dry, it only counts. progress is called with the number of messages read. It may be interrupted and repeated; beside
// an error it returns its work so far. At its end, timers that waited for it are free. If it is interrupted while a
// timerd is running, or one starts, an occurrence of a timer that repeats may fire a second time.
func (r *Reconciliation) Run(ctx context.Context, dry bool, progress func(read int64)) (all Reconciled, err error) {
	e := ending{Reconciliation: r, reader: history.New(r.JetStream, r.Streams.Names), progress: progress,
		as:       schedule.Stored{Lease: history.LongestLease, Known: schedule.MillisOf(r.Known), Dry: dry},
		doubtful: map[keys.Key]schedule.StoredID{}, seed: maphash.MakeSeed(), over: map[uint64]bool{}}
	for more := true; more && err == nil; {
		all.Events, err = e.end(ctx, keys.Fired, schedule.OutcomeFired)
		if err != nil {
			break
		}
		before := e.ended
		all.Letters, err = e.end(ctx, keys.Dead, schedule.OutcomeDead)
		// After an occurrence that became a dead letter, later ones may have fired.
		more = e.ended > before && !dry
	}
	all.Ended = e.ended
	if err == nil {
		all.Doubtful, err = e.stillDoubtful(ctx)
	}
	if err == nil {
		more := int64(0)
		err = r.setRetries(ctx, dry, func() {
			more++
			progress(all.Events + all.Letters + more)
		}, &all)
	}
	for _, w := range r.waits {
		if err == nil && !dry {
			err = r.Schedule.EndWait(ctx, w)
		}
	}
	return all, err
}

// ending ends the timers with the ids of the streams.
type ending struct {
	*Reconciliation
	reader   *history.Reader
	progress func(read int64)
	as       schedule.Stored
	ended    int64

	doubtful map[keys.Key]schedule.StoredID // by key: the id of an event whose timer was not found
	// over has the hashes of keys with a timer that would have ended, where nothing is changed: another timer of such a
	// key may be the one that is still there.
	over map[uint64]bool
	seed maphash.Seed
}

// end ends the timers whose ids the stream of a kind of subject has, and returns the number of messages read.
func (e *ending) end(ctx context.Context, kind string, as schedule.OutcomeKind) (read int64, err error) {
	e.as.Kind = as
	ctx, cancel := context.WithCancel(ctx)
	all := e.read(ctx, kind)
	defer func() {
		cancel()
		for range all { // until the reader has ended
		}
	}()
	for found := range all {
		if found.err != nil {
			return read, found.err
		}
		read += int64(len(found.ids))
		found.ids = slices.DeleteFunc(found.ids, func(id history.Identity) bool { return e.isOthers(id.Key) })
		if kind == keys.Dead {
			found.ids, err = e.ends(ctx, found.ids)
		}
		if err == nil {
			err = e.endAll(ctx, kind, found.ids)
		}
		if err != nil {
			return read, err
		}
		e.progress(read)
	}
	return read, ctx.Err()
}

// foundIDs are some ids of a stream; none beside an error.
type foundIDs struct {
	ids []history.Identity
	err error
}

// read reads the ids of the stream of a kind of subject, one part ahead. It closes the channel after the last part or
// an error, or once ctx has ended.
func (e *ending) read(ctx context.Context, kind string) <-chan foundIDs {
	all := make(chan foundIDs)
	go func() {
		defer close(all)
		for from, more := uint64(0), true; more; {
			var found foundIDs
			found.ids, from, found.err = e.reader.Identities(ctx, kind, e.Since, from, reconcileIDs)
			select {
			case all <- found:
			case <-ctx.Done():
				return
			}
			more = from > 0 && found.err == nil
		}
	}()
	return all
}

// ends returns the ids of dead letters that took the place of an event. The others are of events that have fired, or of
// requests: anybody with the right to ask for retries can have timerd publish some.
func (e *ending) ends(ctx context.Context, found []history.Identity) ([]history.Identity, error) {
	dry := e.as
	dry.Dry = true
	outcomes, err := e.Schedule.EndStored(ctx, dry, storedIDs(found))
	if err != nil {
		return nil, err
	}
	ends := found[:0]
	for i, id := range found {
		if outcomes[i] != schedule.StoredEnded && outcomes[i] != schedule.StoredUnclear {
			continue
		}
		m, ok, err := e.reader.Get(ctx, keys.Dead, id.Seq)
		if err != nil {
			return nil, err
		}
		why := m.Event.DeadReason
		if ok && (why == event.ReasonHeld || strings.HasPrefix(why, event.ReasonLate) ||
			strings.HasPrefix(why, event.ReasonRepeat)) {
			ends = append(ends, id)
		}
	}
	return ends, nil
}

// storedIDs returns ids as the schedule takes them.
func storedIDs(found []history.Identity) []schedule.StoredID {
	ids := make([]schedule.StoredID, len(found))
	for i, id := range found {
		ids[i] = schedule.StoredID{Key: id.Key, Due: schedule.Millis(id.Due), Attempt: id.Attempt}
	}
	return ids
}

// endAll ends the timers with some ids.
func (e *ending) endAll(ctx context.Context, kind string, found []history.Identity) error {
	ids := storedIDs(found)
	outcomes, err := e.Schedule.EndStored(ctx, e.as, ids)
	for i, outcome := range outcomes {
		if outcome == schedule.StoredUnclear && err == nil {
			outcome, err = e.endOccurrence(ctx, kind, ids[i], found[i].Seq)
		}
		switch outcome {
		case schedule.StoredEnded:
			e.ended++
			if e.as.Dry {
				e.over[e.hash(ids[i].Key)] = true
			}
		case schedule.StoredDoubtful:
			// A timer that was set after the restore is not in doubt.
			if !e.over[e.hash(ids[i].Key)] && !e.isLater(ids[i]) {
				e.doubtful[ids[i].Key] = ids[i]
			}
		case schedule.StoredNone, schedule.StoredUnclear:
		}
	}
	return err
}

// hash returns the hash of a key in over.
func (e *ending) hash(k keys.Key) uint64 { return maphash.String(e.seed, k.String()) }

// isLater reports whether an id is of a timer that became due after the restore.
func (e *ending) isLater(id schedule.StoredID) bool {
	return len(e.waits) > 0 && !slices.ContainsFunc(e.waits, func(w schedule.Wait) bool { return id.Due <= w.Until })
}

// isOthers reports whether a key's timers are none of this reconciliation's business: they are on a server whose timers
// do not wait for it.
func (r *Reconciliation) isOthers(k keys.Key) bool {
	if !r.alone {
		return false
	}
	p := r.Schedule.Partition(k.String())
	return !slices.ContainsFunc(r.waits, func(w schedule.Wait) bool { return w.Has(p) })
}

// endOccurrence ends the occurrence of a timer that repeats, if an event is of that one or of a later one. That of a
// retry says nothing about it, and dead letters of retries look like others.
func (e *ending) endOccurrence(ctx context.Context, kind string, id schedule.StoredID,
	seq uint64) (schedule.StoredOutcome, error) {
	if kind == keys.Dead {
		return schedule.StoredNone, nil
	}
	m, ok, err := e.reader.Get(ctx, kind, seq)
	if id.Repeat, id.Occurrence = m.Event.Repeat, m.Event.Occurrence; err != nil || !ok || m.Event.Origin != "" ||
		id.Occurrence == 0 {
		return schedule.StoredNone, err
	}
	outcomes, err := e.Schedule.EndStored(ctx, e.as, []schedule.StoredID{id})
	return outcomes[0], err
}

// stillDoubtful returns the doubtful keys with a timer, sorted.
func (e *ending) stillDoubtful(ctx context.Context) ([]keys.Key, error) {
	ids := slices.Collect(maps.Values(e.doubtful))
	slices.SortFunc(ids, func(a, b schedule.StoredID) int { return cmp.Compare(a.Key.String(), b.Key.String()) })
	dry := e.as
	dry.Dry = true
	outcomes, err := e.Schedule.EndStored(ctx, dry, ids)
	if err != nil {
		return nil, err
	}
	var doubtful []keys.Key
	for i, outcome := range outcomes {
		if outcome != schedule.StoredNone {
			doubtful = append(doubtful, ids[i].Key)
		}
	}
	return doubtful, nil
}
