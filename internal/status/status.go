package status

import (
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// Report is the state of an installation.
type Report struct {
	Problems diag.Findings `json:"problems"` // the worst first, and no consequences of what is told already
	Redis    *Redis        `json:"redis"`    // nil if nothing can be told of it
	NATS     *NATS         `json:"nats"`     // likewise
}

// Failed tells whether something is wrong that keeps timers from firing, or part of the state cannot be told.
func (r *Report) Failed() bool { return r.Problems.Failed() }

// Sources is what a report is made from.
type Sources struct {
	// Schedule is nil if Redis cannot be reached; then NoRedis says why, unless somebody else has.
	Schedule *schedule.Schedule
	NoRedis  diag.Finding
	// Masters are those of a cluster that do not answer, and that Schedule is without.
	Masters []schedule.Away
	// JetStream is nil if NATS cannot be reached; then NoNATS says why, likewise.
	JetStream jetstream.JetStream
	NoNATS    diag.Finding
	// Streams says what the streams are called, and with its Installation to whom they should belong.
	Streams streams.Config
	// Brief leaves out what has to be counted: how many timers there are, and which are set aside.
	Brief bool
	// Webhooks is for who makes many reports: what it has of webhooks is not asked for again too soon. It may be nil.
	Webhooks *RecentWebhooks
}

// Gather asks Redis and NATS at the same time. What cannot be told by the time that ctx ends is a problem in the report.
func (s Sources) Gather(ctx context.Context) *Report {
	r := &Report{Problems: diag.Findings{}}
	var ofRedis, ofNATS diag.Findings
	var wg sync.WaitGroup
	wg.Go(func() { r.Redis = s.gatherRedis(ctx, &ofRedis) })
	wg.Go(func() { r.NATS = s.gatherNATS(ctx, &ofNATS) })
	wg.Wait()
	all := slices.Concat(ofRedis, ofNATS)
	if r.Redis != nil {
		checkOwedTimers(r.Redis, &all)
	}
	for _, level := range []diag.Level{diag.Fail, diag.Warn} {
		for _, p := range all {
			if p.Level == level {
				r.Problems = append(r.Problems, p)
			}
		}
	}
	return r
}
