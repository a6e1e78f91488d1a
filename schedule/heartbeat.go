package schedule

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Self is a timerd's description of itself in its heartbeats. Except for Counts it does not change while the timerd
// runs.
type Self struct {
	Instance string    `json:"-"` // the id that no other process has
	Version  string    `json:"version,omitempty"`
	Host     string    `json:"host,omitempty"`
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"` // start, by the clock of its host
	// Silence is the time in ms without a heartbeat after which it counts as dead.
	Silence int64 `json:"silence,omitempty"`
	// Settings are the settings that all timerds of a schedule must share, by the name of the variable.
	Settings map[string]string `json:"settings,omitempty"`
	// Counts are its counts since its start. A heartbeat without them keeps the previous ones.
	Counts *Counts `json:"-"`
	// Listens is the group of the timerds that listen to the same, without spaces; see [ListensTo].
	Listens string `json:"-"`
	// CannotPublish says that it cannot publish events now.
	CannotPublish bool `json:"-"`
	// Steady says that all its heartbeats were answered for the time after which another timerd counts as dead. Only
	// a steady timerd finds others silent.
	Steady bool `json:"-"`
}

// ListensTo returns a short hash of a timerd's namespaces, in any order, and its database.
func ListensTo(namespaces keys.Namespaces, db int) string {
	names := make([]string, len(namespaces))
	for i, n := range namespaces {
		names[i] = n.String()
	}
	slices.Sort(names)
	return fmt.Sprintf("%.4x", sha256.Sum256([]byte(fmt.Sprintf("%d %q", db, slices.Compact(names)))))
}

// Standing is the living timerds, in the same order for all.
type Standing struct {
	Alive []string // ids, sorted; timerds unable to publish come last
	Able  int      // number of Alive able to publish; all of them if none is
	// Missed says that others had found this timerd silent before this heartbeat.
	Missed bool
}

// Hearing is the listeners of a server.
type Hearing struct {
	IDs []string // of the timerds that listen to the same, and have lately shown that events reach them
	// Subscribed is the number of subscribers to the server, of whatever namespaces; -1 if unknown.
	Subscribed int
}

// Fingerprint returns a short hash of the settings, or an empty text if there are none.
func (s Self) Fingerprint() string {
	if len(s.Settings) == 0 {
		return ""
	}
	text, _ := json.Marshal(s.Settings) // in the order of the names; texts can be marshalled
	return fmt.Sprintf("%.4x", sha256.Sum256(text))
}

// Heartbeat records that a timerd is alive, with its description, and returns it among the timerds whose last heartbeat
// is not older than ttl. A heartbeat later than now, by a clock that was ahead, counts for nothing. The silent are kept
// for a day, or until they are heard of again.
func (n *Node) Heartbeat(ctx context.Context, self Self, ttl time.Duration) (Standing, error) {
	self.Silence = ttl.Milliseconds()
	said, err := json.Marshal(struct {
		Self
		aboutSteps
	}{self, aboutSteps{n.schedule.scripts.Load().steps().name, true}})
	if err != nil {
		return Standing{}, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	var counts []byte
	if self.Counts != nil {
		if counts, err = json.Marshal(self.Counts); err != nil {
			return Standing{}, fmt.Errorf("schedule: heartbeat: %w", err)
		}
	}
	names := []string{keys.Single.Members(), keys.Single.About(), keys.Single.Counts(), keys.Single.Unable(),
		keys.Single.Silent()}
	args := []any{self.Instance, ttl.Milliseconds(), said, counts, self.CannotPublish, AheadBy.Milliseconds(),
		self.Steady, n.schedule.forgiven.Load()}
	reply, err := ReadReply(n.schedule.step("heartbeat").Run(ctx, n.schedule.rdb, names, args...), 3, 0)
	if err != nil {
		return Standing{}, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	able, unable := reply.List(0).texts(), reply.List(1).texts()
	if len(able) == 0 {
		able, unable = unable, nil
	}
	return Standing{Alive: slices.Concat(able, unable), Able: len(able), Missed: reply.Int(2) == 1}, nil
}

// LastHeartbeat returns the time of the last heartbeat of any timerd, by the server's clock, and its age: the zero
// Time if there was none.
func (ix *Index) LastHeartbeat(ctx context.Context) (at time.Time, ago time.Duration, err error) {
	var last [2]*redis.ZSliceCmd
	var now *redis.TimeCmd
	err = ix.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		for i, set := range []string{keys.Single.Members(), keys.Single.Silent()} {
			last[i] = pipe.ZRevRangeWithScores(ctx, set, 0, 0)
		}
		now = pipe.Time(ctx)
		return nil
	})
	if err != nil {
		return time.Time{}, 0, fmt.Errorf("schedule: read the last heartbeat: %w", err)
	}
	for _, one := range last {
		for _, z := range one.Val() {
			if beat := Millis(z.Score).Time(); beat.After(at) {
				at = beat
			}
		}
	}
	if at.IsZero() {
		return at, 0, nil
	}
	return at, now.Val().Sub(at), nil
}

// Hearing records on the node's server whether a timerd hears all its events now, and returns the timerds of its group
// that do. A record is believed for a time, by that server's clock.
func (n *Node) Hearing(ctx context.Context, self Self, hears bool, believed time.Duration) (Hearing, error) {
	at := n.claimsPartition()
	names := []string{at.Hearing()}
	args := []any{
		self.Instance, self.Listens, hears, believed.Milliseconds(), AheadBy.Milliseconds(), n.ClaimedChannel(),
		n.homes(n.server),
	}
	reply, err := ReadReply(n.schedule.step("hearing").Run(ctx, n.server, names, args...), 4, 0)
	if err != nil {
		return Hearing{}, fmt.Errorf("schedule: ask for the listeners: %w", err)
	}
	if reply.Int(2) == 0 { // the heartbeat was not noted: it would hide how old the data are
		err = n.compareData(ctx)
	} else if n.schedule.cluster {
		n.mu.Lock()
		n.home = home{at, reply.Text(3)}
		n.mu.Unlock()
	}
	if err != nil {
		return Hearing{}, fmt.Errorf("schedule: ask for the listeners: %w", err)
	}
	return Hearing{IDs: reply.List(1).texts(), Subscribed: int(reply.Int(0))}, nil
}

// Deregister removes a stopping timerd from the ranks and from the listeners of the node, so that the others need not
// wait until its heartbeats count as missing. Its description of itself may stay until another timerd starts or dies.
func (n *Node) Deregister(ctx context.Context, self Self) error {
	_, err := n.schedule.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZRem(ctx, keys.Single.Members(), self.Instance)
		pipe.ZRem(ctx, keys.Single.Unable(), self.Instance)
		pipe.HDel(ctx, keys.Single.About(), self.Instance)
		pipe.HDel(ctx, keys.Single.Counts(), self.Instance)
		return nil
	})
	err = errors.Join(err, n.server.ZRem(ctx, n.claimsPartition().Hearing(), self.Listens+" "+self.Instance).Err())
	if err != nil {
		return fmt.Errorf("schedule: deregister: %w", err)
	}
	return nil
}
