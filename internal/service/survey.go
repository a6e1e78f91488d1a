package service

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// surveyInterval is the interval of surveys. One takes Redis some microseconds.
	surveyInterval = 10 * time.Second
	// countInterval is the interval at which timers due soon, and calls, are counted in the slots of a cluster. A count
	// takes each master some 50 ms.
	countInterval = time.Minute
	// firstSurvey is the interval at the start, until this timerd serves the schedule.
	firstSurvey = 250 * time.Millisecond
	// surveyTimeout bounds each request of a survey.
	surveyTimeout = 3 * time.Second
)

// The counted functions of the library.
const (
	callSet    = "timer_set"
	callCancel = "timer_cancel"
)

// survey looks from time to time at the shared state of all timerds: whether their settings agree, the calls of the
// function library, the timers due soon, and the dead letters.
type survey struct {
	schedule *schedule.Schedule
	nodes    *nodes
	js       jetstream.JetStream
	letters  string // the name of the stream of dead letters
	self     schedule.Self
	metrics  *metrics
	log      *slog.Logger
	gone     func(query.Member) // called for a timerd that fell silent

	calls   query.Calls // the last sum over all nodes
	counted time.Time   // the time of calls

	serves    bool            // this timerd was among those alive
	silent    map[string]bool // the silent timerds, by instance id
	different string          // the last message about settings
	versions  string          // the last versions
	mixed     bool            // more than one version
}

// run makes surveys until ctx ends: one soon after another at first, until this timerd serves the schedule.
func (s *survey) run(ctx context.Context) {
	for began := time.Now(); ; {
		beginning := time.Since(began) < surveyInterval
		counts := beginning || s.calls.Partitions <= 1 || time.Since(s.counted) >= countInterval
		if counts {
			s.counted = time.Now()
			s.ask(ctx, s.countCalls)
		}
		if s.calls.Partitions > 0 || !beginning {
			s.ask(ctx, s.lookAtMembers)
			if counts {
				s.ask(ctx, s.countDue)
			}
			s.ask(ctx, s.countLetters)
		}
		pause := surveyInterval
		if beginning && !s.serves {
			pause = firstSurvey
		}
		if !backoff.Sleep(ctx, pause) {
			return
		}
	}
}

// ask makes a request in bounded time. A failed request is repeated by the next survey, and /readyz names the silent
// server.
func (s *survey) ask(ctx context.Context, question func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
	defer cancel()
	if err := question(ctx); err != nil {
		s.log.Debug("a survey is incomplete", "err", err)
	}
}

// lookAtMembers compares the living timerds. It logs a change once.
func (s *survey) lookAtMembers(ctx context.Context) error {
	members, err := query.Members(ctx, s.schedule)
	if err != nil {
		return err
	}
	s.metrics.members(s.self.Settings, members)
	s.serves = slices.ContainsFunc(members, func(m query.Member) bool {
		return m.Alive &&
			m.Instance == s.self.Instance
	})
	s.tellGone(members)
	var different []string
	for _, d := range status.Differences(members) {
		different = append(different, d.String())
	}
	switch now := strings.Join(different, "; "); now {
	case s.different:
	case "":
		s.log.Info("the timerds of this Redis have the same settings again")
		s.different = now
	default:
		s.log.Warn("the timerds of this Redis have different settings: give all of them the same", "settings", now)
		s.different = now
	}
	var versions []string
	for _, v := range status.Versions(members) {
		versions = append(versions, v.Value)
	}
	switch now := strings.Join(versions, ", "); {
	case now == s.versions:
	case len(versions) > 1:
		s.log.Info("timerds of different versions serve this Redis, as in a rolling update", "versions", now)
	case s.mixed:
		s.log.Info("the timerds of this Redis are of one version again", "version", now)
	}
	s.versions, s.mixed = strings.Join(versions, ", "), len(versions) > 1
	return nil
}

// tellGone logs the timerds that fell silent since the start of this timerd, and names the timerd that took over. It
// reports each silent timerd that no earlier survey has seen; the first survey leaves out earlier ends.
func (s *survey) tellGone(members []query.Member) {
	first, silent := "", map[string]bool{}
	for _, m := range members {
		if m.Alive && m.Rank == 0 {
			first = m.Instance
		}
	}
	for _, m := range members {
		if !m.Silent {
			continue
		}
		silent[m.Instance] = true
		if s.silent[m.Instance] {
			continue
		}
		since := m.Seen.After(s.self.Since)
		if since || s.silent != nil {
			s.gone(m)
		}
		if since {
			s.log.Warn("a timerd is gone: it died, stalled, or does not reach Redis. "+
				"The first timerd in rank claims the due timers, and, once their leases are over, "+
				"the timers that this one had claimed",
				"instance", m.Instance, "seen", m.Seen.UTC().Format(time.RFC3339Nano), "first", first)
		}
	}
	s.silent = silent
}

// watchStops notes and logs each stop of this process, or of its machine, until ctx ends: other timerds took over then,
// and the next log lines are consequences.
func watchStops(ctx context.Context, noted *counts, log *slog.Logger) {
	const interval, long = 500 * time.Millisecond, 3 * time.Second
	for at := time.Now(); backoff.Sleep(ctx, interval); at = time.Now() {
		if stood := time.Since(at); stood > long {
			noted.noteStop(stood, true)
			log.Warn("this timerd was stopped, and goes on now: the others may have taken over its claims", "for",
				stood.Round(100*time.Millisecond))
		}
	}
}

// countCalls counts the function library's calls since the last count, except calls reported by message. It leaves out
// earlier calls than timerd's start. After a loss of data it goes on from the remaining count.
func (s *survey) countCalls(ctx context.Context) error {
	var now query.Calls
	for node := range s.nodes.list() {
		calls, err := query.CountCalls(ctx, node)
		if err != nil {
			return err
		}
		now.Set += calls.Set
		now.Cancelled += calls.Cancelled
		now.Partitions += calls.Partitions
	}
	switch before := s.calls; {
	case now.Partitions < before.Partitions, now.Partitions > keys.Slots:
		return nil // a slot is on its way from one server to another
	case now.Partitions == before.Partitions:
		s.metrics.calls.WithLabelValues(callSet).Add(float64(max(now.Set-before.Set, 0)))
		s.metrics.calls.WithLabelValues(callCancel).Add(float64(max(now.Cancelled-before.Cancelled, 0)))
	}
	s.calls = now
	return nil
}

// horizon is a time limit for the count of timers due soon.
type horizon struct {
	name   string // in the metric
	within time.Duration
}

// horizons returns the time limits in ascending order.
func horizons() []horizon {
	return []horizon{{"1m", time.Minute}, {"10m", 10 * time.Minute}, {"1h", time.Hour}}
}

// countDue counts the timers of all nodes that become due soon, each by the clock of its server.
func (s *survey) countDue(ctx context.Context) error {
	due := make([]int64, len(horizons()))
	for node := range s.nodes.list() {
		now := node.Now().Time()
		times := []time.Time{now}
		for _, h := range horizons() {
			times = append(times, now.Add(h.within))
		}
		counts, _, err := query.CountDue(ctx, node, times)
		if err != nil {
			return err
		}
		sum := int64(0)
		for i, count := range counts {
			sum += count
			due[i] += sum
		}
	}
	for i, h := range horizons() {
		s.metrics.due.WithLabelValues(h.name).Set(float64(due[i]))
	}
	return nil
}

// countLetters sets the number of dead letters, or removes the value if it is unknown.
func (s *survey) countLetters(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, s.letters)
	if err != nil {
		s.metrics.letters.Reset()
		return err
	}
	s.metrics.letters.WithLabelValues().Set(float64(stream.CachedInfo().State.Msgs))
	return nil
}
