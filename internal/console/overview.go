package console

import (
	"context"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/internal/status"
)

// Overview is the first page: the state of the installation now, and its next hour.
type Overview struct {
	At     time.Time  `json:"at"`              // by Redis's clock, or a virtual one
	Ahead  *int64     `json:"ahead,omitempty"` // by which a virtual clock leads Redis's, in ms; null without one
	Answer AnswerView `json:"answer"`
	Redis  bool       `json:"redis"`
	NATS   bool       `json:"nats"`

	Pending     *int64       `json:"pending"` // null if unknown, like the others
	DueSoon     *int64       `json:"duesoon"` // within a minute
	FiredPerSec *float64     `json:"firedpersecond"`
	Owed        *int64       `json:"owed"`
	Firing      *int64       `json:"firing"`
	Held        *int64       `json:"held"`
	DeadLetters *uint64      `json:"deadletters"`
	GapsLately  *int64       `json:"gaps"` // in the last 15 minutes
	P50         *lateness    `json:"p50"`  // of the last 15 minutes
	P99         *lateness    `json:"p99"`
	Lateness    []PointView  `json:"lateness"`
	Due         []MinuteView `json:"due"`
	NamespacesView
	Firings     []FiringView    `json:"firings"`               // the latest
	FiringsAway string          `json:"firingsaway,omitempty"` // why the firings are unknown
	Timerds     []status.Timerd `json:"timerds"`
	Problems    []ProblemView   `json:"problems"`
	Holds       []status.Hold   `json:"holds"`

	DueChart      Chart    `json:"-"`
	LatenessChart Chart    `json:"-"`
	DueAway       string   `json:"-"`
	Numbers       []Figure `json:"-"`

	gapsTone string
}

// redisAway stands in for data that only Redis has.
const redisAway = "Redis cannot be read now."

// Figure is one of the numbers at the top.
type Figure struct {
	Name string
	Text string
	Tone string // of a number that is not 0
	Link string
}

// overviewPage reads the first page, and keeps it fresh in browsers.
type overviewPage struct {
	*shared
	render  *renderer
	streams *streams
	parts   *cache[[]byte] // its live parts
}

func newOverviewPage(s *shared, render *renderer, live *streams) *overviewPage {
	pg := &overviewPage{shared: s, render: render, streams: live}
	pg.parts = newCache(stateAge, pg.readParts)
	return pg
}

// overview reads the first page.
func (pg *overviewPage) overview(r *http.Request) (*page, error) {
	return &page{Template: "overview", Title: "Overview", Nav: "/", View: pg.readOverview(r.Context())}, nil
}

func (pg *overviewPage) readOverview(ctx context.Context) *Overview {
	state := pg.state.get(ctx)
	v := &Overview{
		Problems: []ProblemView{}, Holds: []status.Hold{}, Timerds: []status.Timerd{},
		NamespacesView: NamespacesView{Namespaces: []NamespaceView{}},
	}
	if v.Answer = answerOf(state, pg.sources.Pulse()); state == nil {
		v.At = time.Now().UTC()
		return v
	}
	v.At, v.Redis, v.NATS = state.At, state.Redis(), state.NATS()
	for _, p := range state.Report.Problems {
		v.Problems = append(v.Problems, newProblemView(p))
	}
	if v.Redis {
		redis := state.Report.Redis
		v.Ahead = redis.Ahead
		v.Pending, v.Owed, v.Firing, v.Held = &redis.Pending, &redis.Owed, &redis.Firing, redis.Held
		v.Timerds = redis.Timerds
		v.Holds = append(v.Holds, redis.Holds...)
		v.addForecast(pg.due.get(ctx))
	} else {
		v.DueAway = redisAway
	}
	if state.NATS() {
		v.DeadLetters = state.Report.NATS.DeadLetters
	}
	pg.addPulse(ctx, v, state)
	pg.addFirings(ctx, v, state)
	if v.LatenessChart = latenessChart(v.Lateness, v.At); !v.Redis {
		v.LatenessChart.Empty = redisAway
	}
	v.Numbers = v.figures()
	return v
}

// addForecast adds the forecast of due timers.
func (v *Overview) addForecast(f *forecast) {
	v.Due = []MinuteView{}
	if f == nil || f.err != nil {
		v.DueAway = "The timers that become due cannot be counted now."
		return
	}
	for _, m := range f.Minutes {
		v.Due = append(v.Due, MinuteView{m.Begin.UTC(), m.Due})
	}
	v.DueChart = dueChart(v.Due)
	if len(v.Due) > 1 {
		// Within 60 s from now: in the rest of this minute and a part of the next one.
		left := v.Due[1].Begin.Sub(f.Now)
		soon := v.Due[0].Due + int64(float64(v.Due[1].Due)*(1-left.Seconds()/60))
		v.DueSoon = &soon
	}
}

// figures returns the numbers at the top.
func (v *Overview) figures() []Figure {
	fired := Figure{Name: "fired per second", Text: "–", Link: "/timers?state=firing"}
	if v.FiredPerSec != nil {
		fired.Text = perSecond(*v.FiredPerSec)
	}
	return []Figure{
		figure("pending", v.Pending, "", "/timers"),
		figure("due within a minute", v.DueSoon, "", "/timers?due=1m"),
		fired,
		figure("firing", v.Firing, "", "/timers?state=firing"),
		figure("owed", v.Owed, "owed", "/timers?state=owed"),
		figure("held", v.Held, "held", "/holds"),
		figure("dead letters", signed(v.DeadLetters), "dead", "/dead"),
		figure("gaps in 15 minutes", v.GapsLately, v.gapsTone, "/system#gaps"),
	}
}

func signed(n *uint64) *int64 {
	if n == nil {
		return nil
	}
	s := int64(*n)
	return &s
}

func figure(name string, n *int64, tone, link string) Figure {
	f := Figure{Name: name, Text: "–", Link: link}
	if n != nil {
		f.Text = grouped(*n)
		if *n > 0 {
			f.Tone = tone
		}
	}
	return f
}

// addPulse adds the numbers in the timerds' heartbeats: the rate of firings, and their lateness.
func (pg *overviewPage) addPulse(ctx context.Context, v *Overview, state *summary) {
	v.Lateness, v.Firings = []PointView{}, []FiringView{}
	if !state.Redis() {
		return // the last counts are out of date
	}
	p := pg.sources.Pulse()
	if !p.At.IsZero() {
		v.FiredPerSec, v.GapsLately, v.gapsTone = &p.FiredPerSecond, &p.Gaps, "owed"
		if onlyStarts(state.Report.Redis, p.Gaps) {
			v.gapsTone = "quiet"
		}
		v.P50, v.P99 = latenessOf(p.Lateness, 0.5), latenessOf(p.Lateness, 0.99)
	}
	for _, point := range p.Points {
		v.Lateness = append(v.Lateness, PointView{point.At.UTC(), point.Fired, latenessOf(point.Lateness, 0.5),
			latenessOf(point.Lateness, 0.99)})
	}
	v.NamespacesView = namespacesOf(p, state, pg.few.get(ctx))
}

// firingNow is the age up to which a firing counts as one of now.
const firingNow = 10 * time.Second

// FiringNow returns the firings of the last seconds.
func (v *Overview) FiringNow() (now []FiringView) {
	for _, f := range v.Firings {
		if v.At.Sub(f.At) <= firingNow {
			now = append(now, f)
		}
	}
	return now
}

// addFirings adds the latest firings. If NATS has just failed to answer a request, it does not wait for NATS again.
func (pg *overviewPage) addFirings(ctx context.Context, v *Overview, state *summary) {
	const most = 10
	if !state.NATS() {
		v.FiringsAway = "NATS cannot be read now."
		return
	}
	sample := pg.sources.Tail.Sample(ctx)
	for _, r := range sample.Records[:min(len(sample.Records), most)] {
		v.Firings = append(v.Firings, newEventView(r, previewBytes))
	}
	v.FiringsAway = sample.Away
}

// readParts renders the live parts of the overview.
func (pg *overviewPage) readParts(ctx context.Context) []byte {
	v := pg.readOverview(ctx)
	parts := map[string]part{
		"answer": {"answer", v.Answer}, "figures": {"figures", v.Numbers}, "lateness": {"linechart", v.LatenessChart},
		"namespaces": {"namespaces", v}, "firings": {"firings", v},
		"asof": {"stamp", Moment{v.At, v.At}}, "notices": {"notices", noticesOf(pg.state.get(ctx), true)},
	}
	if v.DueAway == "" {
		parts["due"] = part{"duechart", v.DueChart}
	}
	return pg.render.renderParts("overview", parts)
}

// live keeps the overview fresh. The page's own templates render the parts, once a second for all viewers.
func (pg *overviewPage) live(w http.ResponseWriter, r *http.Request) {
	pg.streams.send(w, r, func() (data []byte, last bool) { return pg.parts.get(r.Context()), false })
}
