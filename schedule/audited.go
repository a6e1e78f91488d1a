package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// countPage is how many firings one step of counting looks at, about: none holds Redis for longer than a page of an audit.
const countPage = 256

// NamespaceCount is how many timers of a namespace an audit has counted.
type NamespaceCount struct {
	Namespace string `json:"namespace"` // keys.Other for the rest
	Pending   int64  `json:"pending"`   // due later
	Owed      int64  `json:"owed"`      // due, and claimed by nobody
	Firing    int64  `json:"firing"`    // claimed and not settled
	Held      int64  `json:"held"`      // due and held
}

// AuditReport is what a timerd leaves in Redis of its last audit of a node.
type AuditReport struct {
	Node     string        `json:"-"`    // its name; empty for a single Redis
	Instance string        `json:"-"`    // whose audit it was
	At       time.Time     `json:"at"`   // when it ended, by the node's clock
	Took     time.Duration `json:"took"` // in ns
	Reason   string        `json:"reason"`
	// Gaps is how many times the timerd may have missed keyspace events of the node since it was started, LastGap the reason of
	// the last one, and GapAt when that was noticed.
	Gaps    int       `json:"gaps"`
	LastGap string    `json:"lastgap,omitempty"`
	GapAt   time.Time `json:"gapat,omitzero"`
	// Timers has the namespaces that were counted, and the rest at its end. Timers that were set, moved or fired meanwhile may
	// be left out or counted twice.
	Timers []NamespaceCount `json:"timers"`
}

// tally counts timers by namespace.
type tally struct {
	namespaces keys.Namespaces
	counts     []NamespaceCount // one for each namespace, and one for the rest
}

func newTally(namespaces keys.Namespaces) *tally {
	t := &tally{namespaces, make([]NamespaceCount, len(namespaces)+1)}
	for i, n := range namespaces {
		t.counts[i].Namespace = n.String()
	}
	t.counts[len(namespaces)].Namespace = keys.Other
	return t
}

// add adds counts as tally.lua has them.
func (t *tally) add(counts any) {
	list, _ := counts.([]any)
	for i := 0; i+4 < len(list); i += 5 {
		name, _ := list[i].(string)
		key, err := keys.Parse(name + ":-")
		at := t.namespaces.Find(key)
		if err != nil || at < 0 {
			at = len(t.namespaces)
		}
		pending, _ := list[i+1].(int64)
		owed, _ := list[i+2].(int64)
		firing, _ := list[i+3].(int64)
		c := &t.counts[at]
		c.Pending += pending
		c.Owed += owed
		c.Firing += firing
		held, _ := list[i+4].(int64)
		c.Held += held
	}
}

// CountBy has the round count the timers of some namespaces, and all others together. Call it before the first page.
func (a *Audit) CountBy(namespaces keys.Namespaces) { a.tally = newTally(namespaces) }

// CountFirings counts the firings of a partition. It also mends the names of those that are owed where timerds of earlier
// versions, which know no such names, have left them behind or out.
func (a *Audit) CountFirings(ctx context.Context, p keys.Partition) error {
	s := a.node.schedule
	listed, err := s.countFirings(ctx, p, a.tally)
	if err != nil {
		return fmt.Errorf("schedule: count the firings: %w", err)
	}
	for cursor, more := "0", listed > 0; more; more = cursor != "0" && cursor != "" {
		if cursor, err = s.Run(ctx, s.scripts.Load().tidyOwed, []Call{{p, []any{cursor, countPage}}})[0].Text(); err != nil {
			return fmt.Errorf("schedule: look through the names of what is owed: %w", err)
		}
	}
	return nil
}

// countFirings adds the firings of a partition to a tally. It returns how many names the partition has for those that nobody
// has claimed.
func (s *Schedule) countFirings(ctx context.Context, p keys.Partition, t *tally) (listed int64, err error) {
	for cursor, more := "0", true; more; more = cursor != "0" && cursor != "" {
		reply, err := s.Run(ctx, s.scripts.Load().countFiring, []Call{{p, []any{cursor, countPage}}})[0].Slice()
		if err == nil && len(reply) != 3 {
			err = fmt.Errorf("unexpected reply of %d elements", len(reply))
		}
		if err != nil {
			return 0, err
		}
		t.add(reply[1])
		cursor, _ = reply[0].(string)
		listed, _ = reply[2].(int64)
	}
	return listed, nil
}

// Counted returns what the round has counted: the namespaces in their order, and the rest at the end.
func (a *Audit) Counted() []NamespaceCount { return a.tally.counts }

// RecordAudit leaves a report of an audit of the node in Redis, in place of the timerd's last one, and forgets those of
// timerds and nodes that are gone.
func (n *Node) RecordAudit(ctx context.Context, r AuditReport) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("schedule: leave a report of an audit: %w", err)
	}
	rdb, name := n.schedule.rdb, keys.Single.Audits()
	var known *redis.StringSliceCmd
	var alive *redis.StringSliceCmd
	_, err = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.HSet(ctx, name, reportField(n.name, r.Instance), text)
		known = pipe.HKeys(ctx, name)
		alive = pipe.ZRange(ctx, keys.Single.Members(), 0, -1)
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule: leave a report of an audit: %w", err)
	}
	living, nodes := map[string]bool{r.Instance: true}, n.schedule.nodeNames()
	for _, id := range alive.Val() {
		living[id] = true
	}
	var old []string
	for _, field := range known.Val() {
		// What the dead have left of another node stays until that node has been audited again.
		node, instance, _ := strings.Cut(field, " ")
		if !nodes[node] || node == n.name && !living[instance] {
			old = append(old, field)
		}
	}
	if len(old) > 0 {
		if err := rdb.HDel(ctx, name, old...).Err(); err != nil {
			return fmt.Errorf("schedule: forget old reports of audits: %w", err)
		}
	}
	return nil
}

// reportField names the report of a timerd's audit of a node. Neither holds a space.
func reportField(node, instance string) string { return node + " " + instance }

// nodeNames returns the names of the nodes as far as they are known.
func (s *Schedule) nodeNames() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]bool, len(s.nodes))
	for _, n := range s.nodes {
		names[n.name] = true
	}
	return names
}
