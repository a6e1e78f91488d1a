package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Redis is the state of Redis. Times are by its clock.
type Redis struct {
	At      time.Time `json:"at"`
	Timerds []Timerd  `json:"timerds"` // those alive, by rank
	Nodes   []Node    `json:"nodes"`

	// The sums over the nodes that answered.
	Pending int64 `json:"pending"` // due later
	Owed    int64 `json:"owed"`    // due and unclaimed; if Held is nil, some of them may be held
	Firing  int64 `json:"firing"`  // claimed, or perhaps published, and not settled
	// Held is how many are due and held. It is nil if not known, because no timerd has looked at too many due timers yet.
	Held   *int64 `json:"held"`
	Oldest *Timer `json:"oldest"` // the owed timer that was due first; nil if none is known

	Holds []Hold `json:"holds"` // in the order of their namespaces

	// Namespaces are the counts by the last audit of each node, CountedAt the time of the oldest of these.
	Namespaces []schedule.NamespaceCount `json:"namespaces"`
	CountedAt  time.Time                 `json:"countedat,omitzero"`

	// Lacking is the rights that the user lacks on each node, and Deaf the problems of other users, by what living timerds say.
	Lacking []rights.Lacking `json:"-"`
	Deaf    diag.Findings    `json:"-"`
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
	Error   string `json:"error,omitempty"` // why its timers are not known
	Pending int64  `json:"pending"`
	Owed    int64  `json:"owed"`
	Firing  int64  `json:"firing"`
	Held    *int64 `json:"held"`             // nil if not known
	Moving  int    `json:"moving,omitempty"` // slots on the move, which are left out

	SetAside  []Aside `json:"setaside,omitempty"`
	LastAudit *Audit  `json:"lastaudit"` // nil if none has ended yet
	Gaps      []Gaps  `json:"gaps,omitempty"`
}

// Aside is the timers that are set aside for one reason.
type Aside struct {
	Reason query.ParkedReason `json:"reason"`
	Timers int64              `json:"timers"`
	Key    string             `json:"key"` // of one of them
}

// Audit is the last audit of a node.
type Audit struct {
	Instance string        `json:"instance"` // whose it was
	At       time.Time     `json:"at"`       // its end
	Took     time.Duration `json:"took"`     // in ns
	Reason   string        `json:"reason"`
}

// Gaps is how often a living timerd may have missed keyspace events of a node since its start, which counts too.
type Gaps struct {
	Instance string    `json:"instance"`
	Count    int       `json:"count"`
	Last     string    `json:"last"` // the reason of the last one
	At       time.Time `json:"at"`   // when that was noticed
}

// gatherRedis returns nil if no server answers.
func (s Sources) gatherRedis(ctx context.Context, p *diag.Findings) *Redis {
	if s.Schedule == nil {
		if s.NoRedis.Text != "" {
			p.Fail(diag.CheckRedis, s.NoRedis.Fix, "the state of the timers and timerds is unknown: %s", s.NoRedis.Text)
		}
		return nil
	}
	for _, master := range s.Masters {
		p.Fail(diag.CheckRedis, "bring that server back: its timers wait there, and none is lost", "%v; its timers are not counted here", master)
	}
	nodes, err := s.Schedule.Nodes(ctx)
	if err != nil {
		p.Fail(diag.CheckCluster, "look at CLUSTER NODES", "cannot tell which servers have timers: %v", err)
	}
	r := &Redis{Nodes: make([]Node, len(nodes)), Held: new(int64)}
	overviews := make([]query.Overview, len(nodes))
	r.Lacking = make([]rights.Lacking, len(nodes))
	found := make([]diag.Findings, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { overviews[i], r.Nodes[i], r.Lacking[i] = s.gatherNode(ctx, node, &found[i]) })
	}
	var others diag.Findings
	members, reports := r.readAll(ctx, s.Schedule, &others)
	wg.Wait()
	for i, node := range nodes {
		r.add(overviews[i])
		r.Nodes[i].take(node.Name(), reports, members)
		s.Clients.On(node.Name()).Address(found[i])
		*p = append(*p, found[i]...)
	}
	r.checkRights(nodes, members, s.Clients, p)
	r.count(nodes, reports)
	if len(members) == 0 && len(nodes) == 1 && !p.Failed() && !others.Failed() {
		if f, ok := OtherDatabase(ctx, nodes[0]); ok {
			p.Add(f)
		}
	}
	if len(nodes) > 0 && r.At.IsZero() && p.Failed() {
		return nil // no server answers
	}
	for i := range r.Nodes {
		checkNode(&r.Nodes[i], r.At, len(r.Timerds) > 0, &others)
	}
	// A server that refuses writes or is away explains missing heartbeats, audits and all else.
	cause := p.Failed()
	if !cause && !others.Has(diag.Fail, diag.CheckTimerds) {
		checkAttended(members, r, &others)
	}
	if cause {
		others = slices.DeleteFunc(others, func(f diag.Finding) bool { return f.Level != diag.Warn || f.Check == diag.CheckAudits })
	}
	*p = append(*p, others...)
	for _, master := range s.Masters {
		r.Nodes = append(r.Nodes, Node{Address: master.Addr, Error: master.Err.Error()})
	}
	return r
}

// OtherDatabase returns the problem that another database of a Redis has the timerds; ok is false if none has as far as can be told.
func OtherDatabase(ctx context.Context, node *schedule.Node) (f diag.Finding, ok bool) {
	db, instance, ok := query.Elsewhere(ctx, node)
	if !ok {
		return diag.Finding{}, false
	}
	return diag.Finding{
		Level: diag.Fail, Check: diag.CheckRedis, Fix: fmt.Sprintf("let TIMERD_REDIS_URL name database %[1]d: it ends in /%[1]d", db),
		Text: fmt.Sprintf("TIMERD_REDIS_URL names database %d, where no timerd is; database %d of this Redis is served by %s", node.Server().Options().DB, db, clean(instance)),
	}, true
}

// timersOn returns how many timers a server has, of which there is one if the name is empty; negative if that is not known.
func (r *Redis) timersOn(server string) int64 {
	if r == nil {
		return -1
	}
	for _, n := range r.Nodes {
		if n.Held != nil && n.Error == "" && (n.Address == server || server == "" && len(r.Nodes) == 1) {
			return n.Pending + n.Owed + n.Firing + *n.Held
		}
	}
	return -1
}

// readAll reads the state that all timers share.
func (r *Redis) readAll(ctx context.Context, s *schedule.Schedule, p *diag.Findings) ([]query.Member, []schedule.AuditReport) {
	members, err := query.Members(ctx, s)
	if err != nil {
		p.Fail(diag.CheckTimerds, "bring the Redis server of the heartbeats back, or let the user read timerd:*", "cannot tell which timerds are alive: %v", err)
	} else {
		checkMembers(members, p)
	}
	r.Timerds = living(members)
	r.readHolds(ctx, s, p)
	reports, err := query.Audits(ctx, s)
	if err != nil {
		p.Fail(diag.CheckAudits, "let the user read timerd:*", "cannot tell what the audits have found: %v", err)
	}
	return members, reports
}

// readHolds reads the holds.
func (r *Redis) readHolds(ctx context.Context, s *schedule.Schedule, p *diag.Findings) {
	list, err := s.Holds(ctx)
	if err != nil {
		p.Fail(diag.CheckHolds, "bring the Redis server of the holds back, or let the user read timerd:*", "the holds cannot be read: %v", err)
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
func (s Sources) gatherNode(ctx context.Context, node *schedule.Node, p *diag.Findings) (query.Overview, Node, rights.Lacking) {
	n := Node{Address: node.Server().Options().Addr}
	err := node.Check(ctx)
	lacking := rights.Lacking{}
	if err == nil || rights.Refused(err) {
		if l, unknown := (rights.Needs{Events: true, Hears: s.Hears}).Lacking(ctx, node); unknown == nil {
			lacking = *l
		}
	}
	if err != nil && len(lacking.Commands) == 0 {
		p.Add(OfServer(ctx, node, err))
	}
	checkClock(ctx, node, p)
	if s.Brief {
		return query.Overview{At: node.Now().Time()}, n, lacking
	}
	seen, err := query.CountTimers(ctx, node)
	if err == nil {
		n.SetAside, err = s.gatherAside(ctx, node, p)
	}
	if err != nil {
		n.Error = err.Error()
		if !p.Failed() && len(lacking.Commands) == 0 {
			p.Fail(diag.CheckRedis, "let the user run what deploy/users.acl grants to timerd", "%s: cannot tell how many timers it has: %v", n.Address, err)
		}
	}
	n.Pending, n.Owed, n.Firing, n.Moving = seen.Pending, seen.Owed, seen.Firing, seen.Moving
	if err == nil && seen.Unseen == 0 {
		n.Held = &seen.Held
	}
	return seen, n, lacking
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

// take takes the last audit of a node, by any timerd, and the gaps of the living ones from the reports.
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

// count adds up the counts of each node's last audit by namespace. An audit that does not
// count a namespace has its timers among the rest.
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
	if i := slices.IndexFunc(r.Namespaces, other); i >= 0 { // always at the end
		rest := r.Namespaces[i]
		r.Namespaces = append(slices.Delete(r.Namespaces, i, i+1), rest)
	}
}
