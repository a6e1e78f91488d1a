package status

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// Problems is what is wrong. In JSON they are without their checks.
type Problems diag.Findings

// MarshalJSON implements [json.Marshaler].
func (p Problems) MarshalJSON() ([]byte, error) {
	type problem struct {
		Level diag.Level `json:"level"`
		Text  string     `json:"text"`
		Fix   string     `json:"fix"`
	}
	all := make([]problem, len(p))
	for i, f := range p {
		all[i] = problem{f.Level, f.Text, f.Fix}
	}
	return json.Marshal(all)
}

// Report is the state of an installation.
type Report struct {
	Problems Problems `json:"problems"` // the worst first, causes before what comes of them
	Redis    *Redis   `json:"redis"`    // nil if nothing can be told of it
	NATS     *NATS    `json:"nats"`     // likewise
}

// Failed tells whether something is wrong that keeps timers from firing, or part of the state cannot be told.
func (r *Report) Failed() bool { return diag.Findings(r.Problems).Failed() }

// Sources is what a report is made from.
type Sources struct {
	// Schedule is nil if Redis cannot be reached; then NoRedis says why.
	Schedule *schedule.Schedule
	NoRedis  diag.Finding
	// Masters are those of a cluster that do not answer, and that Schedule is without.
	Masters []schedule.Away
	// JetStream is nil if NATS cannot be reached; then NoNATS says why.
	JetStream jetstream.JetStream
	NoNATS    diag.Finding
	// Streams says what the streams are called, and with its Installation to whom they should belong.
	Streams streams.Config
	// Webhooks is for who makes many reports: what it has of webhooks is not asked for again too soon. It may be nil.
	Webhooks *RecentWebhooks
}

// Gather asks Redis and NATS at the same time. What cannot be told by the time that ctx ends is a problem in the report.
func (s Sources) Gather(ctx context.Context) *Report {
	r := &Report{Problems: Problems{}}
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
