package console

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
)

const (
	// mostNamespaces limits the rows of namespaces.
	mostNamespaces = 12
	// mostLive limits the timers that are counted anew for the overview. Of more, the audits' counts are shown.
	mostLive = 5000
	// liveTimeout bounds such a count.
	liveTimeout = 2 * time.Second
)

// NamespacesView are the numbers by namespace.
type NamespacesView struct {
	Namespaces []NamespaceView `json:"namespaces"`
	// Others sums up the namespaces without a row: null if there are none.
	Others *NamespaceView `json:"others"`
	// CountedAt is the time of the oldest count, of the last audits or, if Live is set, of now. Firings per second and
	// lateness are always of now.
	CountedAt time.Time `json:"countedat,omitzero"`
	Live      bool      `json:"live"`
}

// NamespaceView is a namespace's numbers.
type NamespaceView struct {
	Name        string    `json:"namespace"`
	Pending     *int64    `json:"pending"`
	Held        *int64    `json:"held"`
	FiredPerSec *float64  `json:"firedpersecond"`
	P99         *lateness `json:"p99"`
	IsHeld      bool      `json:"isheld"`
}

// add adds the numbers of a namespace to those of others.
func (n *NamespaceView) add(other NamespaceView) {
	for _, sum := range []struct{ to, from **int64 }{{&n.Pending, &other.Pending}, {&n.Held, &other.Held}} {
		if *sum.from != nil {
			*sum.to = new(valueOf(*sum.to) + **sum.from)
		}
	}
	if other.FiredPerSec != nil {
		n.FiredPerSec = new(valueOf(n.FiredPerSec) + *other.FiredPerSec)
	}
}

// valueOf returns what p points to, or 0.
func valueOf[V any](p *V) (v V) {
	if p != nil {
		v = *p
	}
	return v
}

// weight orders namespaces.
func (n NamespaceView) weight() int64 { return valueOf(n.Pending) + valueOf(n.Held) }

// liveCounts are the timers by namespace of a schedule with few timers.
type liveCounts struct {
	at       time.Time
	byFamily map[keys.Namespace]*liveCount // app, module and type
}

type liveCount struct{ pending, held int64 }

// countLive counts the timers by namespace. It returns nil if there are too many, or if they cannot be read in time.
func (s *shared) countLive(ctx context.Context) *liveCounts {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	if state := s.state.get(ctx); !state.Redis() || state.Report.Redis.Pending > mostLive {
		return nil
	}
	counts, few := &liveCounts{byFamily: map[keys.Namespace]*liveCount{}}, true
	err := query.Names(ctx, s.sources.Index, query.Query{}, func(p query.Page) bool {
		counts.at = p.Now
		if few = p.Total <= mostLive && !p.Cut; !few {
			return false
		}
		for _, t := range p.Timers {
			counts.add(t)
		}
		return true
	})
	if err != nil || !few {
		return nil
	}
	return counts
}

func (c *liveCounts) add(t query.Timer) {
	n := keys.Namespace{App: t.Key.App, Module: t.Key.Module, Type: t.Key.Type}
	if c.byFamily[n] == nil {
		c.byFamily[n] = &liveCount{}
	}
	switch t.State {
	case query.StatePending:
		c.byFamily[n].pending++
	case query.StateHeld:
		c.byFamily[n].held++
	}
}

// namespaceRows collects rows by name.
type namespaceRows map[string]*NamespaceView

func (rows namespaceRows) row(name string) *NamespaceView {
	if rows[name] == nil {
		rows[name] = &NamespaceView{Name: name}
	}
	return rows[name]
}

// everyNamespace is the name of the namespace that TIMERD_NAMESPACES=* configures.
func everyNamespace() string { return keys.Namespace{}.String() }

// namespacesOf joins the live counts, or those of the last audits, with the firings. Busy namespaces come first. The
// namespace * and all others have no row.
func namespacesOf(p history.LiveStats, state *summary, live *liveCounts) NamespacesView {
	v := NamespacesView{Namespaces: []NamespaceView{}}
	rows := namespaceRows{}
	for _, n := range p.Namespaces {
		one := rows.row(n.Name)
		one.FiredPerSec, one.P99 = &n.FiredPerSecond, latenessOf(n.Lateness, 0.99)
	}
	if live != nil && !live.at.IsZero() {
		v.Live, v.CountedAt = true, live.at.UTC()
		rows.addLive(live, state)
	} else if hasCounted(state.Report.Redis) {
		v.CountedAt = state.Report.Redis.CountedAt
		for _, n := range state.Report.Redis.Namespaces {
			one := rows.row(n.Namespace)
			one.Pending, one.Held = &n.Pending, &n.Held
		}
	}
	var others NamespaceView
	for _, name := range []string{keys.Other, everyNamespace()} {
		if n := rows[name]; n != nil {
			others.add(*n)
			delete(rows, name)
		}
	}
	for _, n := range rows {
		for _, h := range state.Holds() {
			n.IsHeld = n.IsHeld || h.Namespace == n.Name
		}
		v.Namespaces = append(v.Namespaces, *n)
	}
	slices.SortFunc(v.Namespaces, func(a, b NamespaceView) int {
		if a.weight() != b.weight() {
			return int(min(max(b.weight()-a.weight(), -1), 1))
		}
		return strings.Compare(a.Name, b.Name)
	})
	for len(v.Namespaces) > mostNamespaces {
		last := len(v.Namespaces) - 1
		others.add(v.Namespaces[last])
		v.Namespaces = v.Namespaces[:last]
	}
	if others.weight() > 0 || valueOf(others.FiredPerSec) > 0 {
		v.Others = &others
	}
	return v
}

// addLive adds live counts, to the configured namespaces where they are known: firings are counted by these.
func (rows namespaceRows) addLive(live *liveCounts, state *summary) {
	names := slices.Collect(maps.Keys(rows))
	for _, n := range state.Report.Redis.Namespaces {
		names = append(names, n.Namespace)
	}
	var configured keys.Namespaces
	for _, name := range names {
		if n, err := keys.ParseNamespace(name); err == nil && name != keys.Other && n != (keys.Namespace{}) {
			configured = append(configured, n)
			rows.row(name).add(NamespaceView{Pending: new(int64), Held: new(int64)})
		}
	}
	for n, c := range live.byFamily {
		name := n.String()
		if at := configured.Find(keys.Key{App: n.App, Module: n.Module, Type: n.Type}); at >= 0 {
			name = configured[at].String()
		}
		rows.row(name).add(NamespaceView{Pending: &c.pending, Held: &c.held})
	}
}

// hasCounted reports whether the last audit has counts: the first one, at the start, may have found nothing yet.
func hasCounted(r *status.Redis) bool {
	var sum int64
	for _, n := range r.Namespaces {
		sum += n.Pending + n.Held + n.Owed + n.Firing
	}
	return sum > 0 || r.Pending == 0
}
