package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// incidentLook is the interval of looks at incidents, and incidentTimeout bounds each answer for them.
	incidentLook    = time.Second
	incidentTimeout = 3 * time.Second
	// incidentSettles is the time after which every timerd has reported an incident, besides three sweeps.
	incidentSettles = 5 * time.Second
	// incidentPause and incidentLongest are the pauses after a failure to write. After incidentKept an incident is
	// lost, and so are the oldest of more than mostIncidents.
	incidentPause   = 2 * time.Second
	incidentLongest = time.Minute
	incidentKept    = time.Hour
	mostIncidents   = 100
	// sameStep is the time within which all timerds notice a clock step, and stepAccuracy the difference between their
	// measurements of it.
	sameStep     = 30 * time.Second
	stepAccuracy = 3 * time.Second
)

// incidents writes clock steps, and timerds that are gone, to the history: one entry each, whichever timerds notice it.
// Nothing waits for it. Its methods may be called concurrently.
type incidents struct {
	schedule *schedule.Schedule
	js       jetstream.JetStream
	streams  streams.Config
	self     string        // the id of this timerd
	settles  time.Duration // from the notice of an incident to the judgement whether this timerd writes it
	log      *slog.Logger

	mu      sync.Mutex
	waiting []*incident // in the order of their notices
}

// incident is an incident that this timerd has noticed.
type incident struct {
	entry event.Entry
	id    string // of the message, so that JetStream drops it the second time
	at    time.Time
	// stands reports, once all timerds have reported the incident, whether it is true and this timerd writes it.
	stands func([]query.Member) bool
	writes bool // judged so
}

func newIncidents(sched *schedule.Schedule, js jetstream.JetStream, s streams.Config, self string,
	sweepInterval time.Duration, log *slog.Logger) *incidents {
	return &incidents{schedule: sched, js: js, streams: s, self: self, settles: incidentSettles + 3*sweepInterval,
		log: log}
}

// stepped notes a step of the clock of a server. Of the timerds that see it, the first one writes it.
func (i *incidents) stepped(step schedule.Step, server string) {
	i.add(&incident{
		entry:  event.Entry{Kind: event.EntryClock, Detail: status.StepText(step) + ", on " + server},
		id:     incidentID("clock", i.self, step.Server, step.At, step.By),
		stands: func(members []query.Member) bool { return sawFirst(i.self, step, members) },
	})
}

// gone notes a timerd that fell silent. All timerds write it, under the same id.
func (i *incidents) gone(of query.Member) {
	i.add(&incident{
		entry: event.Entry{Kind: event.EntryGone,
			Detail: of.Instance + ", last seen at " + of.Seen.UTC().Format(time.RFC3339)},
		id: incidentID("gone", of.Instance, of.Seen.UnixMilli()),
		stands: func(members []query.Member) bool {
			return slices.ContainsFunc(members, func(m query.Member) bool {
				return m.Silent && m.Instance == of.Instance && m.Seen.Equal(of.Seen)
			})
		},
	})
}

// incidentID returns a message id. It hashes texts that anybody can write to Redis.
func incidentID(of ...any) string {
	return fmt.Sprintf("%.16x", sha256.Sum256(fmt.Appendf(nil, "%q", of)))
}

// sawFirst reports whether no other living timerd reports a step with an earlier notice of it.
func sawFirst(self string, step schedule.Step, members []query.Member) bool {
	within := func(a, b int64, most time.Duration) bool { return max(a-b, b-a) <= most.Milliseconds() }
	for _, m := range members {
		if !m.Alive || m.Instance == self || m.Counts == nil {
			continue
		}
		for _, other := range m.Counts.Steps {
			if other.Server == step.Server && within(other.By, step.By, stepAccuracy) &&
				within(int64(other.At), int64(step.At), sameStep) &&
				cmp.Or(cmp.Compare(other.At, step.At), cmp.Compare(m.Instance, self)) < 0 {
				return false
			}
		}
	}
	return true
}

func (i *incidents) add(one *incident) {
	one.at = time.Now()
	one.entry.Time, one.entry.By, one.entry.Via = one.at, i.self, event.ViaTimerd
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiting = append(i.waiting[max(len(i.waiting)-mostIncidents+1, 0):], one)
}

// run judges and writes incidents until ctx ends.
func (i *incidents) run(ctx context.Context) {
	failing := backoff.Backoff{Policy: backoff.Policy{First: incidentPause, Longest: incidentLongest}, Logger: i.log}
	for pause := incidentLook; backoff.Sleep(ctx, pause); {
		err := i.writeRipe(ctx)
		switch {
		case err == nil:
			failing.Succeed()
			pause = incidentLook
		case ctx.Err() == nil:
			pause = failing.Fail("clock steps, or timerds that are gone, are not in the history yet", err)
		}
	}
}

// writeRipe writes the incidents that are settled, until the first failure.
func (i *incidents) writeRipe(ctx context.Context) error {
	var members []query.Member
	for _, one := range i.ripe() {
		err := i.judge(ctx, one, &members)
		if err == nil && one.writes {
			err = i.write(ctx, one)
		}
		if err != nil && time.Since(one.at) < incidentKept {
			return err
		}
		i.remove(one)
	}
	return nil
}

// ripe returns the settled incidents.
func (i *incidents) ripe() []*incident {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for n < len(i.waiting) && time.Since(i.waiting[n].at) >= i.settles {
		n++
	}
	return slices.Clone(i.waiting[:n])
}

func (i *incidents) remove(one *incident) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiting = slices.DeleteFunc(i.waiting, func(other *incident) bool { return other == one })
}

// judge sets whether this timerd writes an incident. It reads the timerds if they are not known yet.
func (i *incidents) judge(ctx context.Context, one *incident, members *[]query.Member) error {
	if one.writes {
		return nil
	}
	if *members == nil {
		ctx, cancel := context.WithTimeout(ctx, incidentTimeout)
		defer cancel()
		var err error
		if *members, err = query.Members(ctx, i.schedule); err != nil {
			return err
		}
	}
	one.writes = one.stands(*members)
	return nil
}

func (i *incidents) write(ctx context.Context, one *incident) error {
	if !i.js.Conn().IsConnected() {
		return errors.New("NATS does not answer")
	}
	ctx, cancel := context.WithTimeout(ctx, incidentTimeout)
	defer cancel()
	return streams.WriteHistory(ctx, i.js, i.streams, one.entry, jetstream.WithMsgID(one.id))
}
