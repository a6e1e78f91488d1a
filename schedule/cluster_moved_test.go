package schedule_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// move is a slot with timers that moves from one master to another.
type move struct {
	*clusterIndex
	p        keys.Partition
	from, to *testenv.RedisServer
	keys     []string
}

// newMove returns a move of a slot with n plain timers, before it begins.
func newMove(t *testing.T, n int) *move {
	t.Helper()
	x := newClusterIndex(t)
	m := &move{clusterIndex: x, p: x.Partition("a:{moving}:c:")}
	m.from, m.to = x.cluster.Master(m.p.Slot()), x.cluster.Nodes[0]
	if m.to == m.from {
		m.to = x.cluster.Nodes[1]
	}
	var hints []schedule.Hint
	for i := range n {
		key := fmt.Sprintf("a:{moving}:c:%d", i)
		m.keys, hints = append(m.keys, key), append(hints, touched(key))
		if err := x.rdb.Set(t.Context(), key, "p", time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if seen, err := nodeOf(t, x.Schedule, m.p).Observe(t.Context(), hints, time.Now()); err != nil ||
		seen.Adopted != n {
		t.Fatalf("adopted %d: %v", seen.Adopted, err)
	}
	return m
}

// node returns the node of one of the two masters.
func (m *move) node(of *testenv.RedisServer) *schedule.Node {
	m.t.Helper()
	for _, n := range nodes(m.t, m.Schedule) {
		if n.Name() == of.Addr() {
			return n
		}
	}
	m.t.Fatalf("no node is %s", of.Addr())
	return nil
}

// arrive moves the slot. The timers are due from some ms before to some ms after its end, by the schedule; their keys
// run out by a drift later, as MIGRATE sends the rest of a TTL. It returns the last time at which a key runs out.
func (m *move) arrive(before, after, drift time.Duration) schedule.Millis {
	m.t.Helper()
	slot, ctx := m.p.Slot(), m.t.Context()
	m.cluster.OpenSlot(slot, m.from, m.to)
	for m.cluster.MoveKeys(slot, 100, m.from, m.to) > 0 {
	}
	rdb := m.to.Client()
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		m.t.Fatal(err)
	}
	first := schedule.MillisOf(now).Add(-before)
	var last schedule.Millis
	_, err = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, key := range m.keys {
			due := first.Add(time.Duration(i) * (before + after) / time.Duration(len(m.keys)))
			last = due.Add(drift)
			pipe.Do(ctx, "ASKING")
			pipe.PExpireAt(ctx, key, last.Time())
			pipe.Do(ctx, "ASKING")
			pipe.ZAdd(ctx, m.p.Due(), redis.Z{Score: float64(due), Member: key})
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.cluster.CloseSlot(slot, m.from, m.to)
	return last
}

// Each timer fires once although its slot moves: the old master's node claims until it follows the topology, and the
// keys run out some ms later than the schedule says.
func TestClusterFiresOnceWhenASlotHasMoved(t *testing.T) {
	t.Parallel()
	const timers = 40
	m := newMove(t, timers)
	ctx := t.Context()
	old, other := m.node(m.from), m.node(m.to)
	rdb := m.to.Client()
	if err := rdb.ConfigSet(ctx, "notify-keyspace-events", "Ex").Err(); err != nil {
		t.Fatal(err)
	}
	sub := rdb.Subscribe(ctx, keys.ExpiredChannel(0))
	defer sub.Close()
	if _, err := sub.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	events := sub.Channel()
	last := m.arrive(30*time.Millisecond, 70*time.Millisecond, 8*time.Millisecond)

	// step claims as the old master's timerd does, and takes in the events that the new master's has heard.
	fired := map[string]int{}
	const end = "end:{moving}" // no timer
	var hints []schedule.Hint
	ended := false
	step := func() error {
		firings, err := claimFrom(ctx, old, m.p, time.Hour)
		for _, f := range firings {
			fired[f.Key.String()]++
		}
		for range len(events) {
			if key := (<-events).Payload; key == end {
				ended = true
			} else {
				hints = append(hints, expired(key))
			}
		}
		_, refused := other.Observe(ctx, hints, time.Now())
		if refused == nil {
			hints = nil
		}
		return errors.Join(err, refused)
	}
	testenv.Eventually(t, time.Minute, func() error {
		if err := step(); err != nil {
			return err
		}
		if len(fired) < timers || other.Until(last) > 0 {
			return fmt.Errorf("%d of %d fired", len(fired), timers)
		}
		return nil
	}, "all to fire")
	// The events of the moved keys come before the event of a key set now.
	if err := rdb.Set(ctx, end, "", time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() error {
		err := errors.Join(rdb.Exists(ctx, end).Err(), step())
		if !ended {
			err = errors.Join(err, fmt.Errorf("no event of %s", end))
		}
		return err
	}, "all events to be heard")
	if err := step(); err != nil {
		t.Error(err)
	}
	for key, n := range fired {
		if n != 1 {
			t.Errorf("%s fired %d times", key, n)
		}
	}
	if pending, firing := m.counts(m.p); pending > 0 || firing != timers {
		t.Errorf("%d pending or contested, %d firing; want none and %d", pending, firing, timers)
	}
}
