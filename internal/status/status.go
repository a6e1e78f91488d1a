package status

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// Report is the state of an installation.
type Report struct {
	Problems diag.Findings `json:"problems"` // worst first, without consequences of others
	Redis    *Redis        `json:"redis"`    // nil if no server answers
	NATS     *NATS         `json:"nats"`     // nil if NATS does not answer

	// Account is the schedule's account, nil if it is unknown; Compared is the last comparison with the events.
	Account  *schedule.Account `json:"-"`
	Compared ledger.Comparison `json:"-"`

	// Found has the findings of all checks, OK ones too, in the order of the table.
	Found diag.Findings `json:"-"`
	// Lacking has the rights that the user of Sources lacks on each server, and Lacks the resulting failures.
	Lacking []rights.Lacking `json:"-"`
	Lacks   diag.Findings    `json:"-"`
}

// Failed reports whether a problem keeps timers from firing, or part of the state is unknown.
func (r *Report) Failed() bool { return r.Problems.Failed() }

// Sources are the sources of a report.
type Sources struct {
	// Schedule is nil if Redis cannot be reached; then NoRedis is the reason, unless the caller reports it.
	Schedule *schedule.Schedule
	NoRedis  diag.Finding
	// Masters are the silent masters of a cluster; Schedule is without them.
	Masters []schedule.Away
	// JetStream is nil if NATS cannot be reached; then NoNATS is the reason, unless the caller reports it. A NoNATS
	// with the level of a warning is reported as it is.
	JetStream jetstream.JetStream
	NoNATS    diag.Finding
	// Streams has the names of the streams, and in its Installation their rightful owner.
	Streams streams.Config
	// Needs are the rights that the user of Schedule must have, as far as the caller knows.
	Needs rights.Needs
	// Clients has the options with which the commands in fixes reach the servers.
	Clients diag.Clients
	// Brief leaves out the counts of timers. Then Aside reports the timers set aside.
	Brief bool
	Aside func() diag.Findings
	// Overdue is for callers that make many reports: it compares the overdue timers of one with the last one's. It may
	// be nil.
	Overdue *OverdueWatch
	// Account is for callers that make many reports: it keeps a recent answer about the account. It may be nil.
	Account *RecentAccount
	// Databases is for callers that make many reports: it looks at some of the other databases of Redis each time. It
	// may be nil.
	Databases *query.Databases
	// Written is for callers that make many reports: it finds streams that the server cannot write, as often as
	// allowed. It may be nil.
	Written *streams.WriteErrors
	// Webhooks is for callers that make many reports: it keeps a recent answer about webhooks. It may be nil.
	Webhooks *RecentWebhooks
}

// Gather asks Redis and NATS at the same time, and runs the table of checks on the answers. A part still unknown when
// ctx ends is a problem in the report.
func (s Sources) Gather(ctx context.Context) *Report {
	f := &facts{Sources: s}
	f.Written = cmp.Or(f.Written, new(streams.WriteErrors))
	var wg sync.WaitGroup
	wg.Go(func() { f.gatherRedis(ctx) })
	wg.Go(func() { f.gatherNATS(ctx) })
	wg.Wait()
	if f.stateErr == nil {
		f.Account.take(f.ledger, f.natsNow())
	}
	f.gatherRestored(ctx)
	if f.nats != nil && f.waits() {
		f.gatherUnwritten(ctx)
	}
	r := &Report{Problems: diag.Findings{}, Redis: f.redis, NATS: f.nats, Account: f.account,
		Compared: f.ledger.Comparison, Found: diag.Run(checks(), f, nil)}
	for i := range f.servers {
		r.Lacking = append(r.Lacking, f.servers[i].lacking)
	}
	own, _ := f.rights()
	r.Lacks = own.Of(diag.Fail)
	s.Clients.Address(r.Found)
	r.Problems = append(r.Problems, slices.Concat(r.Found.Of(diag.Fail), r.Found.Of(diag.Warn))...)
	return r
}
