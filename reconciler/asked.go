package reconciler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// reasonAsked is the reason of an audit that an operator has requested.
const reasonAsked = "asked for"

// Asked is a requested audit, with its progress.
type Asked struct {
	ID string
	schedule.AuditProgress
}

// asked has the last requested audit. Its methods may be called concurrently.
type asked struct {
	mu   sync.Mutex
	last Asked
	next string // the id of a requested audit that has not begun; "" if there is none
}

// Audit requests an audit of the node that also restores missing halves of timers in all partitions. The next full
// audit does this. If an earlier request has not begun, the new one replaces it. Audit never blocks.
func (r *Reconciler) Audit(id string) {
	r.asked.mu.Lock()
	r.asked.next = id
	r.asked.mu.Unlock()
	r.Coverage.ask(reasonAsked)
}

// Asked returns the last requested audit. Its ID is empty if there was none.
func (r *Reconciler) Asked() Asked {
	r.asked.mu.Lock()
	defer r.asked.mu.Unlock()
	if id := r.asked.next; id != "" {
		waiting := Asked{ID: id, AuditProgress: schedule.AuditProgress{Doing: "waiting until it can begin"}}
		if r.asked.last.ID == id {
			waiting.Fault = r.asked.last.Fault
		}
		return waiting
	}
	return r.asked.last
}

// begin returns the id of the requested audit to begin now; "" if there is none.
func (a *asked) begin() (id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != "" {
		fault := ""
		if a.last.ID == a.next { // it is another try
			fault = a.last.Fault
		}
		a.last, a.next = Asked{ID: a.next, AuditProgress: schedule.AuditProgress{Fault: fault}}, ""
		return a.last.ID
	}
	return ""
}

// doing notes the present work of the audit.
func (a *asked) doing(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last.Doing = what
}

// postpone leaves a requested audit to the next full one. err is its failure, or nil.
func (a *asked) postpone(id string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != "" {
		return // a newer request
	}
	a.next = id
	if err != nil {
		a.last.Fault = err.Error()
	}
}

// end notes the outcome of the audit.
func (a *asked) end(out schedule.AuditOutcome, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last.Done, a.last.Doing, a.last.Fault, a.last.Outcome, a.last.Took = true, "", "", out, took
}

// auditAsked makes a requested audit. First it restores missing halves of timers in all partitions.
func (a *auditor) auditAsked(ctx context.Context, id string) (schedule.Observed, error) {
	began := time.Now()
	a.asked.doing("comparing timers with their records")
	restored, failed := a.restoreAll(ctx)
	a.asked.doing("comparing keys with timers")
	seen, err := a.auditOnce(ctx, true)
	// another audit follows, soon or after the first subscription
	if failed = errors.Join(failed, err); failed != nil || !a.judged {
		a.asked.postpone(id, failed)
		return seen, failed
	}
	out := schedule.AuditOutcome{
		Restored: restored.Timers, WithoutPayload: restored.Bare, Dropped: restored.Dropped, Unknown: restored.Unknown,
		Adopted: int64(seen.Adopted), Rescheduled: int64(seen.Rescheduled), Cancelled: int64(seen.Cancelled),
		Kept: int64(seen.Kept), Unreadable: int64(seen.Denied),
	}
	for _, c := range a.counted {
		out.Timers += c.Pending + c.Owed + c.Firing + c.Held
	}
	a.asked.end(out, time.Since(began))
	return seen, nil
}

// restoreAll restores each partition that has timers or firings, or is torn.
func (a *auditor) restoreAll(ctx context.Context) (schedule.Restored, error) {
	found, err := a.node.ScanDue(ctx, forever, a.lease)
	if err != nil {
		return schedule.Restored{}, err
	}
	missing := map[keys.Partition]int64{}
	for _, h := range found.Heads {
		missing[h.Partition] = 0
	}
	for _, l := range found.Leases {
		missing[l.Partition] = 0
	}
	for _, t := range found.Torn {
		missing[t.Partition] = t.Missing
	}
	torn := make([]schedule.Torn, 0, len(missing))
	for p, n := range missing {
		torn = append(torn, schedule.Torn{Partition: p, Missing: n})
	}
	return a.restore(ctx, torn)
}
