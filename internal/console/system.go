package console

import (
	"context"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/schedule"
)

// System is the page of what timerd runs on: the timerds, the Redis servers and the streams.
type System struct {
	At      time.Time       `json:"at"`              // by Redis's own clock
	Ahead   *int64          `json:"ahead,omitempty"` // by which a virtual clock leads it, in ms; null without one
	Redis   bool            `json:"redis"`
	NATS    bool            `json:"nats"`
	Timerds []TimerdView    `json:"timerds"` // those alive, by rank
	Gone    []status.Timerd `json:"gone"`    // those last seen within a day, the latest first
	Servers []ServerView    `json:"servers"` // of Redis
	Streams []StreamView    `json:"streams"`
	// Account counts the timers that have entered and left; nil if it is unknown, or has not begun.
	Account *AccountView `json:"account"`
	Gaps    []GapView    `json:"gaps"` // of the living timerds, the latest first
	// Happened is the last actions of operators, and incidents, the latest first.
	Happened  []EntryView `json:"happened"`
	NoHistory string      `json:"nohistory,omitempty"` // why they cannot be shown now
	Guarded   Guarded     `json:"guarded"`
}

// LastHappened returns the first of the last actions.
func (v *System) LastHappened() []EntryView { return v.Happened[:min(len(v.Happened), happenedFirst)] }

// EarlierHappened returns the other ones.
func (v *System) EarlierHappened() []EntryView { return v.Happened[len(v.LastHappened()):] }

// MainStreams returns the streams that timers pass.
func (v *System) MainStreams() []StreamView { return v.streams(false) }

// StreamsBeside returns the other ones, which the page shows when it is asked for them.
func (v *System) StreamsBeside() []StreamView { return v.streams(true) }

func (v *System) streams(beside bool) (some []StreamView) {
	for _, s := range v.Streams {
		if s.beside == beside {
			some = append(some, s)
		}
	}
	return some
}

// TimerdView is a living timerd.
type TimerdView struct {
	status.Timerd
	Hears []string `json:"hears"` // the Redis servers whose keyspace events it has heard
}

// Namespaces returns the namespaces whose keys are timers for it.
func (t TimerdView) Namespaces() string {
	return strings.ReplaceAll(t.Settings["TIMERD_NAMESPACES"], ",", ", ")
}

// Deaf reports whether it is set to hear no keyspace events.
func (t TimerdView) Deaf() bool { return t.Settings["TIMERD_KEYSPACE_EVENTS"] == "off" }

// ServerView is a Redis server with its timers.
type ServerView struct {
	status.Server
	Pending   *int64        `json:"pending"` // null if unknown, like the next one
	Firing    *int64        `json:"firing"`
	LastAudit *status.Audit `json:"lastaudit"` // null before the first
}

// MemoryText returns the used memory, and its limit.
func (s ServerView) MemoryText() string {
	switch {
	case s.MaxMemory > 0:
		return byteText(s.Memory) + " of " + byteText(s.MaxMemory)
	case s.Machine > 0:
		return byteText(s.Memory) + ", no limit; the machine has " + byteText(s.Machine)
	}
	return byteText(s.Memory)
}

// IsShort reports whether a server has less than a tenth of its memory left.
func (s ServerView) IsShort() bool {
	most := s.MaxMemory
	if most == 0 {
		most = s.Machine
	}
	return most > 0 && s.Memory > most/10*9
}

// ClockText compares a server's clock with the one here.
func (s ServerView) ClockText() string {
	ahead := time.Duration(s.ClockAhead) * time.Millisecond
	switch {
	case ahead > 0:
		return about(ahead) + " ahead"
	case ahead < 0:
		return about(-ahead) + " behind"
	}
	return "agrees"
}

// StreamView is a stream with its growth.
type StreamView struct {
	status.Stream
	PerSecond *float64 `json:"persecond"` // messages of the last hour; null if unknown
	// FullIn is the time in seconds until a limit is reached at this rate; null if none is, or if unknown.
	FullIn *float64 `json:"fullin"`

	beside bool // it carries no timers
}

// SizeText returns the stream's size.
func (s StreamView) SizeText() string { return byteText(int64(s.Bytes)) }

// KeptText returns the stream's limits.
func (s StreamView) KeptText() string {
	var limits []string
	if s.MaxBytes > 0 {
		limits = append(limits, byteText(s.MaxBytes))
	}
	if s.MaxMessages > 0 {
		limits = append(limits, grouped(s.MaxMessages)+" messages")
	}
	if s.MaxAge > 0 {
		limits = append(limits, about(time.Duration(s.MaxAge)*time.Second))
	}
	if len(limits) == 0 {
		return "no limit"
	}
	return strings.Join(limits, ", ")
}

// FullText says when the stream is full.
func (s StreamView) FullText() string {
	switch {
	case s.Full:
		return "full"
	case s.MaxBytes == 0 && s.MaxMessages == 0:
		return "no limit"
	case s.PerSecond == nil:
		return "not known"
	case s.FullIn == nil:
		return "never at this rate"
	case s.DropsOldest:
		return "drops the oldest in " + secondsText(*s.FullIn)
	}
	return "in " + secondsText(*s.FullIn)
}

// secondsText formats a number of seconds, however large.
func secondsText(seconds float64) string {
	const most = 100 * 365 * 24 * time.Hour
	if seconds >= most.Seconds() {
		return "over 100 years"
	}
	return about(time.Duration(seconds * float64(time.Second)))
}

// newStreamView reckons when a stream that grows at a rate reaches a limit.
func newStreamView(s status.Stream, perSecond float64, known bool) StreamView {
	v := StreamView{Stream: s}
	if !known {
		return v
	}
	v.PerSecond = &perSecond
	messages, each := float64(s.Messages), float64(s.Bytes)/float64(max(s.Messages, 1))
	most := math.Inf(1)
	if s.MaxMessages > 0 {
		most = float64(s.MaxMessages)
	}
	if s.MaxBytes > 0 && each > 0 {
		most = min(most, float64(s.MaxBytes)/each)
	}
	if perSecond == 0 || math.IsInf(most, 1) || s.MaxAge > 0 && perSecond*float64(s.MaxAge) < most {
		return v // messages expire before it is full
	}
	v.FullIn = new(max((most-messages)/perSecond, 0))
	return v
}

// AccountView is the account of the schedule, beside the events.
type AccountView struct {
	schedule.Account
	Events *ledger.Comparison `json:"events"` // nil before the first comparison
}

// newAccountView returns the account of a report, or nil.
func newAccountView(r *status.Report) *AccountView {
	if r.Account == nil || r.Account.Since.IsZero() {
		return nil
	}
	v := &AccountView{Account: *r.Account}
	if !r.Compared.At.IsZero() {
		v.Events = &r.Compared
	}
	return v
}

// GapView is the last time in which a timerd may have missed keyspace events of a server.
type GapView struct {
	Instance string    `json:"instance"`
	Server   string    `json:"server"`
	Reason   string    `json:"reason"`
	At       time.Time `json:"at"`    // when it was noticed
	Count    int       `json:"count"` // of this timerd and server, with that of the start
	Start    bool      `json:"start"` // it is that of the start
	Audited  bool      `json:"audited"`
	// Audit is the last audit of the server; it has compared all keys since the gap if Audited is set.
	Audit *status.Audit `json:"audit"`
}

// gapsOf returns the last gaps of the living timerds, the latest first.
func gapsOf(r *status.Redis) []GapView {
	gaps := []GapView{}
	for _, n := range r.Nodes {
		for _, g := range n.Gaps {
			audited := n.LastAudit != nil && !n.LastAudit.At.Before(g.At)
			gaps = append(gaps, GapView{g.Instance, n.Address, g.Last, g.At, g.Count, g.Count == 1, audited,
				n.LastAudit})
		}
	}
	slices.SortStableFunc(gaps, func(a, b GapView) int { return b.At.Compare(a.At) })
	return gaps
}

// onlyStarts reports whether all gaps of the last minutes are those of the timerds' starts.
func onlyStarts(r *status.Redis, gaps int64) bool {
	since, starts := r.RealAt().Add(-latenessWindow), int64(0)
	for _, g := range gapsOf(r) {
		if !g.Start && g.At.After(since) {
			return false
		}
	}
	for _, t := range slices.Concat(r.Timerds, r.Gone) {
		if t.Since.After(since) {
			starts += int64(len(r.Nodes))
		}
	}
	return gaps <= starts
}

// systemPage reads the state of the servers.
type systemPage struct {
	*shared
	servers  *cache[[]status.Server]
	rates    *cache[map[string]float64]
	happened *cache[happened]
	beside   *cache[[]status.Stream] // the streams that no timer passes

	lastGuarded *cache[*Guarded]
}

func newSystemPage(s *shared) *systemPage {
	return &systemPage{s,
		newCache(forecastAge, func(ctx context.Context) []status.Server {
			servers, _ := status.Servers(ctx, s.sources.Index) // the problems on the page have the reason
			return servers
		}),
		newCache(forecastAge, func(ctx context.Context) map[string]float64 { return s.sources.History.Rates(ctx) }),
		newCache(stateAge, s.readHappened),
		newCache(forecastAge, func(ctx context.Context) (all []status.Stream) {
			for _, info := range s.sources.History.Beside(ctx) {
				all = append(all, status.NewStream(info))
			}
			return all
		}),
		newCache(forecastAge, s.readGuarded),
	}
}

func (pg *systemPage) system(r *http.Request) (*page, error) {
	ctx := r.Context()
	state := pg.state.get(ctx)
	v := &System{At: pg.realNow(ctx), Redis: state.Redis(), NATS: state.NATS(), Timerds: []TimerdView{},
		Gone: []status.Timerd{}, Servers: []ServerView{}, Streams: []StreamView{}, Gaps: []GapView{},
		Happened: []EntryView{}, Guarded: Guarded{Rows: []EntryView{}, First: true}}
	if v.Redis {
		redis := state.Report.Redis
		v.Ahead = redis.Ahead
		v.addTimerds(redis)
		v.addServers(redis, pg.servers.get(ctx))
		v.Gaps = gapsOf(redis)
	}
	v.Account = newAccountView(state.Report)
	if v.NATS {
		rates := pg.rates.get(ctx)
		for _, s := range state.Report.NATS.Streams {
			rate, known := rates[s.Name]
			v.Streams = append(v.Streams, newStreamView(s, rate, known))
		}
		for _, s := range pg.beside.get(ctx) {
			rate, known := rates[s.Name]
			one := newStreamView(s, rate, known)
			one.beside = true
			v.Streams = append(v.Streams, one)
		}
		last := pg.happened.get(ctx)
		v.Happened, v.NoHistory = append(v.Happened, last.entries...), last.away
	}
	if v.Guarded.Away = v.NoHistory; v.NATS && v.NoHistory == "" {
		var err error
		if v.Guarded, err = pg.guarded(r); err != nil {
			return nil, err
		}
	}
	return &page{Template: "system", Title: "System", Nav: "/system", View: v}, nil
}

func (v *System) addTimerds(r *status.Redis) {
	v.Gone = append(v.Gone, r.Gone...)
	for _, t := range r.Timerds {
		hears := []string{}
		for _, g := range gapsOf(r) { // each timerd has a gap at its start on each server that it hears
			if g.Instance == t.Instance {
				hears = append(hears, g.Server)
			}
		}
		v.Timerds = append(v.Timerds, TimerdView{t, hears})
	}
}

func (v *System) addServers(r *status.Redis, servers []status.Server) {
	for _, n := range r.Nodes {
		s := ServerView{Server: status.Server{Address: n.Address, Error: n.Error}, LastAudit: n.LastAudit}
		if n.Error == "" {
			s.Pending, s.Firing = &n.Pending, &n.Firing
		}
		if i := slices.IndexFunc(servers, func(o status.Server) bool { return o.Address == n.Address }); i >= 0 {
			s.Server = servers[i]
		}
		v.Servers = append(v.Servers, s)
	}
}

// byteText formats a number of bytes.
func byteText(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	size, unit := float64(n), 0
	for size >= 1000 && unit < len(units)-1 {
		size /= 1000
		unit++
	}
	if unit == 0 || size >= 100 {
		return grouped(int64(size)) + " " + units[unit]
	}
	return strconv.FormatFloat(size, 'f', 1, 64) + " " + units[unit]
}
