package receiver

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

// role is the behaviour of a host.
type role int

const (
	steady role = iota // always answers
	fixed              // the same, with its URL in the file of endpoints
	flaky              // fails now and then, in all ways
	frail              // always answers, but is absent now and then; see Frail
)

func roles() []role { return []role{steady, fixed, flaky, frail} }

const (
	// timeout is the timeout of a call. hangTime, longer, is the time for which a hanging host does not answer.
	timeout  = 3 * time.Second
	hangTime = 2 * timeout
	// slowestAnswer is the longest time that a host takes to answer. It is long enough for a timerd deliver to die
	// during calls.
	slowestAnswer = 400 * time.Millisecond
	// failedShare is the share of its calls, in percent, that a flaky host fails. At 50 its circuit would open.
	failedShare = 40
)

// answer is a host's answer to a call.
type answer struct {
	after  time.Duration
	status int         // 0: the connection is closed instead
	header http.Header // further ones
}

// failures are the failures of a flaky host.
func failures() []answer {
	return []answer{
		{status: http.StatusInternalServerError},
		{status: http.StatusServiceUnavailable},
		{status: http.StatusServiceUnavailable, header: http.Header{"Retry-After": {"1"}}},
		{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"2"}}},
		{status: http.StatusNotFound},
		{status: http.StatusFound, header: http.Header{"Location": {"/elsewhere"}}},
		{after: hangTime},
		{},
	}
}

// choose returns the answer to a call.
func (h *host) choose(path string, random *rand.Rand) answer {
	a := answer{status: http.StatusOK}
	switch {
	case path == history.PathGone:
		a.status = http.StatusGone
	case h.role == flaky && !h.good.Load() && random.IntN(100) < failedShare:
		all := failures()
		a = all[random.IntN(len(all))]
	}
	a.after += time.Duration(random.Int64N(int64(slowestAnswer)))
	return a
}

// wait waits until the time for the answer. It returns false if the caller is gone or the receiver is closed.
func (a answer) wait(caller, ending context.Context) bool {
	select {
	case <-time.After(a.after):
		return true
	case <-caller.Done():
	case <-ending.Done():
	}
	return false
}

// write sends the answer, and returns once it is on its way.
func (a answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(a.status)
	_ = http.NewResponseController(w).Flush() // the caller may have died
}
