package schedule

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

const (
	// maxMembers is how many timerds are read at most.
	maxMembers = 1000
	// usualSilence is after what silence a timerd is dead that does not say: four sweeps at the default interval.
	usualSilence = 4 * time.Second
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
	// Holds says that it knows holds: what earlier versions do not say.
	Holds bool `json:"holds,omitempty"`
	// Options says that it knows the options of timers (lua/index.lua): what earlier versions do not say.
	Options bool `json:"options,omitempty"`
	// Repeats says that it knows timers that repeat: what earlier versions do not say.
	Repeats bool `json:"repeats,omitempty"`
	// Settings are those that all timerds of a schedule are to have in common, by the name of the variable.
	Settings map[string]string `json:"settings,omitempty"`
	// Counts is what it has counted since its start. A heartbeat without leaves the last ones; earlier versions say none.
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

// Member is a timerd that serves the schedule, or has died lately. An earlier version says nothing of itself but its
// instance id.
type Member struct {
	Self
	Seen  time.Time // its last heartbeat, by Redis's clock
	Alive bool
	Rank  int // its place among the living, from 0 on
}

// Heartbeat notes that a timerd is alive, with what it says of itself, and returns its rank among those whose last heartbeat
// is not older than ttl, and how many they are. The order is by instance id, the same for all.
func (n *Node) Heartbeat(ctx context.Context, self Self, ttl time.Duration) (rank, of int, err error) {
	self.Silence, self.Options, self.Holds, self.Repeats = ttl.Milliseconds(), true, true, true
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
	alive, err := n.schedule.scripts.Load().heartbeat.Run(ctx, n.schedule.rdb, names, self.Instance, ttl.Milliseconds(), said, counts).StringSlice()
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

// Members returns the timerds that serve the schedule, in the order of their instance ids. Those that have died are among
// them, not alive, until a living one forgets them.
func (s *Schedule) Members(ctx context.Context) ([]Member, error) {
	server, err := s.topology.server(ctx, keys.Single) // its clock is that of the heartbeats
	if err != nil {
		return nil, fmt.Errorf("schedule: ask for the timerds: %w", err)
	}
	var now *redis.TimeCmd
	var beats *redis.ZSliceCmd
	var said, counted *redis.MapStringStringCmd
	_, err = server.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		now = pipe.Time(ctx)
		beats = pipe.ZRangeWithScores(ctx, keys.Single.Members(), -maxMembers, -1)
		said, counted = pipe.HGetAll(ctx, keys.Single.About()), pipe.HGetAll(ctx, keys.Single.Counts())
		return nil
	})
	if err != nil {
		if _, moved := redis.IsMovedError(err); moved {
			s.topology.reload(ctx)
		}
		return nil, fmt.Errorf("schedule: ask for the timerds: %w", err)
	}
	members := make([]Member, len(beats.Val()))
	for i, beat := range beats.Val() {
		m := &members[i]
		m.Instance, _ = beat.Member.(string)
		_ = json.Unmarshal([]byte(said.Val()[m.Instance]), &m.Self) // what makes no sense counts as nothing
		if counts := new(Counts); json.Unmarshal([]byte(counted.Val()[m.Instance]), counts) == nil {
			m.Counts = counts
		}
		m.Seen = Millis(beat.Score).Time()
		silence := cmp.Or(time.Duration(m.Silence)*time.Millisecond, usualSilence)
		m.Alive = now.Val().Sub(m.Seen) < silence
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Instance, b.Instance) })
	rank := 0
	for i := range members {
		if members[i].Alive {
			members[i].Rank = rank
			rank++
		}
	}
	return members, nil
}
