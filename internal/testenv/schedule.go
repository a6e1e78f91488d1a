package testenv

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// schedulePatience bounds the waits of a Schedule.
const schedulePatience = time.Minute

// Schedule is an empty schedule in a Redis server of its own.
type Schedule struct {
	*schedule.Schedule
	Node   *schedule.Node
	Server *RedisServer
	Client *redis.Client
	t      testing.TB
}

// NewSchedule starts a Redis server with timerd's library. The schedule's calls fail within a second while the server
// is away, so that a test sees several tries.
func NewSchedule(t testing.TB) *Schedule {
	t.Helper()
	server := Redis(t)
	client := server.Client(func(o *redis.Options) {
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.MaxRetries = time.Second, time.Second, time.Second, -1
	})
	s := &Schedule{Schedule: schedule.New(client, schedule.DefaultMaxPayload), Server: server, Client: client, t: t}
	Eventually(t, schedulePatience, func() error {
		_, err := s.Load(t.Context())
		return err
	}, "loading the libraries")
	nodes, err := s.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Node = nodes[0]
	return s
}

// SetDue sets the timers app1:trans:notice:0 to n-1, which are due nearly at once.
func (s *Schedule) SetDue(n int) {
	s.t.Helper()
	pipe := s.Client.Pipeline()
	for i := range n {
		pipe.FCall(s.t.Context(), "timer_set", []string{fmt.Sprintf("app1:trans:notice:%d", i)}, `{"order":42}`, "PX",
			1)
	}
	if _, err := pipe.Exec(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
}

// Claim claims n firings, for which it waits.
func (s *Schedule) Claim(n int, lease time.Duration) []schedule.Firing {
	s.t.Helper()
	var all []schedule.Firing
	Eventually(s.t, schedulePatience, func() error {
		claimed := s.Node.Claim(s.t.Context(), []schedule.ClaimRequest{{Partition: keys.Single}}, lease)[0]
		all = append(all, claimed.Firings...)
		err := claimed.Err
		if err == nil && len(all) < n {
			err = fmt.Errorf("%d claimed, want %d", len(all), n)
		}
		return err
	}, "claiming")
	return all
}

// Count returns how many timers are pending and how many firing.
func (s *Schedule) Count() (pending, firing int64) {
	s.t.Helper()
	found, err := s.Node.ScanDue(s.t.Context(), 0, time.Minute)
	if err != nil {
		s.t.Fatal(err)
	}
	return found.Pending, found.Firing
}

// WaitEmpty waits until no timer is pending or firing.
func (s *Schedule) WaitEmpty() {
	s.t.Helper()
	Eventually(s.t, schedulePatience, func() error {
		found, err := s.Node.ScanDue(s.t.Context(), 0, time.Minute)
		if err == nil && found.Pending+found.Firing > 0 {
			err = fmt.Errorf("%d pending and %d firing", found.Pending, found.Firing)
		}
		return err
	}, "an empty schedule")
}
