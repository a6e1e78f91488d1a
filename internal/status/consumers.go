package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// failedWithin is for how long failed attempts are counted.
	failedWithin = 10 * time.Minute
	// growsFor is how long a backlog has to grow, in each minute, before that is a problem, and growsTo how
	// many events must wait then: a burst is smaller.
	growsFor = 5 * time.Minute
	growsTo  = 100
	// failsOnly is how many attempts have to fail without a success before that is a problem. One success in
	// successShare failures may be one that is not counted as failed yet.
	failsOnly    = 5
	successShare = 20
)

// Failures is how many attempts of a namespace failed for consumers that do not name themselves.
type Failures struct {
	Namespace string `json:"namespace"`
	Failed    int64  `json:"failed"` // in the last ten minutes
}

// SampleConsumers returns the present state of the consumers of fired events, by name, and the time by the
// clock of NATS.
func SampleConsumers(
	ctx context.Context, js jetstream.JetStream, conf streams.Config,
) (samples map[string]streams.ConsumerSample, now time.Time, err error) {
	fired, err := js.Stream(ctx, conf.FiredStream())
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("stream %s: %w", conf.FiredStream(), err)
	}
	all, err := durableConsumers(ctx, fired, conf.Names)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("consumers of stream %s: %w", conf.FiredStream(), err)
	}
	samples = map[string]streams.ConsumerSample{}
	for i := range all {
		samples[all[i].Name] = all[i].sample()
	}
	return samples, cmp.Or(fired.CachedInfo().TimeStamp, time.Now()), nil
}

// sample returns the consumer's present state.
func (c *Consumer) sample() streams.ConsumerSample {
	return streams.ConsumerSample{Minute: streams.Minute(c.At), Waiting: c.Waiting, Settled: c.settled}
}

// addPast adds what timerds know of the consumer; nil if they have said nothing.
func (c *Consumer) addPast(past *streams.Consumers) {
	if past == nil {
		return
	}
	c.failures, c.samples = past.Failed[c.Name], past.Samples[c.Name]
	failed := c.failures.Since(streams.Minute(c.At.Add(-failedWithin)) + 1)
	c.Failed = &failed
}

// unnamed returns the failures of consumers that do not name themselves, at a time, most first.
func unnamed(past *streams.Consumers, now time.Time) (all []Failures) {
	if past == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(past.Unnamed)) {
		if n := past.Unnamed[name].Since(streams.Minute(now.Add(-failedWithin)) + 1); n > 0 {
			all = append(all, Failures{name, n})
		}
	}
	slices.SortStableFunc(all, func(a, b Failures) int { return int(b.Failed - a.Failed) })
	return all
}

// grows reports whether more events have waited each minute for a while, and how many there were at its beginning.
func (c *Consumer) grows() (from uint64, yes bool) {
	now := c.sample()
	before, minutes := now, int64(growsFor/time.Minute)
	for i := len(c.samples) - 1; i >= 0 && before.Minute > now.Minute-minutes; i-- {
		s := c.samples[i]
		if s.Minute >= now.Minute {
			continue
		}
		if s.Waiting >= before.Waiting {
			return 0, false
		}
		before = s
	}
	return before.Waiting, before.Minute <= now.Minute-minutes && c.Waiting >= growsTo
}

// onlyFails returns how many attempts have failed without one that succeeded, and since when: in the last ten
// minutes, or in the last hour. failed is 0 if some have succeeded, or that is not known.
func (c *Consumer) onlyFails() (failed int64, since time.Duration) {
	now := c.sample()
	for _, within := range []time.Duration{failedWithin, streams.ConsumersAge} {
		for _, s := range c.samples {
			if s.Minute < now.Minute-int64(within/time.Minute) || s.Settled > now.Settled {
				continue
			}
			n := c.failures.Since(s.Minute)
			if n >= failsOnly && int64(now.Settled-s.Settled)-n <= n/successShare {
				return n, time.Minute * time.Duration(max(now.Minute-s.Minute, 1))
			}
			break
		}
	}
	return 0, 0
}

// checkConsumption reports consumers whose backlog grows, and those whose handler only fails.
func checkConsumption(consumers []Consumer, of jetstream.StreamConfig, p *diag.Findings) {
	var growing backlog
	first := uint64(0)
	for i := range consumers {
		c := &consumers[i]
		if from, yes := c.grows(); yes && !c.paused && (c.asking || c.Working > 0) {
			growing.add(c, c.Waiting)
			first += from
		}
		if failed, since := c.onlyFails(); failed > 0 {
			p.Warn(c.failingFix(), "%s: its handler only fails: the last %s, within %s, and none succeeded",
				clean(c.Name), count(failed, "attempt", "attempts"), diag.Duration(since))
		}
	}
	if len(growing.names) > 0 {
		p.Warn("run more processes of its program, or with more handlers at a time; how many wait now: timerd status",
			"%s: more events come than are handled: %s, up from %d within %s%s",
			names(growing.names), growing.events(), first, diag.Duration(growsFor), dropped(of))
	}
}

// failingFix says what to do about a handler that only fails.
func (c *Consumer) failingFix() string {
	look := "its program's log has the errors"
	if isOfDeliver(c.Name) {
		look = "what the hosts answer: timerd deliveries --failed --since 10m"
	}
	if len(c.of) != 1 {
		return look
	}
	return fmt.Sprintf("%s; to keep its attempts until it is repaired: timerd hold %s", look, diag.Word(clean(c.of[0])))
}

const (
	// letterSubjects bounds in how many subjects the dead letters are counted one by one, and lettersShown for
	// how many namespaces they are shown.
	letterSubjects = 2000
	lettersShown   = 20
	// lettersWait is how long the last letters may take: without the right to read them NATS does not answer.
	lettersWait = 500 * time.Millisecond
)

// Letters are the dead letters of a namespace.
type Letters struct {
	Namespace string `json:"namespace"`
	Letters   uint64 `json:"letters"`
	// Last is when the last one was stored, Reason why it is one, and Error what went wrong in its last
	// attempt. They are left out if they cannot be read.
	Last   time.Time `json:"last,omitzero"`
	Reason string    `json:"reason,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// gatherLetters returns the dead letters by namespace, those with the most first. It returns none if they are
// of too many namespaces.
func gatherLetters(ctx context.Context, js jetstream.JetStream, conf streams.Config) ([]Letters, error) {
	dead, err := js.Stream(ctx, conf.DeadStream())
	if err != nil {
		return nil, err
	}
	if n := dead.CachedInfo().State.NumSubjects; n == 0 || n > letterSubjects {
		return nil, nil
	}
	info, err := dead.Info(ctx, jetstream.WithSubjectFilter(conf.SubjectAll(keys.Dead)))
	if err != nil {
		return nil, err
	}
	subjects := slices.Collect(maps.Keys(info.State.Subjects))
	slices.SortFunc(subjects, func(a, b string) int {
		if more := int64(info.State.Subjects[b]) - int64(info.State.Subjects[a]); more != 0 {
			return int(max(min(more, 1), -1))
		}
		return strings.Compare(a, b)
	})
	subjects = subjects[:min(len(subjects), lettersShown)]
	all := make([]Letters, len(subjects))
	ctx, cancel := context.WithTimeout(ctx, lettersWait)
	defer cancel()
	for i, subject := range subjects {
		all[i] = Letters{Namespace: namespaceOf(subject, conf.Names), Letters: info.State.Subjects[subject]}
		if ctx.Err() == nil {
			all[i].addLast(ctx, js, conf, subject)
		}
	}
	return all, nil
}

// addLast adds what the last letter of a subject says, if it can be read.
func (l *Letters) addLast(ctx context.Context, js jetstream.JetStream, conf streams.Config, subject string) {
	data, stored, err := history.Last(ctx, js, conf.DeadStream(), subject)
	if err != nil || stored.IsZero() {
		return
	}
	l.Last = stored
	if e, err := event.Parse(data); err == nil {
		l.Reason, l.Error = e.DeadReason, e.LastError
	}
}

// namespaceOf returns the namespace of a subject of dead letters, or the subject if it is of none.
func namespaceOf(subject string, names keys.Names) string {
	if n, ok := keys.ParseFilter(subject, names.SubjectPrefix(), keys.Dead); ok {
		return n.String()
	}
	return subject
}
