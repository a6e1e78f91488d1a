package console

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
)

// summary is the part of the installation's state on every page.
type summary struct {
	At     time.Time // by Redis's clock; by this machine's if Redis is away
	Report *status.Report
}

// shared has the sources of the pages, and the summary. The summary is read once for all of them.
type shared struct {
	sources Sources
	state   *cache[*summary]
	due     *cache[*forecast]
	few     *cache[*liveCounts] // kept only if there are few timers
}

func newShared(sources Sources) *shared {
	s := &shared{sources: sources}
	s.state = newCache(stateAge, s.readSummary)
	s.due = newCache(forecastAge, s.readForecast)
	s.few = newCache(forecastAge, s.countLive)
	return s
}

// readSummary asks Redis and NATS.
func (s *shared) readSummary(ctx context.Context) *summary {
	report := s.sources.Status(ctx)
	sum := &summary{At: time.Now().UTC(), Report: report}
	if sum.Redis() {
		sum.At = report.Redis.At.UTC()
	}
	return sum
}

// now returns the time by Redis's clock, from the last reading of it.
func (s *shared) now(ctx context.Context) time.Time {
	if state := s.state.get(ctx); state != nil {
		return state.At
	}
	return time.Now().UTC()
}

// realNow is now by Redis's own clock, to compare with times of NATS and of timerds.
func (s *shared) realNow(ctx context.Context) time.Time {
	if state := s.state.get(ctx); state.Redis() {
		return state.Report.Redis.RealAt().UTC()
	}
	return s.now(ctx)
}

// missing returns the silent masters of a cluster. Call now first, which finds them.
func (s *shared) missing() (addrs []string) {
	for _, master := range s.sources.Index.PassedOver() {
		addrs = append(addrs, master.Addr)
	}
	return addrs
}

// Redis reports whether any server of the schedule answers.
func (s *summary) Redis() bool {
	return s != nil && s.Report.Redis != nil && !s.Report.Redis.At.IsZero()
}

// NATS reports whether the streams answer.
func (s *summary) NATS() bool {
	if s == nil || s.Report.NATS == nil {
		return false
	}
	for _, stream := range s.Report.NATS.Streams {
		if stream.Error == "" {
			return true
		}
	}
	return len(s.Report.NATS.Streams) == 0
}

// Timerds returns the number of living timerds.
func (s *summary) Timerds() int {
	if !s.Redis() {
		return 0
	}
	return len(s.Report.Redis.Timerds)
}

// DeadLetters returns the number of dead letters, or 0 if unknown.
func (s *summary) DeadLetters() int64 {
	if !s.NATS() || s.Report.NATS.DeadLetters == nil {
		return 0
	}
	return int64(*s.Report.NATS.DeadLetters)
}

// Holds returns the holds.
func (s *summary) Holds() []status.Hold {
	if !s.Redis() {
		return nil
	}
	return s.Report.Redis.Holds
}

// HeldBy returns the hold that covers a key, or nil.
func (s *summary) HeldBy(key keys.Key) *status.Hold {
	for _, h := range s.Holds() {
		if n, err := keys.ParseNamespace(h.Namespace); err == nil && n.Match(key) {
			return &h
		}
	}
	return nil
}

// notice is a sentence at the top of a page: a problem, and its fix.
type notice struct {
	Tone    string // bad, warn or held
	What    string // shown first, in bold
	Text    string
	Fix     []diag.Step
	Runbook string // the address of its paragraph; may be empty
	Link    string // a page that helps; may be empty
	Verb    string
}

// noticesOf returns the problems: all of them on the overview, elsewhere only failures of firing.
func noticesOf(s *summary, all bool) []notice {
	if s == nil {
		return []notice{{Tone: "bad", What: "Neither Redis nor NATS has answered yet.",
			Fix: diag.Steps("Reload the page.")}}
	}
	var out []notice
	if v := s.virtual(); v != nil {
		out = append(out, *v)
	}
	for _, p := range s.Report.Problems {
		one := notice{Tone: "bad", Text: p.Text, Fix: diag.Steps(p.Fix), Runbook: diag.Runbook(p.Check)}
		switch {
		case p.Level == diag.Fail:
			out = append(out, one)
		case all && p.Check != diag.CheckLetters: // the page shows their number anyway
			one.Tone = "warn"
			out = append(out, one)
		}
	}
	if all {
		for _, h := range s.Holds() {
			out = append(out, holdNotice(h))
		}
	}
	return out
}

// virtual returns the notice of a virtual clock; nil without one.
func (s *summary) virtual() *notice {
	if !s.Redis() || s.Report.Redis.Ahead == nil {
		return nil
	}
	ahead := time.Duration(*s.Report.Redis.Ahead) * time.Millisecond
	return &notice{Tone: "held", What: "The clock is virtual:", Text: "it shows " + Moment{s.At, s.At}.Full() + ", " +
		about(ahead) + " ahead of Redis's. Timers are due by it, and timerd advance moves it."}
}

func holdNotice(h status.Hold) notice {
	n := notice{Tone: "held", What: h.Namespace + " is held", Link: "/holds", Verb: "Holds"}
	if h.Resuming {
		n.What = h.Namespace + " is being resumed"
	}
	n.Text = " since " + Moment{h.Since, h.Since}.Clock() + " UTC by " + h.By
	if h.Reason != "" {
		n.Text += ": “" + h.Reason + "”"
	}
	n.Text += "."
	return n
}

// forecastMinutes is the range of the overview's forecast.
const forecastMinutes = 60

// forecast is the last forecast read.
type forecast struct {
	query.Forecast
	err error
}

func (s *shared) readForecast(ctx context.Context) *forecast {
	f, err := query.ForecastAll(ctx, s.sources.Index, forecastMinutes)
	return &forecast{f, err}
}
