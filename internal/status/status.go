package status

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// Report is the state of an installation.
type Report struct {
	Problems diag.Findings `json:"problems"` // the worst first, without consequences of others
	Redis    *Redis        `json:"redis"`    // nil if no server answers
	NATS     *NATS         `json:"nats"`     // likewise

	// Found is the findings of all checks, those that are OK too, in the order of the table.
	Found diag.Findings `json:"-"`
	// Lacking is the rights that the user of Sources lacks on each server, and Lacks the failures that come of it.
	Lacking []rights.Lacking `json:"-"`
	Lacks   diag.Findings    `json:"-"`
}

// Failed reports whether a problem keeps timers from firing, or part of the state is not known.
func (r *Report) Failed() bool { return r.Problems.Failed() }

// Sources is where a report comes from.
type Sources struct {
	// Schedule is nil if Redis cannot be reached; then NoRedis says why, unless the caller reports it.
	Schedule *schedule.Schedule
	NoRedis  diag.Finding
	// Masters are the masters of a cluster that do not answer; Schedule is without them.
	Masters []schedule.Away
	// JetStream is nil if NATS cannot be reached; then NoNATS says why, likewise. With the level of a warning it is told as it is.
	JetStream jetstream.JetStream
	NoNATS    diag.Finding
	// Streams has the names of the streams, and in its Installation their rightful owner.
	Streams streams.Config
	// Needs is what the user of Schedule is to be allowed, as far as the caller knows it.
	Needs rights.Needs
	// Clients is how the commands in fixes reach the servers.
	Clients diag.Clients
	// Brief leaves out the counts: how many timers there are, and which are set aside. Then Aside finds the latter.
	Brief bool
	Aside func() diag.Findings
	// Overdue is for callers that make many reports: it compares the overdue timers of one with those of the last. It may be nil.
	Overdue *OverdueWatch
	// Databases is for callers that make many reports: it looks at some of the other databases of Redis each time. It
	// may be nil.
	Databases *query.Databases
	// Written is for callers that make many reports: it asks which streams cannot be written, as often as it may. It
	// may be nil.
	Written *streams.WriteErrors
	// Webhooks is for callers that make many reports: it keeps a recent answer about webhooks. It may be nil.
	Webhooks *RecentWebhooks
}

// Gather asks Redis and NATS at the same time, and runs the table of checks on the answers. A part that is not known when ctx ends is a
// problem in the report.
func (s Sources) Gather(ctx context.Context) *Report {
	f := &facts{Sources: s}
	f.Written = cmp.Or(f.Written, new(streams.WriteErrors))
	var wg sync.WaitGroup
	wg.Go(func() { f.gatherRedis(ctx) })
	wg.Go(func() { f.gatherNATS(ctx) })
	wg.Wait()
	if f.nats != nil && f.waits() {
		f.gatherUnwritten(ctx)
	}
	r := &Report{Problems: diag.Findings{}, Redis: f.redis, NATS: f.nats, Found: diag.Run(checks(), f, nil)}
	for i := range f.servers {
		r.Lacking = append(r.Lacking, f.servers[i].lacking)
	}
	own, _ := f.rights()
	r.Lacks = own.Of(diag.Fail)
	s.Clients.Address(r.Found)
	r.Problems = append(r.Problems, slices.Concat(r.Found.Of(diag.Fail), r.Found.Of(diag.Warn))...)
	return r
}
