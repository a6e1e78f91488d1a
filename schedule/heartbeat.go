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

// Self is what a timerd says of itself with its heartbeats. But for Counts it does not change while the timerd runs.
type Self struct {
	Instance string    `json:"-"` // the id that no other process has
	Version  string    `json:"version,omitempty"`
	Host     string    `json:"host,omitempty"`
	PID      int       `json:"pid,omitempty"`
	Since    time.Time `json:"since,omitzero"` // when it was started, by the clock of its host
	// Silence is after how many ms without a heartbeat it is dead.
	Silence int64 `json:"silence,omitempty"`
	// Settings are those that all timerds of a schedule are to have in common, by the name of the variable.
	Settings map[string]string `json:"settings,omitempty"`
	// Counts is what it has counted since its start. A heartbeat without leaves the last ones.
	Counts *Counts `json:"-"`
}

// Fingerprint returns a short hash of the settings, the same for the same ones, or an empty text if there are none.
func (s Self) Fingerprint() string {
	if len(s.Settings) == 0 {
		return ""
	}
	text, _ := json.Marshal(s.Settings) // in the order of the names; texts can be marshalled
	return fmt.Sprintf("%.4x", sha256.Sum256(text))
}

// Heartbeat notes that a timerd is alive, with what it says of itself, and returns its rank among those whose last heartbeat
// is not older than ttl, and how many they are. The order is by instance id, the same for all.
func (n *Node) Heartbeat(ctx context.Context, self Self, ttl time.Duration) (rank, of int, err error) {
	self.Silence = ttl.Milliseconds()
	said, err := json.Marshal(self)
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	var counts []byte
	if self.Counts != nil {
		if counts, err = json.Marshal(self.Counts); err != nil {
			return 0, 0, fmt.Errorf("schedule: heartbeat: %w", err)
		}
	}
	names := []string{keys.Single.Members(), keys.Single.About(), keys.Single.Counts()}
	alive, err := n.schedule.step("heartbeat").Run(ctx, n.schedule.rdb, names, self.Instance, ttl.Milliseconds(), said, counts).StringSlice()
	if err != nil {
		return 0, 0, fmt.Errorf("schedule: heartbeat: %w", err)
	}
	return max(slices.Index(alive, self.Instance), 0), len(alive), nil
}

// Deregister takes a timerd that stops out of the ranks, so that the others need not wait for its silence to tell. What it
// said of itself may stay until another one starts or dies.
func (n *Node) Deregister(ctx context.Context, instance string) error {
	_, err := n.schedule.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ZRem(ctx, keys.Single.Members(), instance)
		pipe.HDel(ctx, keys.Single.About(), instance)
		pipe.HDel(ctx, keys.Single.Counts(), instance)
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule: deregister: %w", err)
	}
	return nil
}
