package receiver

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// role is how a host behaves.
type role int

const (
	steady role = iota // it always answers
	fixed              // the same, and its URL is in the file of endpoints
	flaky              // it fails now and then, in every way there is
	frail              // it answers while it is there, see Frail
)

func roles() []role { return []role{steady, fixed, flaky, frail} }

const (
	// timeout is that of a call, and hangs how long a host does not answer: longer.
	timeout = 3 * time.Second
	hangs   = 2 * timeout
	// thinks is how long a host takes for an answer at most, so that a timerd deliver dies with calls under way.
	thinks = 400 * time.Millisecond
	// fails is the part of its calls, in percent, that a flaky host fails: half of them would open its circuit.
	fails = 40
)

// answer is what a host makes of a call.
type answer struct {
	after  time.Duration
	status int         // 0: the connection is closed instead
	header http.Header // further ones
}

// failures are the ways in which a flaky host fails.
func failures() []answer {
	return []answer{
		{status: http.StatusInternalServerError},
		{status: http.StatusServiceUnavailable},
		{status: http.StatusServiceUnavailable, header: http.Header{"Retry-After": {"1"}}},
		{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"2"}}},
		{status: http.StatusNotFound},
		{status: http.StatusFound, header: http.Header{"Location": {"/elsewhere"}}},
		{after: hangs},
		{},
	}
}

// choose returns the answer to a call.
func (h *host) choose(path string, random *rand.Rand) answer {
	a := answer{status: http.StatusOK}
	switch {
	case path == history.PathGone:
		a.status = http.StatusGone
	case h.role == flaky && !h.good.Load() && random.IntN(100) < fails:
		all := failures()
		a = all[random.IntN(len(all))]
	}
	a.after += time.Duration(random.Int64N(int64(thinks)))
	return a
}

// wait waits until it is time to answer, and tells whether it is: the caller may have gone, or everything end.
func (a answer) wait(caller, ending context.Context) bool {
	select {
	case <-time.After(a.after):
		return true
	case <-caller.Done():
	case <-ending.Done():
	}
	return false
}

// write answers, and returns once that is on its way.
func (a answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(a.status)
	_ = http.NewResponseController(w).Flush() // who called may have died
}
