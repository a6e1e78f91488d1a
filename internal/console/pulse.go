package console

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
)

// mostNamespaces is how many rows the overview has of namespaces.
const mostNamespaces = 12

// addPulse adds what the timerds say with their heartbeats: how much fires, and how late.
func (pg *overviewPage) addPulse(v *Overview, state *summary) {
	v.Lateness, v.Namespaces, v.Firings = []PointView{}, []NamespaceView{}, []FiringView{}
	p := pg.sources.Pulse()
	if !p.At.IsZero() {
		v.FiredPerSec, v.GapsLately = &p.FiredPerSecond, &p.Gaps
		if p.Lateness.Count() > 0 {
			v.P50, v.P99 = inMS(p.Lateness.Quantile(0.5)), inMS(p.Lateness.Quantile(0.99))
		}
	}
	for _, point := range p.Points {
		one := PointView{At: point.At.UTC(), Fired: point.Fired}
		if point.Lateness.Count() > 0 {
			one.p50, one.p99 = point.Lateness.Quantile(0.5), point.Lateness.Quantile(0.99)
			one.P50, one.P99 = inMS(one.p50), inMS(one.p99)
		}
		v.Lateness = append(v.Lateness, one)
	}
	v.Namespaces = namespacesOf(p, state)
}

func inMS(d time.Duration) *float64 {
	f := float64(d) / float64(time.Millisecond)
	return &f
}

// namespacesOf joins what the last audit has counted with what fires. What is held or fires most comes first.
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
			pending, held := n.Pending, n.Held
			one := row(n.Namespace)
			one.Pending, one.Held = &pending, &held
		}
	}
	for _, n := range p.Namespaces {
		one := row(n.Name)
		rate := n.FiredPerSecond
		one.FiredPerSec = &rate
		if n.Lateness.Count() > 0 {
			one.p99 = n.Lateness.Quantile(0.99)
			one.P99 = inMS(one.p99)
		}
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

// hasCounted tells whether the counts of the last audit say anything: the first one, at the start, may have found nothing yet.
func hasCounted(r *status.Redis) bool {
	var sum int64
	for _, n := range r.Namespaces {
		sum += n.Pending + n.Held + n.Owed + n.Firing
	}
	return sum > 0 || r.Pending == 0
}

// weight orders namespaces: the rest comes last.
func (n NamespaceView) weight() int64 {
	switch {
	case n.Name == keys.Other:
		return -1
	case n.Pending != nil:
		return *n.Pending
	}
	return 0
}

// P99Text returns how late the namespace's firings are.
func (n NamespaceView) P99Text() string {
	if n.P99 == nil {
		return "–"
	}
	return ms(n.p99)
}

// addFirings adds the latest firings.
func (pg *overviewPage) addFirings(ctx context.Context, v *Overview) {
	const most = 10
	sample := pg.sources.Tail.Sample(ctx)
	for _, r := range sample.Records[:min(len(sample.Records), most)] {
		v.Firings = append(v.Firings, newEventView(r, previewBytes))
	}
	v.FiringsAway = sample.Away
}

// readParts renders what is live on the overview.
func (pg *overviewPage) readParts(ctx context.Context) []byte {
	v := pg.readOverview(ctx)
	parts := map[string]part{
		"figures": {"figures", v.Numbers}, "lateness": {"linechart", v.LatenessChart}, "namespaces": {"namespaces", v}, "firings": {"firings", v},
		"asof": {"stamp", Moment{v.At, v.At}}, "notices": {"notices", noticesOf(pg.state.get(ctx), true)},
	}
	if v.DueAway == "" {
		parts["due"] = part{"duechart", v.DueChart}
	}
	return pg.render.renderParts("overview", parts)
}
