package console

import (
	"context"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
)

// forecastMinutes is how far ahead the overview looks.
const forecastMinutes = 60

// forecast is what becomes due, as it was read last.
type forecast struct {
	query.Forecast
	err error
}

func (s *shared) readForecast(ctx context.Context) *forecast {
	f, err := query.ForecastAll(ctx, s.sources.Index, forecastMinutes)
	return &forecast{f, err}
}

// Overview is the first page: how the installation is, now and in the next hour.
type Overview struct {
	At    time.Time `json:"at"` // by Redis's clock
	Redis bool      `json:"redis"`
	NATS  bool      `json:"nats"`

	Pending     *int64          `json:"pending"` // null where it is not known, as the others
	DueSoon     *int64          `json:"duesoon"` // within a minute
	FiredPerSec *float64        `json:"firedpersecond"`
	Owed        *int64          `json:"owed"`
	Firing      *int64          `json:"firing"`
	Held        *int64          `json:"held"`
	DeadLetters *uint64         `json:"deadletters"`
	GapsLately  *int64          `json:"gaps"` // in the last 15 minutes
	P50         *float64        `json:"p50"`  // lateness in ms, of the last 15 minutes
	P99         *float64        `json:"p99"`
	Lateness    []PointView     `json:"lateness"`
	Due         []MinuteView    `json:"due"`
	Namespaces  []NamespaceView `json:"namespaces"`
	CountedAt   time.Time       `json:"countedat,omitzero"`    // when the last audit counted the namespaces
	Firings     []FiringView    `json:"firings"`               // the latest
	FiringsAway string          `json:"firingsaway,omitempty"` // why these cannot be told
	Timerds     []status.Timerd `json:"timerds"`
	Problems    diag.Findings   `json:"problems"`
	Holds       []status.Hold   `json:"holds"`

	DueChart      Chart    `json:"-"`
	LatenessChart Chart    `json:"-"`
	DueAway       string   `json:"-"`
	Numbers       []Figure `json:"-"`
}

// MinuteView is how many timers become due within a minute.
type MinuteView struct {
	Begin time.Time `json:"begin"`
	Due   int64     `json:"due"`
}

// PointView is how late firings were in a stretch of time.
type PointView struct {
	At    time.Time `json:"at"`
	Fired int64     `json:"fired"`
	P50   *float64  `json:"p50"` // ms; null where nothing fired
	P99   *float64  `json:"p99"`

	p50, p99 time.Duration
}

// NamespaceView is a namespace's numbers.
type NamespaceView struct {
	Name        string   `json:"namespace"`
	Pending     *int64   `json:"pending"`
	Held        *int64   `json:"held"`
	FiredPerSec *float64 `json:"firedpersecond"`
	P99         *float64 `json:"p99"` // ms
	IsHeld      bool     `json:"isheld"`

	p99 time.Duration
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
	v := &Overview{Problems: diag.Findings{}, Holds: []status.Hold{}, Timerds: []status.Timerd{}}
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
		v.DueAway = "Redis does not answer."
	}
	if state.NATS() {
		v.DeadLetters = state.Report.NATS.DeadLetters
	}
	pg.addPulse(v, state)
	pg.addFirings(ctx, v)
	v.LatenessChart = latenessChart(v.Lateness, v.At)
	v.Numbers = v.figures()
	return v
}

// addForecast adds what becomes due.
func (v *Overview) addForecast(f *forecast) {
	v.Due = []MinuteView{}
	if f == nil || f.err != nil {
		v.DueAway = "It cannot be told now what becomes due."
		return
	}
	for _, m := range f.Minutes {
		v.Due = append(v.Due, MinuteView{m.Begin.UTC(), m.Due})
	}
	v.DueChart = dueChart(v.Due)
	if len(v.Due) > 1 {
		// Within a minute from now, that is in what is left of this minute and in a part of the next one.
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
