package streams

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

// ConsumersAge is the age up to which samples of consumers and counts of failed attempts are kept.
const ConsumersAge = time.Hour

const (
	// closeSamples is the age up to which samples are one minute apart; older ones are sparseMinutes apart.
	closeSamples  = 10 * time.Minute
	sparseMinutes = 10
	// maxCounted limits the names with counts of a timerd.
	maxCounted = 500
	// maxErrorBytes limits the text of a consumer's last error.
	maxErrorBytes = 200
)

// Consumers has the recent history of the consumers of fired events, as known to one timerd. All times are by the clock
// of NATS, in minutes since 1970. It is not safe for concurrent use.
type Consumers struct {
	Instance string `json:"instance"`
	// Samples has the states of each durable consumer, oldest first, by its name.
	Samples map[string][]ConsumerSample `json:"samples,omitempty"`
	// Failed counts the failed attempts that this timerd settled, by durable consumer. Unnamed counts the ones of
	// clients that name no consumer, by namespace.
	Failed  map[string]PerMinute `json:"failed,omitempty"`
	Unnamed map[string]PerMinute `json:"unnamed,omitempty"`
	// Errors has the last failed attempt of each that Failed counts.
	Errors map[string]LastFailure `json:"errors,omitempty"`
}

// Failure is a failed attempt.
type Failure struct {
	Key      keys.Key
	Consumer string // its durable consumer; "" if unknown
	At       time.Time
	Error    string // as the consumer gave it; may be empty
}

// LastFailure is the last failed attempt of a consumer.
type LastFailure struct {
	At    time.Time `json:"at"`
	Key   string    `json:"key"` // as events show it
	Error string    `json:"error"`
}

// ConsumerSample is the state of a consumer at a moment.
type ConsumerSample struct {
	Minute  int64  `json:"minute"`
	Waiting uint64 `json:"waiting"` // events not delivered to it yet
	Settled uint64 `json:"settled"` // ended deliveries since its creation
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

// CountFailed counts a failed attempt.
func (c *Consumers) CountFailed(f Failure) {
	all, name := &c.Failed, f.Consumer
	if name == "" {
		all, name = &c.Unnamed, keys.Namespace{App: f.Key.App, Module: f.Key.Module, Type: f.Key.Type}.String()
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
	one[Minute(f.At)]++
	if f.Consumer != "" && len(f.Key.String()) <= maxErrorBytes {
		text := f.Error
		if len(text) > maxErrorBytes {
			text = strings.ToValidUTF8(text[:maxErrorBytes], "") + "…"
		}
		c.setError(name, LastFailure{f.At, keys.EncodeText(f.Key.String()), text})
	}
}

// setError sets a consumer's last failed attempt, unless a later one is known.
func (c *Consumers) setError(name string, f LastFailure) {
	if c.Errors == nil {
		c.Errors = map[string]LastFailure{}
	}
	if !c.Errors[name].At.After(f.At) {
		c.Errors[name] = f
	}
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

// Forget drops samples and counts that are too old at a time.
func (c *Consumers) Forget(now time.Time) {
	oldest, sparse := Minute(now.Add(-ConsumersAge)), Minute(now.Add(-closeSamples))
	for name, all := range c.Samples {
		c.Samples[name] = slices.DeleteFunc(all, func(s ConsumerSample) bool {
			return s.Minute < oldest || s.Minute < sparse && s.Minute%sparseMinutes != 0
		})
	}
	maps.DeleteFunc(c.Samples, func(_ string, all []ConsumerSample) bool { return len(all) == 0 })
	maps.DeleteFunc(c.Errors, func(_ string, f LastFailure) bool { return Minute(f.At) < oldest })
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

// add adds the history of another timerd.
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
	for name, f := range other.Errors {
		c.setError(name, f)
	}
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

// consumersSubject returns the subject for the history stored by the timerd with an instance id.
func consumersSubject(n keys.Names, instance string) string {
	return stateSubject(n, "consumers", instance)
}

// StoreConsumers stores a timerd's history of consumers, in place of its earlier one.
func StoreConsumers(ctx context.Context, js jetstream.JetStream, s Config, c Consumers) error {
	text, err := json.Marshal(c)
	if err == nil {
		_, err = js.Publish(ctx, consumersSubject(s.Names, c.Instance), text, jetstream.WithRetryAttempts(0))
	}
	return err
}

// ReadConsumers returns the histories of all timerds as one; nil if there are none.
func ReadConsumers(ctx context.Context, js jetstream.JetStream, s Config) (all *Consumers, err error) {
	said, err := readReports[Consumers](ctx, js, s, "consumers", ConsumersAge)
	for _, one := range said {
		if all == nil {
			all = &Consumers{}
		}
		all.add(one)
	}
	return all, err
}

// PurgeConsumers removes the histories that timerds have not renewed for ConsumersAge.
func PurgeConsumers(ctx context.Context, js jetstream.JetStream, s Config) error {
	return purgeReports(ctx, js, s, "consumers", ConsumersAge)
}
