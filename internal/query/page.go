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

// pageEntries limits the entries of a page.
const pageEntries = 100

// Page is a part of a listing.
type Page struct {
	Timers []Timer   // by due time; often none
	Until  time.Time // the due time of the page's last entry
	Looked int64     // entries up to the page's end, of every namespace
	Total  int64     // entries at the start of the listing
	Now    time.Time // the latest of the servers' clocks at the start: later timers are pending
	Cut    bool      // some owed or firing timers may be left out
}

// ErrCut is the error for the Cut of a [Page] or of [Found].
var ErrCut = errors.New("too many timers are owed or firing to search them all")

// MovingError means that timers were left out because their slots are moving in a Redis Cluster.
type MovingError struct{ Slots int }

func (e *MovingError) Error() string {
	if e.Slots == 1 {
		return "1 slot of the cluster is moving: try again"
	}
	return fmt.Sprintf("%d slots of the cluster are moving: try again", e.Slots)
}

// Pages calls yield for one page after the other of the unsettled timers, by due time, until it returns false. A page
// has the query's timers within it, and the number of entries searched within the query's due times, as a measure of
// progress. Pages may leave out, or yield twice, only timers set, moved, claimed or fired meanwhile. Of the firing
// timers, and those owed because of an event, it may also leave out all but the first mostFirings in claim order. If
// slots were moving, their timers are left out, and the final error wraps a *MovingError.
func Pages(ctx context.Context, s *schedule.Schedule, q Query, yield func(Page) bool) error {
	return pages(ctx, s, q, true, yield)
}

// Names is Pages without the records, which may be large: a timer has its key, due time and state only.
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
	slots := max(w.moving, len(w.late)) // mostly the same slots: not a sum
	if slots == 0 {
		return nil
	}
	w.s.Reload(ctx) // the slots may have moved by now
	return &MovingError{slots}
}

// timers returns the timers of the query among the entries, with or without their records.
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

// list reads a sorted set from its first entry on.
type list struct {
	index string  // its name
	last  redis.Z // the last entry read; its member is nil before the first
	rank  int64   // the rank after last, at that read
}

// read returns the entries after the last one read, at most that many; none at the end of the list.
//
// Entries leave meanwhile, mostly at the front, where timers fire, and the others move to lower ranks. So each step
// begins a little before the end of the last step. If its first entry is new, some entries may have been skipped, and
// read finds its place again by due time.
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
			// Reads entries with the same due time as the last one again.
			earlier, err := rdb.ZCount(ctx, l.index, "-inf",
				"("+strconv.FormatFloat(l.last.Score, 'f', -1, 64)).Result()
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

// isAfter reports whether an entry comes after the last one read.
func (l *list) isAfter(e redis.Z) bool {
	last, read := l.last.Member.(string)
	member, _ := e.Member.(string)
	return !read || e.Score > l.last.Score || e.Score == l.last.Score && member > last
}
