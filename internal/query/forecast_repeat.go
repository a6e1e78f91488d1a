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
	// mostExpanded is how many timers that repeat a forecast of all namespaces looks at, and expandFor for how long.
	mostExpanded = 20_000
	expandFor    = 400 * time.Millisecond
	// mostKnown is of how many what they add is kept.
	mostKnown = 1000
	// upcomingChunk is how many of them one call reads: some 0.2 ms, or 2 with payloads of the largest size.
	upcomingChunk = 100
	// mostUnderWay is of how many it is looked for what they repeat by where their occurrence is not pending: that takes longer.
	mostUnderWay = 200
)

// addRepetitions adds to each minute the occurrences that follow the present one of each timer of a namespace that repeats: only that
// one is in the index. more is asked after each step whether to go on.
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

// upcoming is what follows the present occurrence of a timer. Times are in unix ms.
type upcoming struct {
	text        string // by what it repeats; empty if that is not known
	after       int64  // the present occurrence is counted already
	from, until int64  // until is 0 for no end
	left        int64  // how many may follow; below 0: any number
}

// upcomingOf returns what follows an occurrence.
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

// readUpcoming reads what follows the pending occurrences of some keys of one partition: of the first ones, and of one at least.
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

// expansion adds occurrences to a forecast. Many timers repeat by the same: what these add is computed once.
type expansion struct {
	forecast *Forecast
	specs    cron.Specs
	known    map[upcoming][]int64 // by minute
}

// add adds what follows. Of a specification that cannot be read here nothing is known.
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

// count returns how many occurrences follow in each minute, up to the last one that has any.
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
