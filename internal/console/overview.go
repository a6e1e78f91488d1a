package console

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
)

// Overview is the first page: the state of the installation now, and its next hour.
type Overview struct {
	At    time.Time `json:"at"` // by Redis's clock
	Redis bool      `json:"redis"`
	NATS  bool      `json:"nats"`

	Pending     *int64          `json:"pending"` // null if not known, as for the others
	DueSoon     *int64          `json:"duesoon"` // within a minute
	FiredPerSec *float64        `json:"firedpersecond"`
	Owed        *int64          `json:"owed"`
	Firing      *int64          `json:"firing"`
	Held        *int64          `json:"held"`
	DeadLetters *uint64         `json:"deadletters"`
	GapsLately  *int64          `json:"gaps"` // in the last 15 minutes
	P50         *lateness       `json:"p50"`  // of the last 15 minutes
	P99         *lateness       `json:"p99"`
	Lateness    []PointView     `json:"lateness"`
	Due         []MinuteView    `json:"due"`
	Namespaces  []NamespaceView `json:"namespaces"`
	CountedAt   time.Time       `json:"countedat,omitzero"`    // when the last audit counted the namespaces
	Firings     []FiringView    `json:"firings"`               // the latest
	FiringsAway string          `json:"firingsaway,omitempty"` // why the firings are not known
	Timerds     []status.Timerd `json:"timerds"`
	Problems    diag.Findings   `json:"problems"`
	Holds       []status.Hold   `json:"holds"`

	Consumers []status.Consumer `json:"consumers"` // of fired events
	Unnamed   []status.Failures `json:"unnamed"`   // attempts that failed for consumers that do not name themselves
	Letters   []status.Letters  `json:"letters"`   // dead letters by namespace

	DueChart      Chart    `json:"-"`
	LatenessChart Chart    `json:"-"`
	DueAway       string   `json:"-"`
	Numbers       []Figure `json:"-"`
}

// redisAway is what is told instead of what only Redis knows.
const redisAway = "Redis cannot be read now."

// NamespaceView is a namespace's numbers.
type NamespaceView struct {
	Name        string    `json:"namespace"`
	Pending     *int64    `json:"pending"`
	Held        *int64    `json:"held"`
	FiredPerSec *float64  `json:"firedpersecond"`
	P99         *lateness `json:"p99"`
	IsHeld      bool      `json:"isheld"`
}

// Figure is one of the numbers that come first.
type Figure struct {
	Name string
	Text string
	Tone string // of a number that is not 0
	Link string
}

// overviewPage reads the first page, and keeps it fresh.
type overviewPage struct {
	*shared
	render  *renderer
	streams *streams
	parts   *cache[[]byte] // what is live on it
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
		Problems: diag.Findings{}, Holds: []status.Hold{}, Timerds: []status.Timerd{},
		Consumers: []status.Consumer{}, Unnamed: []status.Failures{}, Letters: []status.Letters{},
	}
	if state == nil {
		v.At = time.Now().UTC()
		return v
	}
	v.At, v.Redis, v.NATS = state.At, state.Redis(), state.NATS()
	v.Problems = state.Report.Problems
	if v.Redis {
		redis := state.Report.Redis
		v.Pending, v.Owed, v.Firing, v.Held = &redis.Pending, &redis.Owed, &redis.Firing, redis.Held
		v.Timerds, v.CountedAt = redis.Timerds, redis.CountedAt
		v.Holds = append(v.Holds, redis.Holds...)
		v.addForecast(pg.due.get(ctx))
	} else {
		v.DueAway = redisAway
	}
	if state.NATS() {
		nats := state.Report.NATS
		v.DeadLetters = nats.DeadLetters
		v.Consumers, v.Unnamed, v.Letters = append(v.Consumers, nats.Consumers...), append(v.Unnamed, nats.Unnamed...), append(v.Letters, nats.Letters...)
	}
	pg.addPulse(v, state)
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

// figures returns the numbers that come first.
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
		figure("gaps in 15 minutes", v.GapsLately, "owed", "/"),
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

// mostNamespaces is how many rows the overview has of namespaces.
const mostNamespaces = 12

// addPulse adds the numbers in the timerds' heartbeats: how much fires, and how late.
func (pg *overviewPage) addPulse(v *Overview, state *summary) {
	v.Lateness, v.Namespaces, v.Firings = []PointView{}, []NamespaceView{}, []FiringView{}
	if !state.Redis() {
		return // the last counts are out of date
	}
	p := pg.sources.Pulse()
	if !p.At.IsZero() {
		v.FiredPerSec, v.GapsLately = &p.FiredPerSecond, &p.Gaps
		v.P50, v.P99 = latenessOf(p.Lateness, 0.5), latenessOf(p.Lateness, 0.99)
	}
	for _, point := range p.Points {
		v.Lateness = append(v.Lateness, PointView{point.At.UTC(), point.Fired, latenessOf(point.Lateness, 0.5), latenessOf(point.Lateness, 0.99)})
	}
	v.Namespaces = namespacesOf(p, state)
}

// namespacesOf joins the counts of the last audit with the firings. The namespaces that are held or fire most come first.
func namespacesOf(p history.LiveStats, state *summary) []NamespaceView {
	byName := map[string]*NamespaceView{}
	row := func(name string) *NamespaceView {
		if byName[name] == nil {
			byName[name] = &NamespaceView{Name: name}
		}
		return byName[name]
	}
	if state.Redis() && hasCounted(state.Report.Redis) {
		for _, n := range state.Report.Redis.Namespaces {
			one := row(n.Namespace)
			one.Pending, one.Held = &n.Pending, &n.Held
		}
	}
	for _, n := range p.Namespaces {
		one := row(n.Name)
		one.FiredPerSec, one.P99 = &n.FiredPerSecond, latenessOf(n.Lateness, 0.99)
	}
	all := make([]NamespaceView, 0, len(byName))
	for _, n := range byName {
		if n.Name == keys.Other && n.FiredPerSec == nil && (n.Pending == nil || *n.Pending == 0) {
			continue
		}
		for _, h := range state.Holds() {
			n.IsHeld = n.IsHeld || h.Namespace == n.Name
		}
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b NamespaceView) int {
		if a.weight() != b.weight() {
			return int(b.weight() - a.weight())
		}
		return strings.Compare(a.Name, b.Name)
	})
	return all[:min(len(all), mostNamespaces)]
}

// hasCounted reports whether the last audit has counts: the first one, at the start, may have found nothing yet.
func hasCounted(r *status.Redis) bool {
	var sum int64
	for _, n := range r.Namespaces {
		sum += n.Pending + n.Held + n.Owed + n.Firing
	}
	return sum > 0 || r.Pending == 0
}

// weight orders namespaces; all others, as one, come last.
func (n NamespaceView) weight() int64 {
	switch {
	case n.Name == keys.Other:
		return -1
	case n.Pending != nil:
		return *n.Pending
	}
	return 0
}

// addFirings adds the latest firings. Where NATS has just not answered, it is not waited for once more.
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
		"figures": {"figures", v.Numbers}, "lateness": {"linechart", v.LatenessChart}, "namespaces": {"namespaces", v}, "firings": {"firings", v},
		"consumers": {"consumers", v}, "letters": {"letters", v},
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
