package query

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

// Most bounds one call of Find. What is 0 stands for the default.
type Most struct {
	Timers  int           // that it returns; default 50
	Entries int64         // that it looks at; default 200,000
	Time    time.Duration // that it takes, about; default 400 ms
	Payload int           // bytes of each payload; by default none
}

// The defaults of Most. Find knows fewer firings than other listings do: it reads them again each time.
const (
	findTimers  = 50
	findEntries = 200_000
	findTime    = 400 * time.Millisecond
	findFirings = 20_000
)

// Found is a stretch of the timers of a query.
type Found struct {
	Timers []Timer   // in the order of their due times
	Next   Place     // where to go on; the zero Place: there are no more
	Full   bool      // there are as many as were asked for; else, with Next, more may come when it goes on looking
	Looked int64     // entries, of every key, from the first due time of the query to Next, those of all earlier stretches among them
	Total  int64     // entries in the due times of the query, as far as they may be in one of its states
	Until  time.Time // the due time that it has come to; the zero Time if there was nothing to look at
	Now    time.Time // by the servers' clocks, the latest of them: what is due after that is pending
	Cut    bool      // there may be more that are owed or firing than were looked at, see ErrCut
	Moving error     // a *MovingError if slots were moving, whose timers are left out; else nil
}

// Find looks for the timers of a query after a place, in the order of their due times, in bounded time however many there are: it
// returns what it has found and where to go on. Only timers that are set, moved, claimed or fired meanwhile may be left out
// or come twice; and of those that are owed because of an event or firing, all but the first findFirings, in the order in which they can
// be claimed.
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
