package deliver

import (
	"sync"
	"time"
)

// reliefEvery is the least interval between closings of idle connections. A call without a free descriptor closes the
// idle connections of all endpoints, which must then be made again.
const reliefEvery = 5 * time.Second

// relief closes idle connections. If many calls ask for that at the same time, it does so once. The zero value is
// ready.
type relief struct {
	mu   sync.Mutex
	last time.Time
}

// give calls closeIdle, unless it was called within reliefEvery.
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
