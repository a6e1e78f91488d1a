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

// reasonRetry is the reason for a retry request set aside; the schedule has the reasons for timers.
const reasonRetry = "retry"

const (
	// retellAfter is the least interval between log lines about the same app.
	retellAfter = time.Hour
	// maxTold limits the remembered apps.
	maxTold = 1000
)

// parked counts and logs timers with unreadable keys. Its methods may be called concurrently.
type parked struct {
	total prometheus.Counter
	log   *slog.Logger

	mu   sync.Mutex
	told map[string]time.Time // by app: time of the last log line
}

func newParked(total prometheus.Counter, log *slog.Logger) *parked {
	return &parked{total: total, log: log, told: map[string]time.Time{}}
}

// note counts n timers, or events of their keys, that are set aside. key is the key of one.
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
	s.log.Warn("timers of this app are set aside: timerd may not read their keys; "+
		"grant it the app's keys, as in deploy/users.acl",
		"key", keys.Abbreviate(key), "reason", string(query.ParkedRights))
}
