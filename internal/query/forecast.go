package query

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Limits of one call that counts timers by due time: it holds Redis for some 2 µs per time and partition.
const (
	mostTimes  = 256
	countBound = 512 // times multiplied by partitions
)

// CountDue counts the node's pending timers by due time: counts[i] is for those due from times[i] to before times[i+1].
// The times ascend. It does not read the timers. moving is the number of partitions left out because their slots are
// moving.
func CountDue(ctx context.Context, n *schedule.Node, times []time.Time) (counts []int64, moving int, err error) {
	for first := 0; first < len(times)-1; first += mostTimes - 1 {
		part, missing, err := countDue(ctx, n, times[first:min(first+mostTimes, len(times))])
		if err != nil {
			return nil, 0, fmt.Errorf("schedule: count the timers by due time: %w", err)
		}
		counts, moving = append(counts, part...), max(moving, missing)
	}
	return counts, moving, nil
}

func countDue(ctx context.Context, n *schedule.Node, times []time.Time) (counts []int64, moving int, err error) {
	args := []any{len(times)}
	for _, at := range times {
		args = append(args, at.UnixMilli())
	}
	counts = make([]int64, len(times)-1)
	err = n.Master().RunOver(ctx, n.Index().Script(lua, "count_due"), max(countBound/len(times), 1), args,
		func(cmd *redis.Cmd) error {
			reply, err := cmd.Int64Slice()
			if err == nil && len(reply) != len(times) {
				err = fmt.Errorf("unexpected reply of %d elements", len(reply))
			}
			if err != nil {
				return err
			}
			moving += int(reply[0])
			for i, due := range reply[1:] {
				counts[i] += due
			}
			return nil
		})
	return counts, moving, err
}

// Minute counts the timers that become due in one minute.
type Minute struct {
	Begin time.Time
	Due   int64
}

// Forecast counts the timers that become due in each of the next minutes. A repeating timer counts for each occurrence.
type Forecast struct {
	Now     time.Time // the latest of the servers' clocks
	Minutes []Minute  // whole minutes of the clock, in order; the first is the rest of the present one
	Owed    int64     // timers due already: owed, held or firing
	Moving  int       // partitions left out because their slots are moving

	Expanded int64 // repeating timers counted with all occurrences
	Cut      bool  // further repeating timers count for their pending occurrence only

	// For a namespace:
	Known  int   // the number of complete minutes at the front; all, unless the search was cut short
	Looked int64 // entries searched, of every namespace
	Total  int64 // entries at the start of the search
}

// newForecast asks the servers for their clocks and returns a forecast without counts, and the nodes.
func newForecast(ctx context.Context, s *schedule.Schedule, minutes int) (*Forecast, []*schedule.Node, error) {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return &Forecast{}, nil, err
	}
	now := schedule.AtOnce
	for _, n := range nodes {
		now = max(now, n.Now())
	}
	f := &Forecast{Now: now.Time(), Minutes: make([]Minute, minutes), Known: minutes}
	for i := range f.Minutes {
		f.Minutes[i].Begin = f.Now.Truncate(time.Minute).Add(time.Duration(i) * time.Minute)
	}
	return f, nodes, nil
}

// end returns the end of the last minute.
func (f *Forecast) end() time.Time { return f.Minutes[len(f.Minutes)-1].Begin.Add(time.Minute) }

// ForecastAll counts by minute the timers of all namespaces that become due in the present minute and the following
// ones; minutes is at least 1. It reads only the repeating timers, some thousands in bounded time; Cut reports that
// there are more.
func ForecastAll(ctx context.Context, s *schedule.Schedule, minutes int) (Forecast, error) {
	f, nodes, err := newForecast(ctx, s, minutes)
	if err != nil {
		return *f, err
	}
	times := []time.Time{f.Now}
	for _, m := range f.Minutes {
		times = append(times, m.Begin.Add(time.Minute))
	}
	for _, n := range nodes {
		counts, moving, err := CountDue(ctx, n, times)
		if err != nil {
			return *f, err
		}
		for i, due := range counts {
			f.Minutes[i].Due += due
		}
		f.Moving += moving
		seen, err := CountTimers(ctx, n)
		if err != nil {
			return *f, err
		}
		f.Owed += seen.Owed + seen.Firing + seen.Held
	}
	until := time.Now().Add(expandFor)
	err = addRepetitions(ctx, s, f, keys.Namespace{}, func() bool {
		return f.Expanded < mostExpanded &&
			time.Now().Before(until)
	})
	return *f, err
}

// ForecastOf is ForecastAll for one namespace. Redis cannot search by namespace: ForecastOf first reads the namespace's
// repeating timers, and then the names of all timers by due time, in steps that hold Redis for less than a millisecond
// each, until the last minute is over or more returns false. It calls more after each step with the counts so far. If
// more or an error ends it, it returns these counts. It may leave out the same timers as [Pages].
func ForecastOf(ctx context.Context, s *schedule.Schedule, n keys.Namespace, minutes int,
	more func(Forecast) bool) (Forecast, error) {
	f, _, err := newForecast(ctx, s, minutes)
	if err != nil {
		return *f, err
	}
	f.Known = 0
	over := true
	if err = addRepetitions(ctx, s, f, n, func() bool { over = more(*f); return over }); err != nil || !over {
		return *f, err
	}
	err = Names(ctx, s, Query{Namespace: n}, func(p Page) bool {
		for _, t := range p.Timers {
			f.add(t)
		}
		f.Looked, f.Total = p.Looked, p.Total
		for f.Known < minutes && !p.Until.Before(f.Minutes[f.Known].Begin.Add(time.Minute)) {
			f.Known++
		}
		over = f.Known == minutes || more(*f)
		return over && f.Known < minutes
	})
	if err == nil && over {
		f.Known = minutes
	}
	return *f, err
}

// add counts a timer.
func (f *Forecast) add(t Timer) {
	switch {
	case t.State != StatePending || t.Due.Before(f.Now):
		f.Owed++
	case t.Due.Before(f.end()):
		f.Minutes[t.Due.Sub(f.Minutes[0].Begin)/time.Minute].Due++
	}
}
