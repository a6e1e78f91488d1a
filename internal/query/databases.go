package query

import (
	"context"
	"encoding/json"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// databasesPage limits the databases that one look reads. A server may have ten thousand.
	databasesPage = 256
	// databasesPages limits the pages of a single answer.
	databasesPages = 8
	// databasesRefused is the pause before the next look by a user without the right: Redis keeps a record of refused
	// commands.
	databasesRefused = 10 * time.Minute
	// likelyAlive limits the timerds of another database that are read: the latest heartbeats first.
	likelyAlive = 10
)

// Database is another database of a single Redis.
type Database struct {
	Number int
	Timers int64  // unsettled ones, about
	Timerd string // the id of a living timerd that serves it; "" for none
}

// Databases watches the other databases of a single Redis, some at each call. The zero value is ready. Its methods may
// be called concurrently.
type Databases struct {
	mu      sync.Mutex
	left    []int            // still to read in this round
	seen    map[int]Database // the result of the last look at each
	refused time.Time
}

// Look reads the next databases with keys, 256 at most, and returns all databases seen so far, in no order. It returns
// nothing in a cluster, and for a user without the right to look.
func (d *Databases) Look(ctx context.Context, node *schedule.Node) []Database {
	d.mu.Lock()
	defer d.mu.Unlock()
	if node.Name() != "" || !d.refused.IsZero() && time.Since(d.refused) < databasesRefused {
		return nil
	}
	err := d.look(ctx, node)
	if redis.IsPermissionError(err) {
		d.refused = time.Now()
	}
	var all []Database
	for _, one := range d.seen {
		all = append(all, one)
	}
	return all
}

// OtherDatabases returns the other databases with keys of a single Redis, 2,048 at most, in no order. It leaves out
// unreadable databases.
func OtherDatabases(ctx context.Context, node *schedule.Node) (all []Database) {
	var d Databases
	for range databasesPages {
		if all = d.Look(ctx, node); len(d.left) == 0 {
			break
		}
	}
	return all
}

// look reads the next databases. The caller holds d.mu.
func (d *Databases) look(ctx context.Context, node *schedule.Node) error {
	own := *node.Server().Options()
	if len(d.left) == 0 {
		if err := d.list(ctx, node.Server(), own.DB); err != nil {
			return err
		}
	}
	page := d.left[:min(len(d.left), databasesPage)]
	if len(page) == 0 {
		return nil
	}
	own.PoolSize, own.MinIdleConns = 1, 0
	rdb := redis.NewClient(&own)
	defer func() { _ = rdb.Close() }() // nothing is pending on it
	conn := rdb.Conn()                 // one for all, because it changes its database
	defer func() { _ = conn.Close() }()
	found, err := askDatabases(ctx, conn, page)
	if err != nil {
		return err
	}
	for _, one := range found {
		d.seen[one.Number] = one
	}
	d.left = d.left[len(page):]
	return nil
}

// list begins a round. The caller holds d.mu.
func (d *Databases) list(ctx context.Context, rdb *redis.Client, own int) error {
	keyspace, err := rdb.Info(ctx, "keyspace").Result()
	if err != nil {
		return err
	}
	seen := map[int]Database{}
	for _, found := range regexp.MustCompile(`(?m)^db(\d+):`).FindAllStringSubmatch(keyspace, -1) {
		number, err := strconv.Atoi(found[1])
		if err != nil || number == own {
			continue
		}
		d.left = append(d.left, number)
		if one, ok := d.seen[number]; ok {
			seen[number] = one
		}
	}
	d.seen = seen
	return nil
}

// askDatabases reads the numbers of timers and the timerds of some databases.
func askDatabases(ctx context.Context, conn *redis.Conn, numbers []int) ([]Database, error) {
	type answer struct {
		chosen      *redis.StatusCmd
		due, firing *redis.IntCmd
		beats       *redis.ZSliceCmd
		about       *redis.SliceCmd
	}
	answers := make([]answer, len(numbers))
	var now *redis.TimeCmd
	_, err := conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		now = pipe.Time(ctx)
		for i, number := range numbers {
			a := &answers[i]
			a.chosen = pipe.Select(ctx, number)
			a.due, a.firing = pipe.ZCard(ctx, keys.Single.Due()), pipe.ZCard(ctx, keys.Single.Firing())
			a.beats = pipe.ZRangeWithScores(ctx, keys.Single.Members(), -likelyAlive, -1)
		}
		return nil
	})
	if redis.IsPermissionError(err) || now.Err() != nil {
		return nil, err
	}
	_, _ = conn.Pipelined(ctx, func(pipe redis.Pipeliner) error { // without an answer, usualSilence applies
		for i, number := range numbers {
			a := &answers[i]
			if len(a.beats.Val()) > 0 && a.chosen.Err() == nil {
				pipe.Select(ctx, number)
				a.about = pipe.HMGet(ctx, keys.Single.About(), instancesOf(a.beats.Val())...)
			}
		}
		return nil
	})
	var all []Database
	for i, number := range numbers {
		a := &answers[i]
		if a.chosen.Err() != nil || a.due.Err() != nil || a.firing.Err() != nil || a.beats.Err() != nil {
			continue // the answers may be of another database
		}
		one := Database{Number: number, Timers: a.due.Val() + a.firing.Val()}
		for j, beat := range a.beats.Val() {
			var self schedule.Self
			if a.about != nil && j < len(a.about.Val()) {
				said, _ := a.about.Val()[j].(string)
				_ = json.Unmarshal([]byte(said), &self) // an unreadable text counts as empty
			}
			if isAlive(now.Val(), schedule.Millis(beat.Score).Time(), self) {
				one.Timerd, _ = beat.Member.(string)
			}
		}
		all = append(all, one)
	}
	return all, nil
}

// instancesOf returns the ids of the timerds in a list of heartbeats.
func instancesOf(beats []redis.Z) []string {
	ids := make([]string, len(beats))
	for i, beat := range beats {
		ids[i], _ = beat.Member.(string)
	}
	return ids
}
