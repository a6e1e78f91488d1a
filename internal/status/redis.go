package status

import (
	"context"
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
	At time.Time `json:"at"` // by the clock of due times
	// Ahead is the lead of that clock over Redis's in ms, if it is a virtual one; else nil.
	Ahead   *int64   `json:"ahead,omitempty"`
	Timerds []Timerd `json:"timerds"` // those alive, by rank
	Gone    []Timerd `json:"gone"`    // those last seen within a day, the latest first; at most twenty
	Nodes   []Node   `json:"nodes"`

	// The sums over the answering nodes.
	Pending int64 `json:"pending"` // due later
	Owed    int64 `json:"owed"`    // due and unclaimed; if Held is nil, some of them may be held
	Firing  int64 `json:"firing"`  // claimed, or perhaps published, and not settled
	// Held is the number of due timers on hold. It is nil if unknown, because too many due timers wait for a timerd's
	// look.
	Held   *int64 `json:"held"`
	Oldest *Timer `json:"oldest"` // the owed timer with the earliest due time; nil if none is known
	// Overdue has the overdue timers; nil for none.
	Overdue *Overdue `json:"overdue"`

	Holds []Hold `json:"holds"` // in the order of their namespaces

	// Namespaces are the counts of each node's last audit. CountedAt is the time of the oldest of these audits.
	Namespaces []schedule.NamespaceCount `json:"namespaces"`
	CountedAt  time.Time                 `json:"countedat,omitzero"`
	Restored   []Restored                `json:"restored,omitempty"` // none unless timers wait
}

// RealAt returns At by Redis's own clock, which heartbeats, audits and gaps go by.
func (r *Redis) RealAt() time.Time {
	if r.Ahead == nil {
		return r.At
	}
	return r.At.Add(-time.Duration(*r.Ahead) * time.Millisecond)
}

// Timerd is a living timerd.
type Timerd struct {
	Instance string            `json:"instance"`
	Version  string            `json:"version"`
	Host     string            `json:"host,omitempty"`
	PID      int               `json:"pid,omitempty"`
	Since    time.Time         `json:"since,omitzero"` // its start, by the clock of its host
	Rank     int               `json:"rank"`
	Seen     time.Time         `json:"seen"`
	Config   string            `json:"config,omitempty"` // a fingerprint of the settings
	Settings map[string]string `json:"settings,omitempty"`
	// Wrong has the failures of its own readiness checks; none if it is ready.
	Wrong []Wrong `json:"wrong,omitempty"`
}

// Wrong is a check of a timerd's own readiness that fails.
type Wrong struct {
	Check string `json:"check"`
	Text  string `json:"text"` // the reason
}

// Timer is an owed timer.
type Timer struct {
	Key string    `json:"key"` // as events show it
	Due time.Time `json:"due"`
}

// Hold is a namespace on hold, or one whose timers are still being released.
type Hold struct {
	Namespace string     `json:"namespace"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until"` // nil: until somebody resumes it
	Reason    string     `json:"reason"`
	By        string     `json:"by"`
	Resuming  bool       `json:"resuming"`
}

// Node is a Redis server with timers.
type Node struct {
	Address string `json:"address"`
	Error   string `json:"error,omitempty"` // why its timers are unknown
	Pending int64  `json:"pending"`
	Owed    int64  `json:"owed"`
	Firing  int64  `json:"firing"`
	Held    *int64 `json:"held"`             // nil if unknown
	Moving  int    `json:"moving,omitempty"` // moving slots, which are left out

	SetAside  []Aside `json:"setaside,omitempty"`
	LastAudit *Audit  `json:"lastaudit"` // nil if none has ended yet
	Gaps      []Gaps  `json:"gaps,omitempty"`
}

// Aside is the timers set aside for one reason.
type Aside struct {
	Reason query.ParkedReason `json:"reason"`
	Timers int64              `json:"timers"`
	Key    string             `json:"key"` // an example
}

// Audit is the last audit of a node.
type Audit struct {
	Instance string        `json:"instance"` // the auditing timerd
	At       time.Time     `json:"at"`       // its end
	Took     time.Duration `json:"took"`     // in ns
	Reason   string        `json:"reason"`
}

// Gaps counts a living timerd's gaps in the keyspace events of a node since its start, which counts as one.
type Gaps struct {
	Instance string    `json:"instance"`
	Count    int       `json:"count"`
	Last     string    `json:"last"` // the reason of the last one
	At       time.Time `json:"at"`   // the time it was noticed
}

// gatherRedis asks Redis.
func (f *facts) gatherRedis(ctx context.Context) {
	if f.Schedule == nil {
		return
	}
	nodes, err := f.Schedule.Nodes(ctx)
	f.serversErr = err
	r := &Redis{Nodes: make([]Node, len(nodes)), Held: new(int64)}
	f.servers = make([]server, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { f.servers[i], r.Nodes[i] = f.gatherServer(ctx, node) })
	}
	if ahead, err := f.Schedule.Ahead(ctx); err == nil && f.Schedule.IsVirtual() {
		r.Ahead = new(ahead.Milliseconds())
	}
	f.members, f.membersErr = query.Members(ctx, f.Schedule)
	r.Timerds, r.Gone = timerds(f.members)
	f.holdsErr = r.readHolds(ctx, f.Schedule)
	waits, _ := f.Schedule.WaitsLately(ctx) // another check reports the error
	r.Restored = restoredOf(waits)
	f.audits, f.auditsErr = query.Audits(ctx, f.Schedule)
	f.account = f.Account.get(ctx, f.Schedule)
	wg.Wait()
	f.gatherOverdue(ctx)
	r.Overdue = f.overdue
	for i, node := range nodes {
		r.add(f.servers[i].seen)
		r.Nodes[i].take(node.Name(), f.audits, f.members)
	}
	r.count(nodes, f.audits)
	if len(nodes) == 1 && !f.impaired() {
		f.gatherDatabases(ctx, nodes[0])
	}
	if len(nodes) > 0 && r.At.IsZero() && f.impaired() {
		return // no server answers
	}
	for _, master := range f.Masters {
		r.Nodes = append(r.Nodes, Node{Address: master.Addr, Error: master.Err.Error()})
	}
	f.redis = r
}

// impaired reports whether a Redis server is away or does not serve timerd, which explains missing heartbeats and
// answers.
func (f *facts) impaired() bool {
	return len(f.Masters) > 0 || f.serversErr != nil || slices.ContainsFunc(f.servers, func(s server) bool {
		return s.refused != nil || s.broken != nil || s.uncounted != nil || s.lacking.Stops()
	})
}

// askFix returns the fix for a question that Redis has not answered.
func askFix(err error) string {
	if rights.Refused(err) {
		return "let the user run what deploy/users.acl grants to timerd"
	}
	return "run this again; if Redis still does not answer, look for what holds it: redis-cli SLOWLOG GET 10"
}

// each adds the findings about each Redis server. The commands in their fixes go to that server.
func (f *facts) each(p *diag.Findings, find func(*server, *diag.Findings)) {
	for i := range f.servers {
		s, found := &f.servers[i], diag.Findings{}
		find(s, &found)
		f.Clients.On(s.node.Name()).Address(found)
		*p = append(*p, found...)
	}
}

// checkRedis judges whether each server serves timerd.
func checkRedis(f *facts, p *diag.Findings) {
	if f.Schedule == nil {
		if f.NoRedis.Text != "" {
			p.Fail(f.NoRedis.Fix, "the state of the timers and timerds is unknown: %s", f.NoRedis.Text)
		}
		return
	}
	for _, master := range f.Masters {
		p.Fail("", "%v; its timers are not counted here", master)
	}
	f.each(p, func(s *server, p *diag.Findings) {
		switch {
		case s.refused != nil:
			p.Add(*s.refused)
		case s.uncounted != nil && s.broken == nil && !s.lacking.Stops():
			p.Fail(askFix(s.uncounted), "%s: cannot count its timers: %v", s.addr(), s.uncounted)
		}
	})
	if f.elsewhere != nil {
		p.Add(*f.elsewhere)
	}
	if len(*p) == 0 && len(f.servers) > 0 {
		p.OK("%s", f.addrs())
	}
}

// addrs names the servers of Redis.
func (f *facts) addrs() string {
	var all []string
	for i := range f.servers {
		all = append(all, f.servers[i].addr())
	}
	return strings.Join(all, ", ")
}

// checkCluster judges whether a Redis Cluster works as a whole.
func checkCluster(f *facts, p *diag.Findings) {
	if f.serversErr != nil {
		p.Fail("look at CLUSTER NODES", "cannot find the servers with timers: %v", f.serversErr)
	}
	for i := range f.servers {
		if s := &f.servers[i]; s.broken != nil {
			p.Add(*s.broken)
		}
	}
	if f.redis == nil {
		return
	}
	for i := range f.redis.Nodes {
		if n := &f.redis.Nodes[i]; n.Moving > 0 {
			p.Warn("wait until the slots have moved", "%s: %s moving: the timers there wait, and are not counted here",
				n.Address, count(int64(n.Moving), "slot is", "slots are"))
		}
	}
}

// checkHolds judges whether the list of holds can be read.
func checkHolds(f *facts, p *diag.Findings) {
	if f.holdsErr != nil {
		p.Fail(askFix(f.holdsErr), "cannot read the holds: %v", f.holdsErr)
	}
}

// checkAudits judges whether audits end.
func checkAudits(f *facts, p *diag.Findings) {
	if f.auditsErr != nil {
		p.Fail(askFix(f.auditsErr), "cannot read the reports of the audits: %v", f.auditsErr)
	}
	if f.redis == nil || len(f.redis.Timerds) == 0 || f.Schedule.IsVirtual() { // audits keep real intervals
		return
	}
	for i := range f.redis.Nodes {
		n := &f.redis.Nodes[i]
		if n.LastAudit != nil && f.redis.At.Sub(n.LastAudit.At) > auditTooOld {
			p.Warn("look for \"audit failed\" in the timerds' logs", "%s: no audit has ended since %s", n.Address,
				n.LastAudit.At.Format(timeLayout))
		}
	}
}

// timersOn returns the number of timers on a server; the name is empty if it is the only one. It is negative if
// unknown.
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

// readHolds reads the holds.
func (r *Redis) readHolds(ctx context.Context, s *schedule.Schedule) error {
	list, err := s.Holds(ctx)
	if err != nil {
		return err
	}
	for _, h := range list.Holds {
		hold := Hold{Namespace: h.Namespace.String(), Since: h.Since.Time(), Reason: clean(h.Reason), By: clean(h.By),
			Resuming: !h.Lasts(list.Now)}
		if h.Until > 0 {
			until := h.Until.Time()
			hold.Until = &until
		}
		r.Holds = append(r.Holds, hold)
	}
	return nil
}

// mostGone limits the timerds that are gone in a report: each start of a timerd leaves one.
const mostGone = 20

// timerds returns the living timerds by rank, and the gone ones. A timerd that others found silent has only an id and
// its last heartbeat.
func timerds(members []query.Member) (living, gone []Timerd) {
	described := map[string]bool{}
	for _, m := range members {
		described[m.Instance] = described[m.Instance] || !m.Silent
	}
	living, gone = []Timerd{}, []Timerd{}
	for _, m := range members {
		t := Timerd{
			Instance: clean(m.Instance), Version: clean(m.Version), Host: clean(m.Host), PID: m.PID, Since: m.Since,
			Rank: m.Rank, Seen: m.Seen, Config: m.Fingerprint(), Settings: m.Settings,
		}
		switch {
		case m.Alive:
			t.Wrong = wrongOf(m)
			living = append(living, t)
		case !m.Silent, !described[m.Instance]:
			gone = append(gone, t)
		}
	}
	slices.SortFunc(living, func(a, b Timerd) int { return a.Rank - b.Rank })
	slices.SortFunc(gone, func(a, b Timerd) int { return b.Seen.Compare(a.Seen) })
	return living, gone[:min(len(gone), mostGone)]
}

// wrongOf returns the failures that a timerd reports of itself. A producer of timers can write there.
func wrongOf(m query.Member) (wrong []Wrong) {
	if m.Counts == nil {
		return nil
	}
	for _, w := range m.Counts.Wrong[:min(len(m.Counts.Wrong), mostWrong)] {
		wrong = append(wrong, Wrong{clean(w.Check), cleanUpTo(longestWrong, w.Text)})
	}
	return wrong
}

// gatherServer asks one server.
func (f *facts) gatherServer(ctx context.Context, node *schedule.Node) (server, Node) {
	s, n := server{node: node}, Node{Address: node.Server().Options().Addr}
	err := node.Check(ctx)
	if err == nil || rights.Refused(err) {
		lacking, unknown := f.Needs.Lacking(ctx, node)
		if s.unknown = unknown; unknown == nil {
			s.lacking = *lacking
		}
	}
	if err != nil && !s.lacking.Stops() {
		s.refuses(OfServer(ctx, node, err))
	}
	s.skew = skew(ctx, node)
	if f.Brief {
		s.seen = query.Overview{At: node.Now().Time()}
		return s, n
	}
	if s.seen, err = query.CountTimers(ctx, node); err == nil {
		n.SetAside, s.aside, err = f.gatherAside(ctx, node)
	}
	if s.uncounted = err; err != nil {
		n.Error = err.Error()
		if diag.Refusal(err) != nil && s.refused == nil && s.broken == nil {
			s.refuses(OfServer(ctx, node, err))
		}
	}
	n.Pending, n.Owed, n.Firing, n.Moving = s.seen.Pending, s.seen.Owed, s.seen.Firing, s.seen.Moving
	if err == nil && s.seen.Unseen == 0 {
		n.Held = &s.seen.Held
	}
	return s, n
}

// add adds a node's counts to the sums.
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

// take reads from the reports the last audit of a node, by any timerd, and the gaps found by the timerds that are
// alive.
func (n *Node) take(name string, reports []schedule.AuditReport, members []query.Member) {
	for _, report := range reports {
		if report.Node != name {
			continue
		}
		if n.LastAudit == nil || report.At.After(n.LastAudit.At) {
			n.LastAudit = &Audit{clean(report.Instance), report.At, report.Took, clean(report.Reason)}
		}
		alive := slices.ContainsFunc(members, func(m query.Member) bool {
			return m.Alive &&
				m.Instance == report.Instance
		})
		if alive && report.Gaps > 0 {
			n.Gaps = append(n.Gaps, Gaps{clean(report.Instance), report.Gaps, clean(report.LastGap), report.GapAt})
		}
	}
	slices.SortFunc(n.Gaps, func(a, b Gaps) int { return strings.Compare(a.Instance, b.Instance) })
}

// count adds up the counts of each node's last audit by namespace. Timers of a namespace that an audit does not count
// are among the other timers.
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
