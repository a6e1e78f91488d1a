package schedule

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// Self is what a timerd says about itself with its heartbeats. Except for Counts it does not change while the timerd
// runs.
type Self struct {
	Instance string    `json:"-"` // the id that no other process has
	Version  string    `json:"version,omitempty"`
	Host     string    `json:"host,omitempty"`
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"` // when it was started, by the clock of its host
	// Silence is after how many ms without a heartbeat it counts as dead.
	Silence int64 `json:"silence,omitempty"`
	// Settings are those that all timerds of a schedule must have in common, by the name of the variable.
	Settings map[string]string `json:"settings,omitempty"`
	// Counts is what it has counted since its start. A heartbeat without it keeps the previous ones.
	Counts *Counts `json:"-"`
	// Hears says that it hears all keyspace events of the node by now.
	Hears bool `json:"-"`
}

// Standing is the place of a timerd among those alive, in the order of their ids, the same for all.
type Standing struct {
	Rank, Of int
	Hearing  []int // the ranks of those that hear the node
}

// Fingerprint returns a short hash of the settings, or an empty text if there are none.
func (s Self) Fingerprint() string {
	if len(s.Settings) == 0 {
		return ""
	}
	text, _ := json.Marshal(s.Settings) // in the order of the names; texts can be marshalled
	return fmt.Sprintf("%.4x", sha256.Sum256(text))
}

// Heartbeat records that a timerd is alive, with what it says about itself, and returns its place among those whose
// last heartbeat is not older than ttl.
func (n *Node) Heartbeat(ctx context.Context, self Self, ttl time.Duration) (Standing, error) {
	self.Silence = ttl.Milliseconds()
	said, err := json.Marshal(self)
	if err != nil {
		return Standing{}, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	var counts []byte
	if self.Counts != nil {
		if counts, err = json.Marshal(self.Counts); err != nil {
			return Standing{}, fmt.Errorf("schedule: heartbeat: %w", err)
		}
	}
	names := []string{keys.Single.Members(), keys.Single.About(), keys.Single.Counts(), keys.Single.Hearing()}
	args := []any{self.Instance, ttl.Milliseconds(), said, counts, n.name, self.Hears}
	reply, err := ReadReply(n.schedule.step("heartbeat").Run(ctx, n.schedule.rdb, names, args...), 2, 0)
	if err != nil {
		return Standing{}, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	alive, hearing := reply.List(0), reply.List(1)
	standing := Standing{Rank: max(slices.Index(alive, any(self.Instance)), 0), Of: len(alive)}
	for _, id := range hearing {
		standing.Hearing = append(standing.Hearing, slices.Index(alive, id))
	}
	return standing, nil
}

// Deregister removes a timerd that stops from the ranks, so that the others need not wait until its heartbeats count as
// missing. What it said about itself may stay until another timerd starts or dies.
func (n *Node) Deregister(ctx context.Context, instance string) error {
	_, err := n.schedule.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZRem(ctx, keys.Single.Members(), instance)
		pipe.HDel(ctx, keys.Single.About(), instance)
		pipe.HDel(ctx, keys.Single.Counts(), instance)
		pipe.ZRem(ctx, keys.Single.Hearing(), n.name+" "+instance)
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule: deregister: %w", err)
	}
	return nil
}
