package streams

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// ConsumersAge is for how long it is remembered how many events waited for a consumer, and how many attempts
// failed.
const ConsumersAge = time.Hour

const (
	// closeSamples is for how long there is a sample a minute; of the time before, there is one for each
	// sparseMinutes.
	closeSamples  = 10 * time.Minute
	sparseMinutes = 10
	// maxCounted bounds how many names a timerd counts for.
	maxCounted = 500
)

// Consumers is the past of the consumers of fired events, as one timerd knows it. All times are by the clock of
// NATS, in minutes since 1970. It is not safe for concurrent use.
type Consumers struct {
	Instance string `json:"instance"`
	// Samples has the states of each durable consumer, oldest first, by its name.
	Samples map[string][]ConsumerSample `json:"samples,omitempty"`
	// Failed has the failed attempts that this timerd carried out for each durable consumer. Unnamed has those
	// of clients that do not name theirs, by namespace.
	Failed  map[string]PerMinute `json:"failed,omitempty"`
	Unnamed map[string]PerMinute `json:"unnamed,omitempty"`
}

// ConsumerSample is the state of a consumer at a moment.
type ConsumerSample struct {
	Minute  int64  `json:"minute"`
	Waiting uint64 `json:"waiting"` // events that it was not handed yet
	Settled uint64 `json:"settled"` // deliveries that have ended, since it was made
}

// PerMinute counts by minute.
type PerMinute map[int64]int64

// Minute returns the minute of a time.
func Minute(t time.Time) int64 { return t.Unix() / 60 }

// Since returns the sum from a minute on.
func (p PerMinute) Since(minute int64) (sum int64) {
	for m, n := range p {
		if m >= minute {
			sum += n
		}
	}
	return sum
}

// CountFailed counts an attempt of a timer that failed at a time. consumer may be "".
func (c *Consumers) CountFailed(key keys.Key, consumer string, at time.Time) {
	all, name := &c.Failed, consumer
	if consumer == "" {
		all, name = &c.Unnamed, keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}.String()
	}
	if *all == nil {
		*all = map[string]PerMinute{}
	}
	one := (*all)[name]
	if one == nil {
		if len(*all) >= maxCounted {
			return
		}
		one = PerMinute{}
		(*all)[name] = one
	}
	one[Minute(at)]++
}

// AddSample adds the state of a consumer, unless there is one of the same minute.
func (c *Consumers) AddSample(name string, s ConsumerSample) {
	if c.Samples == nil {
		c.Samples = map[string][]ConsumerSample{}
	}
	all := c.Samples[name]
	if n := len(all); n == 0 && len(c.Samples) >= maxCounted || n > 0 && all[n-1].Minute >= s.Minute {
		return
	}
	c.Samples[name] = append(all, s)
}

// Forget forgets what is too old at a time.
func (c *Consumers) Forget(now time.Time) {
	oldest, sparse := Minute(now.Add(-ConsumersAge)), Minute(now.Add(-closeSamples))
	for name, all := range c.Samples {
		c.Samples[name] = slices.DeleteFunc(all, func(s ConsumerSample) bool {
			return s.Minute < oldest || s.Minute < sparse && s.Minute%sparseMinutes != 0
		})
	}
	maps.DeleteFunc(c.Samples, func(_ string, all []ConsumerSample) bool { return len(all) == 0 })
	for _, counts := range []map[string]PerMinute{c.Failed, c.Unnamed} {
		for _, one := range counts {
			maps.DeleteFunc(one, func(minute, _ int64) bool { return minute < oldest })
		}
		maps.DeleteFunc(counts, func(_ string, one PerMinute) bool { return len(one) == 0 })
	}
}

// Copy returns a copy that shares nothing with c.
func (c *Consumers) Copy() Consumers {
	other := Consumers{Instance: c.Instance}
	other.add(*c)
	return other
}

// add adds what another timerd knows.
func (c *Consumers) add(other Consumers) {
	for name, all := range other.Samples {
		if c.Samples == nil {
			c.Samples = map[string][]ConsumerSample{}
		}
		both := slices.Concat(c.Samples[name], all)
		slices.SortFunc(both, func(a, b ConsumerSample) int { return int(a.Minute - b.Minute) })
		c.Samples[name] = slices.CompactFunc(both, func(a, b ConsumerSample) bool { return a.Minute == b.Minute })
	}
	c.Failed, c.Unnamed = added(c.Failed, other.Failed), added(c.Unnamed, other.Unnamed)
}

func added(to, counts map[string]PerMinute) map[string]PerMinute {
	if to == nil {
		to = map[string]PerMinute{}
	}
	for name, one := range counts {
		if to[name] == nil {
			to[name] = PerMinute{}
		}
		for minute, n := range one {
			to[name][minute] += n
		}
	}
	return to
}

// consumersSubject returns where the timerd of an instance id says what it knows of consumers.
func consumersSubject(n keys.Names, instance string) string {
	return stateSubject(n, "consumers", instance)
}

// SayConsumers stores what a timerd knows of consumers, in place of what it said before.
func SayConsumers(ctx context.Context, js jetstream.JetStream, s Config, c Consumers) error {
	text, err := json.Marshal(c)
	if err == nil {
		_, err = js.Publish(ctx, consumersSubject(s.Names, c.Instance), text, jetstream.WithRetryAttempts(0))
	}
	return err
}

// ReadConsumers returns what all timerds know of consumers together. It is nil if none has said anything.
func ReadConsumers(ctx context.Context, js jetstream.JetStream, s Config) (all *Consumers, err error) {
	said, err := readSaid[Consumers](ctx, js, s, "consumers", ConsumersAge)
	for _, one := range said {
		if all == nil {
			all = &Consumers{}
		}
		all.add(one)
	}
	return all, err
}

// PurgeConsumers removes what timerds said of consumers that have said nothing for as long as it matters.
func PurgeConsumers(ctx context.Context, js jetstream.JetStream, s Config) error {
	return purgeSaid(ctx, js, s, "consumers", ConsumersAge)
}
