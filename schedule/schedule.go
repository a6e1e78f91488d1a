// Package schedule is timerd's durable index of timers in Redis and every atomic step on it. The steps themselves are
// in lua/; this package loads and calls them.
//
// A timer is pending, then owed or claimed, then settled. Each step is one script or transaction, so a process that
// dies before, in or after one leaves the timer in a state that any other timerd goes on from. All times are those of
// the Redis server's clock.
package schedule

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/keys"
)

// DefaultMaxPayload is the payload limit in bytes where none is configured.
const DefaultMaxPayload = 256 << 10

// Bounds of one script call, so that none holds Redis for much longer than a
// millisecond: at 5 to 8 µs a timer, and 2 or 3 ms for payloads of the largest size.
const (
	MaxHints = 128 // hints that one observe call takes in
	MaxClaim = 128 // firings that one claim call returns
	// maxPartitions is in how many partitions of a cluster one call claims or takes in hints: each takes 15 to 30 µs.
	maxPartitions = 32
	MaxClaimBytes = 3 << 18 // payload bytes that one claim call returns, about
)

// ErrRedisTooOld says that the server lacks what the schedule stands on.
var ErrRedisTooOld = errors.New("timerd needs Redis 7.0 or later, or Valkey")

// Schedule calls the steps on the index. Its methods may be called concurrently.
type Schedule struct {
	// OnSkipped is called with how many occurrences of a timer that repeats were missed and never fire, when the firing of one
	// is settled or the first one found. It may be called concurrently. Set it before use; by default it does nothing.
	OnSkipped func(f *Firing, n int64)
	// OnArmed is called with when a timer is due, when this Schedule has armed the next occurrence of one that repeats, AtOnce if a
	// timerd is to find that out, or has moved one. Set it as OnSkipped.
	OnArmed func(key keys.Key, due Millis)

	*Index
	specs   cron.Specs
	holding atomic.Int64 // the generation of the list of holds, as it was read last; 0 if nothing is held

	asking sync.Mutex // of Nodes
	mu     sync.Mutex
	nodes  map[*redis.Client]*Node // as returned last
}

// New returns the schedule in the Redis that rdb talks to: a *redis.Client, or for a Redis Cluster a *redis.ClusterClient that
// does not retry by itself. In a cluster each timer's part of the schedule is in the timer's own slot. Payloads of more than
// maxPayload bytes are not kept: their timers fire without data. That limit holds until EnsureLibrary finds another.
func New(rdb redis.UniversalClient, maxPayload int) *Schedule {
	return &Schedule{Index: newIndex(rdb, maxPayload), OnSkipped: func(*Firing, int64) {}, OnArmed: func(keys.Key, Millis) {}}
}

// Node is the part of the schedule on one Redis server: the only partition of a single Redis, or in a cluster those of a
// master's slots. It knows the server's clock and since when every keyspace event of its partitions was heard. Its methods
// may be called concurrently.
type Node struct {
	schedule *Schedule
	server   *redis.Client
	name     string
	clock    clock
	evidence evidence
	detour   detour
	cutOff   atomic.Bool // a claim has had no answer since the list of holds was read

	round      round                  // of Sweep; its own
	replanFrom map[keys.Partition]int // how many Replan passes over; its own

	mu         sync.Mutex
	partitions []keys.Partition
	since      map[keys.Partition]Millis // for each of them, when it came to the server at the latest; NoEvents if unknown
	looked     map[keys.Partition]string // see lookedUpTo
	undated    bool                      // some of since are NoEvents
	came       int                       // partitions that came since TakeNew was called last
	heardSince Millis
	named      time.Time // when the database was named last
	limit      int       // payload limit of the function library when it was looked at last, in bytes; 0 before
	unloaded   bool      // Load could not ask this server
}
