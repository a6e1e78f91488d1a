package query

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// maxMembers limits the timerds that are read.
	maxMembers = 1000
	// usualSilence is the silence after which a timerd is dead, for timerds that report no value of their own: four
	// sweeps at the default interval.
	usualSilence = 4 * time.Second
)

// Member is a timerd that serves the schedule, or died lately. If its description is lost, only the instance id is
// known.
type Member struct {
	schedule.Self
	Seen  time.Time // its last heartbeat, by Redis's clock
	Alive bool
	// Silent means that other timerds found it silent: it did not end in order. Then only Instance and Seen are set.
	Silent bool
	Rank   int // its place among the living, from 0: timerds unable to publish come last
}

// Members returns the timerds that serve the schedule, in the order of their instance ids. It includes dead ones, with
// Alive unset, for a day.
func Members(ctx context.Context, s *schedule.Schedule) ([]Member, error) {
	var now *redis.TimeCmd
	var beats, silent *redis.ZSliceCmd
	var unable *redis.StringSliceCmd
	var said, counted *redis.MapStringStringCmd
	err := s.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		now = pipe.Time(ctx)
		beats = pipe.ZRangeWithScores(ctx, keys.Single.Members(), -maxMembers, -1)
		silent = pipe.ZRangeWithScores(ctx, keys.Single.Silent(), -maxMembers, -1)
		unable = pipe.ZRange(ctx, keys.Single.Unable(), -maxMembers, -1)
		said, counted = pipe.HGetAll(ctx, keys.Single.About()), pipe.HGetAll(ctx, keys.Single.Counts())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: ask for the timerds: %w", err)
	}
	members := make([]Member, 0, len(beats.Val())+len(silent.Val()))
	for _, beat := range beats.Val() {
		var m Member
		m.Instance, _ = beat.Member.(string)
		_ = json.Unmarshal([]byte(said.Val()[m.Instance]), &m.Self) // an unreadable text counts as empty
		if counts := new(schedule.Counts); json.Unmarshal([]byte(counted.Val()[m.Instance]), counts) == nil {
			m.Counts = counts
		}
		m.Seen = schedule.Millis(beat.Score).Time()
		m.Alive = isAlive(now.Val(), m.Seen, m.Self)
		m.CannotPublish = slices.Contains(unable.Val(), m.Instance)
		members = append(members, m)
	}
	for _, beat := range silent.Val() {
		m := Member{Seen: schedule.Millis(beat.Score).Time(), Silent: true}
		m.Instance, _ = beat.Member.(string)
		members = append(members, m)
	}
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Instance, b.Instance) })
	rank := 0
	for _, last := range []bool{false, true} {
		for i := range members {
			if m := &members[i]; m.Alive && m.CannotPublish == last {
				m.Rank = rank
				rank++
			}
		}
	}
	return members, nil
}

// isAlive reports whether a timerd with this last heartbeat is alive, by Redis's clock.
func isAlive(now, seen time.Time, self schedule.Self) bool {
	silence := cmp.Or(time.Duration(self.Silence)*time.Millisecond, usualSilence)
	ago := now.Sub(seen)
	return ago < silence && ago >= -schedule.AheadBy // a later time comes from a clock that was ahead
}
