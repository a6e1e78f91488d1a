package query

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// mostExpanded limits the repeating timers that a forecast of all namespaces reads, and expandFor the time for
	// that.
	mostExpanded = 20_000
	expandFor    = 400 * time.Millisecond
	// mostKnown limits the cached counts of different rhythms.
	mostKnown = 1000
	// upcomingChunk limits the timers that one call reads: some 0.2 ms, or 2 with payloads of the largest size.
	upcomingChunk = 100
	// mostUnderWay limits the timers without a pending occurrence whose rhythm is looked up: that takes longer.
	mostUnderWay = 200
)

// addRepetitions adds to each minute the later occurrences of a namespace's repeating timers: the index has only the
// present one. It calls more after each step, and stops if that returns false.
func addRepetitions(ctx context.Context, s *schedule.Schedule, f *Forecast, n keys.Namespace, more func() bool) error {
	e := expansion{forecast: f, known: map[upcoming][]int64{}}
	var underWay []string
	var failed error
	err := Repeating(ctx, s, n, func(some []keys.Key) bool {
		names := make([]string, len(some))
		for i, key := range some {
			names[i] = key.String()
		}
		for len(names) > 0 {
			var found []upcoming
			if found, failed = readUpcoming(ctx, s, names[:min(len(names), upcomingChunk)]); failed != nil {
				return false
			}
			for i, u := range found {
				if u.text == "" && len(underWay) < mostUnderWay {
					underWay = append(underWay, names[i])
				}
				e.add(u)
			}
			f.Expanded += int64(len(found))
			names = names[len(found):]
			if f.Cut = !more(); f.Cut {
				return false
			}
		}
		return true
	})
	if err != nil || failed != nil {
		return cmp.Or(failed, err)
	}
	states, err := Repetitions(ctx, s, underWay)
	if err != nil {
		return err
	}
	for _, state := range states {
		if r := state.Repetition; r != nil {
			e.add(upcomingOf(r.Text, cron.Repetition{From: r.From, Until: r.Until, Times: r.Times}, r.Occurrence))
		}
	}
	return nil
}

// upcoming describes the later occurrences of a timer, after the present one. Times are in unix ms.
type upcoming struct {
	text        string // the rhythm; empty if unknown
	after       int64  // the present occurrence, counted already
	from, until int64  // until is 0 for no end
	left        int64  // remaining occurrences; below 0: no limit
}

// upcomingOf describes the occurrences after one.
func upcomingOf(text string, rule cron.Repetition, occurrence int64) upcoming {
	u := upcoming{text: text, from: rule.From.UnixMilli(), left: -1}
	if !rule.Until.IsZero() {
		u.until = rule.Until.UnixMilli()
	}
	if rule.Times > 0 {
		u.left = max(rule.Times-occurrence, 0)
	}
	return u
}

// readUpcoming describes the later occurrences of some keys with a pending occurrence, all of one partition. It may
// stop early, after at least one key.
func readUpcoming(ctx context.Context, s *schedule.Schedule, names []string) ([]upcoming, error) {
	args := make([]any, len(names))
	for i, name := range names {
		args[i] = name
	}
	cmd := s.Run(ctx, s.Script(lua, "upcoming"), []schedule.Call{{Partition: s.Partition(names[0]), Args: args}})[0]
	reply, err := schedule.ReadReply(cmd, 2, 2)
	if err == nil && len(reply) > 2*len(names) {
		err = fmt.Errorf("unexpected reply of %d elements", len(reply))
	}
	if err != nil {
		return nil, fmt.Errorf("schedule: read repetitions: %w", err)
	}
	found := make([]upcoming, 0, len(reply)/2)
	for pair := range slices.Chunk(reply, 2) {
		due := pair.Int(1)
		r, ok := schedule.ParseRecord(pair.Text(0) + ":")
		if !ok || due < 0 || !r.Occurrence.Repeats() {
			found = append(found, upcoming{})
			continue
		}
		o := r.Occurrence
		u := upcomingOf(o.Repeat, o.Rule(), o.Number)
		u.after = max(due, int64(o.Nominal()))
		found = append(found, u)
	}
	return found, nil
}

// expansion adds occurrences to a forecast. Many timers share a rhythm: its counts are computed once.
type expansion struct {
	forecast *Forecast
	specs    cron.Specs
	known    map[upcoming][]int64 // by minute
}

// add adds the later occurrences of a timer. It ignores a rhythm that it cannot parse.
func (e *expansion) add(u upcoming) {
	u.after = max(u.after, e.forecast.Now.UnixMilli())
	spec, err := e.specs.Parse(u.text)
	if err != nil || u.left == 0 || u.after >= e.forecast.end().UnixMilli() {
		return
	}
	counts, ok := e.known[u]
	if !ok {
		counts = e.count(u, spec)
		if len(e.known) < mostKnown {
			e.known[u] = counts
		}
	}
	for i, n := range counts {
		e.forecast.Minutes[i].Due += n
	}
}

// count counts the later occurrences by minute, up to the last minute with any.
func (e *expansion) count(u upcoming, spec cron.Spec) (counts []int64) {
	r := cron.Repetition{Spec: spec, From: time.UnixMilli(u.from)}
	if u.until > 0 {
		r.Until = time.UnixMilli(u.until)
	}
	after, left := time.UnixMilli(u.after), u.left
	for left != 0 {
		next, ok := r.Next(after)
		if !ok || !next.Before(e.forecast.end()) {
			break
		}
		i := int(next.Sub(e.forecast.Minutes[0].Begin) / time.Minute)
		end := e.forecast.Minutes[i].Begin.Add(time.Minute)
		n := r.Between(after, end)
		if left > 0 {
			n = min(n, left)
			left -= n
		}
		counts = append(counts, make([]int64, i+1-len(counts))...)
		counts[i] = n
		after = end.Add(-time.Millisecond)
	}
	return counts
}
