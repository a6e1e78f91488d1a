package query

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// Most limits one call of Find. A field of 0 stands for the default.
type Most struct {
	Timers  int           // in the result; default 50
	Entries int64         // to search; default 200,000
	Time    time.Duration // approximate; default 400 ms
	Payload int           // bytes of each payload; by default none
}

// The defaults of Most. Find reads the firings again at each call, so it reads fewer than other listings.
const (
	findTimers  = 50
	findEntries = 200_000
	findTime    = 400 * time.Millisecond
	findFirings = 20_000
)

// Found is a page of a query's timers.
type Found struct {
	Timers []Timer   // by due time
	Next   Place     // the begin of the next page; the zero Place: this is the last one
	Full   bool      // Timers has as many as asked for; otherwise, with Next set, the search is unfinished
	Looked int64     // entries of every key from the query's first due time to Next, all earlier pages included
	Total  int64     // entries within the query's due times and, if possible to tell, its states
	Until  time.Time // the due time reached; the zero Time if there was nothing to search
	Now    time.Time // the latest of the servers' clocks: later timers are pending
	Cut    bool      // some owed or firing timers may be left out, see ErrCut
	Moving error     // a *MovingError if timers of moving slots are left out; else nil
}

// Find searches the timers of a query from a place on, by due time. It takes bounded time, however many timers there
// are, and returns its finds and the next place. It may leave out, or return twice, only timers set, moved, claimed or
// fired meanwhile. Of the firing timers, and those owed because of an event, it may also leave out all but the first
// findFirings in claim order.
func Find(ctx context.Context, s *schedule.Schedule, q Query, from Place, most Most) (Found, error) {
	began := time.Now()
	most.Timers = cmp.Or(max(most.Timers, 0), findTimers)
	most.Entries = cmp.Or(max(most.Entries, 0), findEntries)
	most.Time = cmp.Or(max(most.Time, 0), findTime)
	w, err := newWalk(ctx, s, q, from, findFirings)
	if err != nil {
		return Found{}, fmt.Errorf("schedule: find timers: %w", err)
	}
	result := Found{Looked: w.looked, Total: w.total, Now: w.now.Time(), Cut: w.cut}
	var all []candidate
	last := from
	for enough := false; !enough && !w.done; {
		entries, err := w.next(ctx)
		if err != nil {
			return result, fmt.Errorf("schedule: find timers: %w", err)
		}
		for some := range slices.Chunk(entries, pageEntries) {
			judged, err := w.judge(ctx, some)
			if err != nil {
				return result, fmt.Errorf("schedule: find timers: %w", err)
			}
			looked := len(some)
			if room := most.Timers - len(all); len(judged) >= room {
				judged, result.Full = judged[:room], true
				looked = 1 + slices.Index(some, judged[room-1].at)
			}
			all = append(all, judged...)
			last = some[looked-1].place()
			result.Looked += int64(looked)
			result.Until = last.due.Time()
			most.Entries -= int64(looked)
			if enough = result.Full || most.Entries <= 0 || time.Since(began) > most.Time; enough {
				break
			}
		}
		if enough && (!w.done || len(entries) > 0 && last != entries[len(entries)-1].place()) {
			result.Next = last
		}
	}
	if result.Timers, err = w.describe(ctx, all, most.Payload); err != nil {
		return result, fmt.Errorf("schedule: find timers: %w", err)
	}
	result.Moving = w.leftOut(ctx)
	return result, nil
}
