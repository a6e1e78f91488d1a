package status

import (
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Report is the state of an installation.
type Report struct {
	Problems diag.Findings `json:"problems"` // the worst first, without consequences of others
	Redis    *Redis        `json:"redis"`    // nil if no server answers
	NATS     *NATS         `json:"nats"`     // likewise
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
	// JetStream is nil if NATS cannot be reached; then NoNATS says why, likewise.
	JetStream jetstream.JetStream
	NoNATS    diag.Finding
	// Streams has the names of the streams, and in its Installation their rightful owner.
	Streams streams.Config
	// Hears is the namespaces whose events the user of Schedule is to hear, where the caller knows them.
	Hears keys.Namespaces
	// Clients is how the commands in fixes reach the servers.
	Clients diag.Clients
	// Brief leaves out the counts: how many timers there are, and which are set aside.
	Brief bool
	// Webhooks is for callers that make many reports: it keeps a recent answer about webhooks. It may be nil.
	Webhooks *RecentWebhooks
}

// Gather asks Redis and NATS at the same time. A part that is not known when ctx ends is a problem in the report.
func (s Sources) Gather(ctx context.Context) *Report {
	r := &Report{Problems: diag.Findings{}}
	var ofRedis, ofNATS diag.Findings
	var lost []streams.Loss
	var wg sync.WaitGroup
	wg.Go(func() { r.Redis = s.gatherRedis(ctx, &ofRedis) })
	wg.Go(func() { r.NATS = s.gatherNATS(ctx, &ofNATS, &lost) })
	wg.Wait()
	all := slices.Concat(ofRedis, ofNATS)
	for _, loss := range lost {
		all.Add(loss.Finding(r.Redis.timersOn(loss.Server)))
	}
	if r.Redis != nil {
		checkOwedTimers(r.Redis, &all)
	}
	s.Clients.Address(all)
	for _, level := range []diag.Level{diag.Fail, diag.Warn} {
		for _, p := range all {
			if p.Level == level {
				r.Problems = append(r.Problems, p)
			}
		}
	}
	return r
}
