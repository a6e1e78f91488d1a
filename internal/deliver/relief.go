package deliver

import (
	"sync"
	"time"
)

// reliefEvery is how often idle connections are given up at most. A call that finds no descriptor left gives up those of
// all endpoints, and with each time they all have to be made anew.
const reliefEvery = 5 * time.Second

// relief gives up idle connections, however many calls ask for that at once. The zero value is ready.
type relief struct {
	mu   sync.Mutex
	last time.Time
}

// give calls closeIdle, unless that was done lately.
func (r *relief) give(closeIdle func()) {
	r.mu.Lock()
	now := time.Now()
	lately := !r.last.IsZero() && now.Sub(r.last) < reliefEvery
	if !lately {
		r.last = now
	}
	r.mu.Unlock()
	if !lately {
		closeIdle()
	}
}
