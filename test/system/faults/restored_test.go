package faults_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// restored is an installation whose Redis gets an older copy of its data, while timerd is at work.
type restored struct {
	*system.System
	timerd    *system.Daemon
	collector *testenv.Collector
	backup    string
	old       int64 // when the backup is so old that a double would not be forgiven, in unix ms
}

// The timers of the backup: the fired ones have fired since, the open ones were cancelled. One more is on hold, and has
// fired since; another one was put on hold since.
const restoredFired, restoredOpen = 40, 10

// newRestored returns an installation with a backup that it does not have yet.
func newRestored(t *testing.T, opts ...devserver.RedisOption) *restored {
	t.Helper()
	s := &restored{System: system.New(t, opts...)}
	p := s.Start()
	s.Says(0, "hold shop:kept")
	p.Stop()
	window := s.ShortestWindow()
	s.collector = s.Collect()
	for app, n := range map[string]int{"fired": restoredFired, "open": restoredOpen, "kept": 1, "late": 1} {
		for i := range n {
			s.Do("FCALL", "timer_set", 1, fmt.Sprintf("shop:%s:t:%d", app, i), i, "PX", 20)
		}
	}
	s.After(s.Now() + 20)
	s.old = s.LastSeen() + window.Milliseconds()/2 + 1000
	s.backup = s.BackUp()
	for i := range restoredOpen {
		if got := s.Do("FCALL", "timer_cancel", 1, fmt.Sprintf("shop:open:t:%d", i)); got != "cancelled" {
			t.Fatalf("cancel: %v", got)
		}
	}
	s.Says(0, "hold shop:late")
	s.timerd = s.Start()
	s.Says(0, "resume shop:kept")
	s.collector.WaitFunc(system.Patience, system.AtLeast(restoredFired+1))
	s.Holds("shop:late", 1)
	return s
}

// restore puts the backup back once it is old, and waits until timerd has found that.
func (s *restored) restore() {
	s.T.Helper()
	s.After(s.old)
	s.PutBack(s.backup)
	testenv.Eventually(s.T, system.Patience, func() error {
		return s.RDB.HGet(s.T.Context(), keys.Single.Data(), ":w:").Err()
	}, "timerd to find that Redis has older data")
}

// setNew sets a timer that does not wait.
func (s *restored) setNew() {
	s.T.Helper()
	s.Do("FCALL", "timer_set", 1, "shop:new:t:1", "p", "PX", 20)
}

// has checks how many timers have fired, each of another name.
func (s *restored) has(want map[string]int) {
	s.T.Helper()
	got, ids, total := map[string]int{}, map[string]bool{}, 0
	for _, n := range want {
		total += n
	}
	for _, e := range s.Events(s.collector, total) {
		got[e.Key.Module]++
		ids[e.ID] = true
	}
	if !maps.Equal(got, want) {
		s.T.Errorf("fired %v, want %v", got, want)
	}
}

// timerd finds out by itself that its Redis has older data, and fires nothing twice: timers that have fired since are
// ended, also on hold; cancelled ones fire, and so does one whose hold the backup has not.
func TestRestoredRedisIsCompared(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]devserver.RedisOption{
		"append-only files": nil,
		"a snapshot":        {devserver.Directive("appendonly", "no"), devserver.Directive("save", "3600 1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			isCompared(t, newRestored(t, opts...))
		})
	}
}

// isCompared restores the Redis, and looks what fires.
func isCompared(t *testing.T, s *restored) {
	t.Helper()
	s.restore()
	s.collector.WaitFunc(system.Patience, system.AtLeast(restoredFired+restoredOpen+2))
	s.setNew() // not before, when it could be compared, too
	s.Says(0, "resume shop:kept")
	s.Settled()
	s.has(map[string]int{"fired": restoredFired, "open": restoredOpen, "kept": 1, "late": 1, "new": 1})
	s.Balances()
	s.timerd.Stop()
	if log := s.timerd.Log.String(); !strings.Contains(log, fmt.Sprintf("ended=%d ", restoredFired+1)) {
		t.Errorf("%d timers that have fired were not ended; its log:\n%s", restoredFired+1, log)
	}
}

// Where the stream does not reach back, timers that were due wait for an operator, who is told; later ones fire. An
// operator may have all of them fire.
func TestRestoredRedisWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	s := newRestored(t)
	stream, err := s.JS.Stream(t.Context(), "TIMERS")
	if err == nil {
		err = stream.Purge(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	s.restore()
	s.setNew()
	s.collector.WaitFunc(system.Patience, system.AtLeast(restoredFired+2))
	s.StatusSays(1, "Redis has data of ", "timers wait", "the stream TIMERS ", "timerd status --acknowledge")
	for _, key := range []string{"shop:fired:t:1", "shop:open:t:1"} {
		if said := fmt.Sprint(s.Do("FCALL", "timer_get", 1, key)); !strings.Contains(said, "state owed") {
			t.Errorf("%s: %s", key, said)
		}
	}
	s.Says(1, "reconcile --yes", "the stream TIMERS")
	s.Says(0, "status --acknowledge", "free: ")
	// Of the second events of the others JetStream drops those within its window.
	s.collector.WaitFunc(system.Patience, func(all []testenv.Message) error {
		open := 0
		for _, m := range all {
			if strings.HasPrefix(m.Subject, "timers.fired.shop.open.") {
				open++
			}
		}
		if open < restoredOpen {
			return fmt.Errorf("%d of %d open timers have fired", open, restoredOpen)
		}
		return nil
	})
	s.Says(0, "resume shop:kept")
	s.Settled()
	s.timerd.Stop()
}
