package status

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Redis is what Redis tells. Times are by its clock.
type Redis struct {
	At      time.Time `json:"at"`
	Timerds []Timerd  `json:"timerds"` // those alive, by rank
	Nodes   []Node    `json:"nodes"`

	// The sums over the nodes that could be asked.
	Pending int64 `json:"pending"` // due later
	Owed    int64 `json:"owed"`    // due, and claimed by nobody; if Held is nil, some of them may be held
	Firing  int64 `json:"firing"`  // claimed and not settled, or perhaps published
	// Held is how many are due and held. It is nil if that is not known: too many are due that no timerd has looked at yet.
	Held   *int64 `json:"held"`
	Oldest *Timer `json:"oldest"` // of those owed the one that was due first; nil if none is known

	Holds []Hold `json:"holds"` // in the order of their namespaces

	// Namespaces are the counts by the last audit of each node, CountedAt the time of the oldest of these.
	Namespaces []schedule.NamespaceCount `json:"namespaces"`
	CountedAt  time.Time                 `json:"countedat,omitzero"`
}

// Timerd is a living timerd.
type Timerd struct {
	Instance string            `json:"instance"`
	Version  string            `json:"version"`
	Host     string            `json:"host,omitempty"`
	PID      int               `json:"pid,omitempty"`
	Since    time.Time         `json:"since,omitzero"` // when it was started, by the clock of its host
	Rank     int               `json:"rank"`
	Seen     time.Time         `json:"seen"`
	Config   string            `json:"config,omitempty"` // a fingerprint of the settings
	Settings map[string]string `json:"settings,omitempty"`
}

// Timer is a timer that is owed.
type Timer struct {
	Key string    `json:"key"` // as events show it
	Due time.Time `json:"due"`
}

// Hold is a namespace that is held, or whose timers are still being released.
type Hold struct {
	Namespace string     `json:"namespace"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until"` // nil: until it is resumed
	Reason    string     `json:"reason"`
	By        string     `json:"by"`
	Resuming  bool       `json:"resuming"`
}

// age returns for how long the timer has been due.
func (t *Timer) age(now time.Time) time.Duration { return now.Sub(t.Due) }

// Node is a Redis server with timers.
type Node struct {
	Address string `json:"address"`
	Error   string `json:"error,omitempty"` // why it cannot be told how many timers it has
	Pending int64  `json:"pending"`
	Owed    int64  `json:"owed"`
	Firing  int64  `json:"firing"`
	Held    *int64 `json:"held"`             // nil if that is not known
	Moving  int    `json:"moving,omitempty"` // slots that are left out

	SetAside  []Aside `json:"setaside,omitempty"`
	LastAudit *Audit  `json:"lastaudit"` // nil if none has come to its end yet
	Gaps      []Gaps  `json:"gaps,omitempty"`
}

// Aside is the timers that wait for one reason without stopping others.
type Aside struct {
	Reason query.AsideReason `json:"reason"`
	Timers int64             `json:"timers"`
	Key    string            `json:"key"` // of one of them
}

// Audit is the last audit of a node.
type Audit struct {
	Instance string        `json:"instance"` // whose it was
	At       time.Time     `json:"at"`       // its end
	Took     time.Duration `json:"took"`     // in ns
	Reason   string        `json:"reason"`
}

// Gaps is how often a living timerd may have missed keyspace events of a node since it was started, which is one itself.
type Gaps struct {
	Instance string    `json:"instance"`
	Count    int       `json:"count"`
	Last     string    `json:"last"` // the reason of the last one
	At       time.Time `json:"at"`   // when that was noticed
}

// gatherRedis returns nil if nothing can be told.
func (s Sources) gatherRedis(ctx context.Context, p *diag.Findings) *Redis {
	if s.Schedule == nil {
		p.Fail(diag.CheckRedis, s.NoRedis.Fix, "nothing can be told of the timers and timerds: %s", s.NoRedis.Text)
		return nil
	}
	for _, master := range s.Masters {
		p.Fail(diag.CheckRedis, "bring that server back: its timers wait there, and none is lost", "%v; what it has is in no number here", master)
	}
	members, err := query.Members(ctx, s.Schedule)
	if err != nil {
		p.Fail(diag.CheckTimerds, "bring the Redis server of the heartbeats back, or let the user read timerd:*", "cannot tell which timerds are alive: %v", err)
	} else {
		*p = append(*p, CheckMembers(members)...)
	}
	r := &Redis{Timerds: living(members), Nodes: []Node{}, Held: new(int64)}
	r.readHolds(ctx, s.Schedule, p)
	nodes, err := s.Schedule.Nodes(ctx)
	if err != nil {
		p.Fail(diag.CheckCluster, "let CLUSTER NODES show what is wrong with the cluster", "cannot tell which servers have timers, or not of all: %v", err)
	}
	reports, err := query.Audits(ctx, s.Schedule)
	if err != nil {
		p.Fail(checkAudits, "let the user read timerd:*", "cannot tell what the audits have found: %v", err)
	}
	overviews := make([]query.Overview, len(nodes))
	r.Nodes = make([]Node, len(nodes))
	found := make([]diag.Findings, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { overviews[i], r.Nodes[i] = gatherNode(ctx, node, &found[i]) })
	}
	wg.Wait()
	for i, node := range nodes {
		r.add(overviews[i])
		r.Nodes[i].take(node.Name(), reports, members)
	}
	r.count(nodes, reports)
	for i := range found {
		*p = append(*p, found[i]...)
		checkNode(&r.Nodes[i], r.At, len(r.Timerds) > 0, p)
	}
	for _, master := range s.Masters {
		r.Nodes = append(r.Nodes, Node{Address: master.Addr, Error: master.Err.Error()})
	}
	return r
}

// readHolds reads what is held.
func (r *Redis) readHolds(ctx context.Context, s *schedule.Schedule, p *diag.Findings) {
	list, err := s.Holds(ctx)
	if err != nil {
		p.Fail(checkHolds, "bring the Redis server of the holds back, or let the user read timerd:*", "cannot tell what is held: %v", err)
		return
	}
	for _, h := range list.Holds {
		hold := Hold{Namespace: h.Namespace.String(), Since: h.Since.Time(), Reason: clean(h.Reason), By: clean(h.By), Resuming: !h.Lasts(list.Now)}
		if h.Until > 0 {
			until := h.Until.Time()
			hold.Until = &until
		}
		r.Holds = append(r.Holds, hold)
	}
}

// living returns the timerds that are alive.
func living(members []query.Member) []Timerd {
	all := []Timerd{}
	for _, m := range members {
		if m.Alive {
			all = append(all, Timerd{
				Instance: clean(m.Instance), Version: versionOf(m), Host: clean(m.Host), PID: m.PID, Since: m.Since,
				Rank: m.Rank, Seen: m.Seen, Config: m.Fingerprint(), Settings: m.Settings,
			})
		}
	}
	return all
}

// gatherNode asks one server.
func gatherNode(ctx context.Context, node *schedule.Node, p *diag.Findings) (query.Overview, Node) {
	n := Node{Address: node.Server().Options().Addr}
	seen, err := query.CountTimers(ctx, node)
	if err == nil {
		var aside []query.Aside
		aside, err = query.SetAside(ctx, node)
		for _, a := range aside {
			n.SetAside = append(n.SetAside, Aside{a.Reason, a.Count, keys.EncodeText(a.Key.String())})
		}
	}
	if err != nil {
		n.Error = err.Error()
		p.Fail(diag.CheckRedis, "bring that server back, or let the user run what deploy/users.acl grants to timerd", "%s: cannot tell how many timers it has: %v", n.Address, err)
	}
	n.Pending, n.Owed, n.Firing, n.Moving = seen.Pending, seen.Owed, seen.Firing, seen.Moving
	if err == nil && seen.Unseen == 0 {
		n.Held = &seen.Held
	}
	return seen, n
}

// add adds what a node has to the sums.
func (r *Redis) add(seen query.Overview) {
	r.Pending += seen.Pending
	r.Owed += seen.Owed
	r.Firing += seen.Firing
	if seen.Unseen > 0 {
		r.Held = nil
	} else if r.Held != nil {
		*r.Held += seen.Held
	}
	if seen.At.After(r.At) {
		r.At = seen.At
	}
	if !seen.OldestDue.IsZero() && (r.Oldest == nil || seen.OldestDue.Before(r.Oldest.Due)) {
		r.Oldest = &Timer{keys.EncodeText(seen.Oldest.String()), seen.OldestDue}
	}
}

// take takes what the reports say of a node: the last audit, whoever made it, and the gaps of those alive.
func (n *Node) take(name string, reports []schedule.AuditReport, members []query.Member) {
	for _, report := range reports {
		if report.Node != name {
			continue
		}
		if n.LastAudit == nil || report.At.After(n.LastAudit.At) {
			n.LastAudit = &Audit{clean(report.Instance), report.At, report.Took, clean(report.Reason)}
		}
		alive := slices.ContainsFunc(members, func(m query.Member) bool { return m.Alive && m.Instance == report.Instance })
		if alive && report.Gaps > 0 {
			n.Gaps = append(n.Gaps, Gaps{clean(report.Instance), report.Gaps, clean(report.LastGap), report.GapAt})
		}
	}
	slices.SortFunc(n.Gaps, func(a, b Gaps) int { return strings.Compare(a.Instance, b.Instance) })
}

// count adds up by namespace what the last audit of each node has counted. A namespace that only some of them count is in
// the rest of the others.
func (r *Redis) count(nodes []*schedule.Node, reports []schedule.AuditReport) {
	at := map[string]int{}
	for _, node := range nodes {
		var last *schedule.AuditReport
		for i := range reports {
			if reports[i].Node == node.Name() && (last == nil || reports[i].At.After(last.At)) {
				last = &reports[i]
			}
		}
		if last == nil {
			continue
		}
		if r.CountedAt.IsZero() || last.At.Before(r.CountedAt) {
			r.CountedAt = last.At
		}
		for _, c := range last.Timers {
			i, ok := at[c.Namespace]
			if !ok {
				i = len(r.Namespaces)
				at[c.Namespace] = i
				r.Namespaces = append(r.Namespaces, schedule.NamespaceCount{Namespace: clean(c.Namespace)})
			}
			sum := &r.Namespaces[i]
			sum.Pending += c.Pending
			sum.Owed += c.Owed
			sum.Firing += c.Firing
			sum.Held += c.Held
		}
	}
	other := func(c schedule.NamespaceCount) bool { return c.Namespace == keys.Other }
	if i := slices.IndexFunc(r.Namespaces, other); i >= 0 { // at the end, whoever counted
		rest := r.Namespaces[i]
		r.Namespaces = append(slices.Delete(r.Namespaces, i, i+1), rest)
	}
}
