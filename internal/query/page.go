package query

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/schedule"
)

// pageEntries is how many entries a page has at most.
const pageEntries = 100

// Page is a stretch of a listing.
type Page struct {
	Timers []Timer   // in it, in the order of their due times; often none
	Until  time.Time // the due time of the last entry of the stretch
	Looked int64     // entries until its end, of every namespace
	Total  int64     // entries that there were when the listing began
	Now    time.Time // by the servers' clocks when it began, the latest of them: what is due after that is pending
	Cut    bool      // there may be more that are owed or firing than were looked at
}

// ErrCut says what the Cut of a [Page] and of [Found] means.
var ErrCut = errors.New("too many timers are owed or firing to look at all of them")

// MovingError says that timers were left out, because their slots are moving in a Redis Cluster.
type MovingError struct{ Slots int }

func (e *MovingError) Error() string {
	if e.Slots == 1 {
		return "1 slot of the cluster is moving: try again"
	}
	return fmt.Sprintf("%d slots of the cluster are moving: try again", e.Slots)
}

// Pages calls yield for one stretch of the timers that are not settled after the other, in the order of their due times,
// until it returns false. They hold those timers of a query. So a caller learns how far a search among many timers has come; it
// counts entries in the due times of the query. Only timers that are set, moved, claimed or fired meanwhile may be left out or come
// twice; and of those that are owed because of an event or firing, all but the first mostFirings, in the order in which they can be
// claimed. At the end an error wraps a *MovingError if slots were moving, whose timers are left out.
func Pages(ctx context.Context, s *schedule.Schedule, q Query, yield func(Page) bool) error {
	return pages(ctx, s, q, true, yield)
}

// Names is Pages without the records, which may be large: of a timer it tells the key, the due time and the state.
func Names(ctx context.Context, s *schedule.Schedule, q Query, yield func(Page) bool) error {
	return pages(ctx, s, q, false, yield)
}

func pages(ctx context.Context, s *schedule.Schedule, q Query, records bool, yield func(Page) bool) error {
	w, err := newWalk(ctx, s, q, Place{}, mostFirings)
	if err != nil {
		return fmt.Errorf("schedule: list timers: %w", err)
	}
	page := Page{Total: w.total, Now: w.now.Time(), Cut: w.cut}
	for more := true; more && !w.done; {
		var all []entry
		if all, err = w.next(ctx); err != nil {
			return fmt.Errorf("schedule: list timers: %w", err)
		}
		for entries := range slices.Chunk(all, pageEntries) {
			if page.Timers, err = w.timers(ctx, entries, records); err != nil {
				return fmt.Errorf("schedule: list timers: %w", err)
			}
			page.Until = entries[len(entries)-1].due.Time()
			page.Looked += int64(len(entries))
			if more = yield(page); !more {
				break
			}
		}
	}
	if err := w.leftOut(ctx); err != nil {
		return fmt.Errorf("schedule: list timers: %w", err)
	}
	return nil
}

// leftOut returns a *MovingError if slots were moving.
func (w *walk) leftOut(ctx context.Context) error {
	slots := max(w.moving, len(w.late)) // mostly it has also come to those
	if slots == 0 {
		return nil
	}
	w.s.Reload(ctx) // they may be elsewhere by now
	return &MovingError{slots}
}

// timers returns those of the entries that are timers of the query, with their records or without.
func (w *walk) timers(ctx context.Context, entries []entry, records bool) ([]Timer, error) {
	all, err := w.judge(ctx, entries)
	if err != nil {
		return nil, err
	}
	if records {
		return w.describe(ctx, all, wholePayload)
	}
	timers := make([]Timer, len(all))
	for i, f := range all {
		timers[i] = f.Timer
	}
	return timers, nil
}

// list is a sorted set that is read from its first entry on.
type list struct {
	index string  // its name
	last  redis.Z // the last one that was read; its member is nil before
	rank  int64   // after the last one, when it was read
}

// read returns the entries after the last one that was read, at most so many; none at the end of the list.
//
// Entries leave meanwhile, mostly at the front, where timers fire, and then the others have lower ranks. So each step
// begins a little before where the last one ended. If the first entry that it finds was not read before, some may have
// been passed over, and it looks by due time for where to go on.
func (l *list) read(ctx context.Context, rdb redis.UniversalClient, most int64) ([]redis.Z, error) {
	overlap := most / 10
	from := max(0, l.rank-overlap)
	for {
		entries, err := rdb.ZRangeWithScores(ctx, l.index, from, from+most-1).Result()
		if err != nil {
			return nil, err
		}
		fresh := slices.IndexFunc(entries, l.isAfter)
		switch {
		case from > 0 && (fresh == 0 || len(entries) == 0):
			// Those with the same due time as the last one are read again.
			earlier, err := rdb.ZCount(ctx, l.index, "-inf", "("+strconv.FormatFloat(l.last.Score, 'f', -1, 64)).Result()
			if err != nil {
				return nil, err
			}
			from = max(0, earlier-overlap)
		case fresh >= 0:
			l.last, l.rank = entries[len(entries)-1], from+int64(len(entries))
			return entries[fresh:], nil
		case int64(len(entries)) < most:
			return nil, nil
		default:
			from += most - overlap
		}
	}
}

// isAfter tells whether an entry comes after the last one that was read.
func (l *list) isAfter(e redis.Z) bool {
	last, read := l.last.Member.(string)
	member, _ := e.Member.(string)
	return !read || e.Score > l.last.Score || e.Score == l.last.Score && member > last
}
