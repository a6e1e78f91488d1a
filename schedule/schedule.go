// Package schedule is timerd's durable index of timers in Redis and every atomic step on it. The steps themselves are
// in lua/; this package loads and calls them.
//
// A timer is pending, then owed or claimed, then settled. Each step is one script or transaction, so a process that
// dies at any point leaves the timer in a state from which any other timerd can go on. All times are by the Redis
// server's clock.
package schedule

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/cron"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

// DefaultMaxPayload is the default payload limit in bytes.
const DefaultMaxPayload = 256 << 10

// Limits of one script call, so that none blocks Redis for much longer than a millisecond: a timer takes 5 to 8 µs, and
// payloads of the largest size 2 or 3 ms.
const (
	MaxHints = 128 // hints that one observe call takes in
	MaxClaim = 128 // firings that one claim call returns
	// maxPartitions limits the partitions of one call that claims or takes in hints: each takes 15 to 30 µs.
	maxPartitions = 32
	MaxClaimBytes = 3 << 18 // payload bytes that one claim call returns, about
)

// ErrRedisTooOld says that the server lacks features that the schedule needs.
var ErrRedisTooOld = errors.New("timerd needs Redis 7.0 or later, or Valkey")

// Schedule runs the steps on the index. Its methods may be called concurrently.
type Schedule struct {
	// Agenda learns of the due times that this Schedule sets by itself. Set it before use. Default: nobody does.
	Agenda Agenda

	*Index
	specs  cron.Specs
	guards string // see GuardBy
	// forgiven is the greatest age of a last heartbeat, in ms, that JetStream makes up for; see SetDuplicates
	forgiven atomic.Int64
	holding  atomic.Int64 // the generation of the list of holds, as it was read last; 0 if nothing is held

	keptWaits   keptWaits
	waitChanges atomic.Int64 // counts the waits that this process has begun or ended

	asking sync.Mutex // of Nodes
	mu     sync.Mutex
	nodes  map[*redis.Client]*Node // as returned last
}

// Agenda learns of the due times that a Schedule sets by itself. Its methods may be called concurrently.
type Agenda interface {
	// Armed gives the due time of the next occurrence of a repeating timer, or of a moved timer: AtOnce if a timerd has
	// yet to compute it.
	Armed(key keys.Key, due Millis)
	// Skipped counts missed occurrences that never fire, when one is settled or the first one is planned.
	Skipped(n int64)
}

type noAgenda struct{}

func (noAgenda) Armed(keys.Key, Millis) {}
func (noAgenda) Skipped(int64)          {}

// New returns the schedule in the Redis that rdb talks to: a *redis.Client, or for a Redis Cluster a
// *redis.ClusterClient that does not retry by itself. In a cluster each timer's index entry is in the slot of its key.
// Payloads of more than maxPayload bytes are not kept: their timers fire without data. That limit applies until
// EnsureLibrary finds another.
func New(rdb redis.UniversalClient, maxPayload int) *Schedule {
	return &Schedule{Index: newIndex(rdb, maxPayload), Agenda: noAgenda{}}
}

// GuardBy gives timers without guards of their own those of the first rule that matches: claims go by it. Call it
// before use. Default: no rules.
func (s *Schedule) GuardBy(rules policy.Rules[policy.GuardRule]) { s.guards = guardRules(rules) }

// Node is the part of the schedule on one Redis server: the only partition of a single Redis, or in a cluster the
// partitions of a master's slots. It knows the server's clock, and the time since which all keyspace events of its
// partitions are heard. Its methods may be called concurrently.
type Node struct {
	schedule *Schedule
	server   *redis.Client
	name     string
	clock    clock
	evidence evidence
	cutOff   atomic.Bool // a claim has had no answer since the list of holds was read

	round      round // of Sweep; its own
	busy       busyParts
	replanFrom map[keys.Partition]int // the number that Replan passes over; its own

	mu         sync.Mutex
	partitions []keys.Partition
	// the latest time at which each of them came to the server; NoEvents if unknown
	since      map[keys.Partition]Millis
	looked     map[keys.Partition]string // see lookedUpTo
	undated    bool                      // some of since are NoEvents
	came       int                       // partitions that came since TakeNew was called last
	heardSince Millis
	named      time.Time // when the database was named last
	limit      int       // payload limit of the function library when it was looked at last, in bytes; 0 before
	unloaded   bool      // Load could not ask this server, or that was out of memory
	// libraryCounts: the function library counts in the account.
	libraryCounts bool

	home         home                 // of the server in a cluster, when its data were found to be compared last
	stepsRefused time.Time            // when the server refused the library of steps last
	unusedSince  map[string]time.Time // the time since which libraries of steps have no user
}
