package schedule

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"sort"
	"time"
)

// Counts are a timerd's counts since its start, as in its heartbeats.
type Counts struct {
	// Lateness is how late the events were, for each counted namespace and for keys.Other. Namespaces without events
	// may be missing.
	Lateness map[string]Lateness `json:"n,omitempty"`
	Gaps     int64               `json:"g,omitempty"` // times in which keyspace events may have been missed
	// Deaf has the channels of keyspace events that it may not subscribe to, as ACL SETUSER grants them. User is its
	// Redis user.
	Deaf []string `json:"d,omitempty"`
	User string   `json:"u,omitempty"`
	// Wrong has its own failing checks.
	Wrong []Wrong `json:"w,omitempty"`
	// Drains says that it has seen overdue timers become fewer within a lease.
	Drains bool `json:"o,omitempty"`
	// Stops are its stops and silences within the last ten minutes, and Steps the steps of clocks that it has seen.
	Stops []Stop `json:"s,omitempty"`
	Steps []Step `json:"k,omitempty"`
}

// Stop is a time in which a timerd stood still, or did not reach Redis while others did.
type Stop struct {
	At     Millis `json:"a"` // its end, by the clock of the timerd's host
	For    int64  `json:"f"` // in ms
	Frozen bool   `json:"z,omitempty"`
}

// Step is a step of the clock of a server of Redis.
type Step struct {
	Server string `json:"r,omitempty"` // "" where there is one
	At     Millis `json:"a"`           // by that clock, after the step
	By     int64  `json:"b"`           // in ms, negative: back
}

// Wrong is a check of a timerd's own readiness that fails.
type Wrong struct {
	Check string `json:"c"`
	Text  string `json:"t"` // the reason
}

// Clone returns a copy that shares nothing with c.
func (c *Counts) Clone() *Counts {
	copied := *c
	copied.Lateness = maps.Clone(c.Lateness)
	return &copied
}

// latenessBuckets is the number of buckets of a Lateness. The first ends at 0.1 ms, each next one at 1.5 times that,
// the last but one at 8 minutes; the last has the rest.
const latenessBuckets = 40

// Lateness is a histogram of how late events were, with the same buckets in all timerds. In JSON it is the number of
// the first bucket that is not empty, then the counts from that bucket to the last one that is not empty.
type Lateness [latenessBuckets]int64

// latenessEnd returns the upper end of a bucket, in ms.
func latenessEnd(bucket int) float64 { return 0.1 * math.Pow(1.5, float64(bucket)) }

// Add counts an event.
func (l *Lateness) Add(late time.Duration) {
	ms := float64(late) / float64(time.Millisecond)
	l[sort.Search(latenessBuckets-1, func(i int) bool { return ms <= latenessEnd(i) })]++
}

// Merge adds the events of other, times a sign.
func (l *Lateness) Merge(other Lateness, sign int64) {
	for i := range l {
		l[i] += sign * other[i]
	}
}

// Count returns the number of events.
func (l *Lateness) Count() int64 {
	all := int64(0)
	for _, n := range l {
		all += n
	}
	return all
}

// Quantile returns a lateness that a share q of the events does not exceed, to within its bucket; 0 without events.
func (l *Lateness) Quantile(q float64) time.Duration {
	rest := q * float64(l.Count())
	for i, n := range l {
		if n == 0 || float64(n) < rest {
			rest -= float64(n)
			continue
		}
		begin, end := 0.0, latenessEnd(min(i, latenessBuckets-2))
		if i > 0 {
			begin = latenessEnd(i - 1)
		}
		return time.Duration((begin + max(end-begin, 0)*rest/float64(n)) * float64(time.Millisecond))
	}
	return 0
}

// MarshalJSON implements [json.Marshaler].
func (l Lateness) MarshalJSON() ([]byte, error) {
	first, last := 0, latenessBuckets
	for first < latenessBuckets && l[first] == 0 {
		first++
	}
	for last > first && l[last-1] == 0 {
		last--
	}
	return json.Marshal(append([]int64{int64(first)}, l[first:last]...))
}

// UnmarshalJSON implements [json.Unmarshaler].
func (l *Lateness) UnmarshalJSON(text []byte) error {
	var said []int64
	if err := json.Unmarshal(text, &said); err != nil {
		return err
	}
	if len(said) == 0 || said[0] < 0 || said[0]+int64(len(said)-1) > latenessBuckets {
		return errors.New("not a histogram of lateness")
	}
	*l = Lateness{}
	copy(l[said[0]:], said[1:])
	return nil
}
