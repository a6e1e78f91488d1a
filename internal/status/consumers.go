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
	// failedWithin is the time over which failed attempts are counted.
	failedWithin = 10 * time.Minute
	// A backlog is a problem if it has grown in each minute of growsFor, to growsTo events or more: a burst is smaller.
	growsFor = 5 * time.Minute
	growsTo  = 100
	// A handler is a problem after failsOnly failures without a success. One success among successShare failures may be
	// an attempt not yet counted as failed.
	failsOnly    = 5
	successShare = 20
)

// Failures counts the failed attempts of a namespace by consumers that do not name themselves.
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

// addPast adds the timerds' history of the consumer; nil if there is none.
func (c *Consumer) addPast(past *streams.Consumers) {
	if past == nil {
		return
	}
	c.failures, c.samples = past.Failed[c.Name], past.Samples[c.Name]
	failed := c.failures.Since(streams.Minute(c.At.Add(-failedWithin)) + 1)
	c.Failed = &failed
	if last, there := past.Errors[c.Name]; there {
		c.LastFailure = &streams.LastFailure{At: last.At, Key: clean(last.Key),
			Error: cleanUpTo(longestError, last.Error)}
	}
	c.addRate()
}

// longestError limits the text of a consumer's error, in bytes.
const longestError = 250

// addRate adds the rate of settled events and the share of failures, since the oldest sample of the last ten minutes.
func (c *Consumer) addRate() {
	now := c.sample()
	for _, s := range c.samples {
		if s.Minute < now.Minute-int64(failedWithin/time.Minute) || s.Minute >= now.Minute || s.Settled > now.Settled {
			continue
		}
		settled := float64(now.Settled - s.Settled)
		c.PerSecond = new(settled / (time.Duration(now.Minute-s.Minute) * time.Minute).Seconds())
		if settled > 0 {
			c.FailingShare = new(min(float64(c.failures.Since(s.Minute))/settled, 1))
		}
		return
	}
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

// grows reports whether the backlog has grown in each minute of growsFor, and its size at the beginning.
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

// onlyFails returns the number of failed attempts without a success, over the last ten minutes or the last hour, and
// that time. failed is 0 if some succeeded, or if that is unknown.
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

// checkConsumption reports consumers whose backlog grows, and consumers whose handler only fails.
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

// failingFix returns the fix for a handler that only fails.
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
	// letterSubjects limits the subjects of a count by subject, and lettersShown the namespaces shown.
	letterSubjects = 2000
	lettersShown   = 20
	// lettersWait bounds the read of the last letters: NATS does not answer a user without the right to read them.
	lettersWait = 500 * time.Millisecond
)

// Letters are the dead letters of a namespace.
type Letters struct {
	Namespace string `json:"namespace"`
	Letters   uint64 `json:"letters"`
	// Last is the time of the last letter, Reason the letter's reason, and Error the error of its timer's last attempt.
	// All three are left out if the letter cannot be read.
	Last   time.Time `json:"last,omitzero"`
	Reason string    `json:"reason,omitempty"`
	Error  string    `json:"error,omitempty"`
}

// gatherLetters returns the dead letters by namespace, most first, and the number of namespaces left out. Too many
// namespaces are an error.
func gatherLetters(
	ctx context.Context, js jetstream.JetStream, conf streams.Config,
) (all []Letters, leftOut int, err error) {
	dead, err := history.Open(ctx, js, conf.DeadStream())
	if err != nil {
		return nil, 0, err
	}
	switch n := dead.CachedInfo().State.NumSubjects; {
	case n == 0:
		return nil, 0, nil
	case n > letterSubjects:
		return nil, 0, fmt.Errorf(
			"stream %s has letters of %d namespaces, too many to count; timerd dead ls lists them",
			conf.DeadStream(), n)
	}
	info, err := dead.Info(ctx, jetstream.WithSubjectFilter(conf.SubjectAll(keys.Dead)))
	if err != nil {
		return nil, 0, fmt.Errorf("stream %s: %w", conf.DeadStream(), err)
	}
	subjects := slices.Collect(maps.Keys(info.State.Subjects))
	slices.SortFunc(subjects, func(a, b string) int {
		if more := int64(info.State.Subjects[b]) - int64(info.State.Subjects[a]); more != 0 {
			return int(max(min(more, 1), -1))
		}
		return strings.Compare(a, b)
	})
	leftOut = max(len(subjects)-lettersShown, 0)
	all = make([]Letters, len(subjects)-leftOut)
	ctx, cancel := context.WithTimeout(ctx, lettersWait)
	defer cancel()
	for i, subject := range subjects[:len(all)] {
		all[i] = Letters{Namespace: namespaceOf(subject, conf.Names), Letters: info.State.Subjects[subject]}
		if ctx.Err() == nil {
			all[i].addLast(ctx, js, conf, subject)
		}
	}
	return all, leftOut, nil
}

// addLast adds the reason and error of a subject's last letter, if it can be read.
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

// namespaceOf returns the namespace of a subject of dead letters, or the subject itself if it has none.
func namespaceOf(subject string, names keys.Names) string {
	if n, ok := keys.ParseFilter(subject, names.SubjectPrefix(), keys.Dead); ok {
		return n.String()
	}
	return subject
}
