package status

import (
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// Level says how bad a problem is.
type Level string

// The levels.
const (
	Fail Level = "fail" // timers do not fire, or what is so cannot be told
	Warn Level = "warn" // timers fire, and something is to be looked at
)

// Problem is one thing that is wrong.
type Problem struct {
	Level Level  `json:"level"`
	Text  string `json:"text"`
	Fix   string `json:"fix"` // what to do
	// Letters says that it is only that there are dead letters, for who counts them in another place.
	Letters bool `json:"-"`
}

// Report is the state of an installation.
type Report struct {
	Problems []Problem `json:"problems"` // the worst first, causes before what comes of them
	Redis    *Redis    `json:"redis"`    // nil if nothing can be told of it
	NATS     *NATS     `json:"nats"`     // likewise
}

// Failed tells whether something is wrong that keeps timers from firing, or part of the state cannot be told.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Level == Fail })
}

// Away says why a server cannot be reached, and what to do.
type Away struct{ Text, Fix string }

// Sources is what a report is made from.
type Sources struct {
	// Schedule is nil if Redis cannot be reached; then NoRedis says why.
	Schedule *schedule.Schedule
	NoRedis  Away
	// Masters are those of a cluster that do not answer, and that Schedule is without.
	Masters []schedule.Away
	// JetStream is nil if NATS cannot be reached; then NoNATS says why.
	JetStream jetstream.JetStream
	NoNATS    Away
	// Streams says what the streams are called, and with its Installation to whom they should belong.
	Streams streams.Config
	// Webhooks is for who makes many reports: what it has of webhooks is not asked for again too soon. It may be nil.
	Webhooks *RecentWebhooks
}

// Gather asks Redis and NATS at the same time. What cannot be told by the time that ctx ends is a problem in the report.
func (s Sources) Gather(ctx context.Context) *Report {
	r := &Report{Problems: []Problem{}}
	var ofRedis, ofNATS problems
	var wg sync.WaitGroup
	wg.Go(func() { r.Redis = s.gatherRedis(ctx, &ofRedis) })
	wg.Go(func() { r.NATS = s.gatherNATS(ctx, &ofNATS) })
	wg.Wait()
	all := slices.Concat(ofRedis, ofNATS)
	if r.Redis != nil {
		all.owed(r.Redis)
	}
	for _, level := range []Level{Fail, Warn} {
		for _, p := range all {
			if p.Level == level {
				r.Problems = append(r.Problems, p)
			}
		}
	}
	return r
}
