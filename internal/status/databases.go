package status

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/schedule"
)

// mostDatabases limits the databases named in a finding.
const mostDatabases = 5

// gatherDatabases looks at the other databases of a single Redis.
func (f *facts) gatherDatabases(ctx context.Context, node *schedule.Node) {
	var all []query.Database
	if f.Databases != nil {
		all = f.Databases.Look(ctx, node)
	} else {
		all = query.OtherDatabases(ctx, node)
	}
	f.database = node.Server().Options().DB
	for _, one := range all {
		if one.Timers > 0 && one.Timerd == "" {
			f.unserved = append(f.unserved, one)
		}
	}
	slices.SortFunc(f.unserved, func(a, b query.Database) int { return cmp.Compare(a.Number, b.Number) })
	if found, ok := served(node, all); ok && len(f.members) == 0 && f.membersErr == nil {
		f.elsewhere = &found
	}
}

// OtherDatabase returns the problem that the timerds serve another database of a Redis; ok is false if none is known
// to.
func OtherDatabase(ctx context.Context, node *schedule.Node) (f diag.Finding, ok bool) {
	return served(node, query.OtherDatabases(ctx, node))
}

// served is OtherDatabase for a known list of databases.
func served(node *schedule.Node, all []query.Database) (f diag.Finding, ok bool) {
	var first *query.Database
	for i := range all {
		if one := &all[i]; one.Timerd != "" && (first == nil || one.Number < first.Number) {
			first = one
		}
	}
	if first == nil {
		return diag.Finding{}, false
	}
	return diag.Finding{
		Level: diag.Fail, Fix: fmt.Sprintf("let TIMERD_REDIS_URL name database %[1]d: it ends in /%[1]d", first.Number),
		Text: fmt.Sprintf("TIMERD_REDIS_URL names database %d, where no timerd is; database %d of this Redis is "+
			"served by %s",
			node.Server().Options().DB, first.Number, clean(first.Timerd)),
	}, true
}

// checkDatabases reports timers in other databases of the server that no timerd serves: the function library takes
// timers in every database. Their producer may have started before its timerd, or use a wrong database.
func checkDatabases(f *facts, p *diag.Findings) {
	if len(f.unserved) == 0 {
		return
	}
	var said []string
	for _, one := range f.unserved[:min(len(f.unserved), mostDatabases)] {
		said = append(said, fmt.Sprintf("database %d has %s", one.Number, count(one.Timers, "timer", "timers")))
	}
	if more := len(f.unserved) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("%d more databases have some", more))
	}
	p.Warn(fmt.Sprintf("if a producer should use database %d, as TIMERD_REDIS_URL does, correct its URL and set "+
		"these timers again; else start a timerd for their database, whose TIMERD_REDIS_URL ends in /%d",
		f.database, f.unserved[0].Number), "%s and no timerd: nothing fires there", strings.Join(said, ", "))
}
