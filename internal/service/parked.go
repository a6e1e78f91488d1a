package service

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

// reasonRetry says that a retry request cannot be carried out for now; the schedule has the other reasons why something is
// set aside.
const reasonRetry = "retry"

const (
	// retellAfter is how long nothing more is said of an app whose timers are set aside.
	retellAfter = time.Hour
	// maxTold is how many apps that is remembered of.
	maxTold = 1000
)

// parked counts and logs the timers whose keys timerd may not read. Its methods may be called concurrently.
type parked struct {
	total prometheus.Counter
	log   *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time // app -> when it was logged last
}

func newParked(total prometheus.Counter, log *slog.Logger) *parked {
	return &parked{total: total, log: log, told: map[string]time.Time{}}
}

// note takes in that n timers, or events of their keys, are set aside. key is of one of them.
func (s *parked) note(n int, key string) {
	if n == 0 {
		return
	}
	s.total.Add(float64(n))
	app, _, _ := strings.Cut(key, ":")
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.told[app]; ok && time.Since(at) < retellAfter {
		return
	}
	if len(s.told) == maxTold {
		clear(s.told)
	}
	s.told[app] = time.Now()
	s.log.Warn("timers of this app are set aside: timerd may not read their keys; grant it the keys of the app, as deploy/users.acl does",
		"key", keys.Abbreviate(key), "reason", string(query.ParkedRights))
}
