package query

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Bounds of one call that counts timers by when they are due: it holds Redis for some 2 µs for each time and partition.
const (
	mostTimes  = 256
	countBound = 512 // times multiplied by partitions
)

// CountDue counts the pending timers of the node that become due between times: of each time but the last, those due from
// then on and before the next one. The times are in ascending order. It does not read the timers. moving is how many
// partitions are left out because their slots are moving.
func CountDue(ctx context.Context, n *schedule.Node, times []time.Time) (counts []int64, moving int, err error) {
	for first := 0; first < len(times)-1; first += mostTimes - 1 {
		part, missing, err := countDue(ctx, n, times[first:min(first+mostTimes, len(times))])
		if err != nil {
			return nil, 0, fmt.Errorf("schedule: count the timers that become due: %w", err)
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
	err = n.Master().RunOver(ctx, n.Index().Script(lua, "count_due"), max(countBound/len(times), 1), args, func(cmd *redis.Cmd) error {
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

// Minute is how many timers become due in a minute.
type Minute struct {
	Begin time.Time
	Due   int64
}

// Forecast is how many timers become due in each of the next minutes. One that repeats counts for each of its occurrences.
type Forecast struct {
	Now     time.Time // by the servers' clocks, the latest of them
	Minutes []Minute  // in order, whole ones of the clock; of the first, the present one, only what is left of it counts
	Owed    int64     // timers that are due already: owed, held or firing
	Moving  int       // partitions that are left out, because their slots are moving

	Expanded int64 // timers that repeat of which all occurrences count
	Cut      bool  // there are more of these, of which only the pending occurrence counts

	// Of a namespace:
	Known  int   // the first so many minutes are known as a whole; all of them, but where the search came to no end
	Looked int64 // entries of every namespace that were looked at
	Total  int64 // entries that there were when it began
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

// end returns when the last minute ends.
func (f *Forecast) end() time.Time { return f.Minutes[len(f.Minutes)-1].Begin.Add(time.Minute) }

// ForecastAll counts by minute the timers of all namespaces that become due, in the present minute and those that follow it, one
// at least. Of the timers it reads those that repeat, some thousands in bounded time; the Forecast says where there are more.
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
	err = addRepetitions(ctx, s, f, keys.Namespace{}, func() bool { return f.Expanded < mostExpanded && time.Now().Before(until) })
	return *f, err
}

// ForecastOf counts those of one namespace. Redis cannot look for a namespace: it reads the names of all timers in the order of
// their due times, in steps that hold Redis for less than a millisecond each, until the last minute is over or more returns
// false. Before that it reads those of the namespace that repeat. more is called after each step with what is known by then;
// with an error, and where more has ended it, so much is returned. What [Pages] says of timers that are left out holds here too.
func ForecastOf(ctx context.Context, s *schedule.Schedule, n keys.Namespace, minutes int, more func(Forecast) bool) (Forecast, error) {
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
