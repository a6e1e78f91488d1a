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

// NamespaceCount is the number of a namespace's timers in an audit.
type NamespaceCount struct {
	Namespace string `json:"namespace"` // keys.Other for the rest
	Pending   int64  `json:"pending"`   // due later
	Owed      int64  `json:"owed"`      // due, and claimed by nobody
	Firing    int64  `json:"firing"`    // claimed and not settled
	Held      int64  `json:"held"`      // due and held
}

// AuditReport is a timerd's report in Redis about its last audit of a node.
type AuditReport struct {
	Node     string        `json:"-"`    // its name; empty for a single Redis
	Instance string        `json:"-"`    // whose audit it was
	At       time.Time     `json:"at"`   // end, by the node's clock
	Took     time.Duration `json:"took"` // in ns
	Reason   string        `json:"reason"`
	// Gaps is the number of gaps in the node's keyspace events since the timerd was started, LastGap the reason of the
	// last one, and GapAt the time of its discovery.
	Gaps    int       `json:"gaps"`
	LastGap string    `json:"lastgap,omitempty"`
	GapAt   time.Time `json:"gapat,omitzero"`
	// Timers has the counted namespaces, and the rest at its end. Timers that were set, moved or fired meanwhile may be
	// left out or counted twice.
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
func (t *tally) add(counts Reply) {
	for i := 0; i+4 < len(counts); i += 5 {
		key, err := keys.Parse(counts.Text(i) + ":-")
		at := t.namespaces.Find(key)
		if err != nil || at < 0 {
			at = len(t.namespaces)
		}
		c := &t.counts[at]
		c.Pending += counts.Int(i + 1)
		c.Owed += counts.Int(i + 2)
		c.Firing += counts.Int(i + 3)
		c.Held += counts.Int(i + 4)
	}
}

// RecordAudit leaves a report of an audit of the node in Redis, in place of the timerd's last one, and forgets the
// reports of timerds and nodes that are gone.
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
		// A dead timerd's reports about another node stay until that node has been audited again.
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
