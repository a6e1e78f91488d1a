package schedule

import (
	"math"
	"time"
)

// Millis is a time on the Redis server's clock in unix milliseconds, the unit of the index.
type Millis int64

// Times with a special meaning. AtOnce is before every other time and Never after. Nothing has no place in this order:
// check for it first.
const (
	AtOnce   Millis = 0             // it is due already
	Nothing  Millis = -1            // there is nothing to do
	Never    Millis = math.MaxInt64 // no such time is known
	NoEvents        = Never         // as the time since which events are heard: they are not
)

// Latest is the last millisecond of the year 9999. A key that runs out later counts as due then, because JSON and Go
// cannot write a later time.
const Latest Millis = 253402300799999

// MillisOf returns the millisecond that t is in.
func MillisOf(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time returns m as a time.Time in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Add returns m moved by d, which is cut to milliseconds.
func (m Millis) Add(d time.Duration) Millis { return m + Millis(d.Milliseconds()) }
