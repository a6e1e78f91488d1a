package reconciler

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// reasonAsked is the reason of an audit that an operator has asked for.
const reasonAsked = "asked for"

// Asked is an audit that was asked for, and how far it is.
type Asked struct {
	ID string
	schedule.AuditProgress
}

// asked is the audit that was asked for last. Its methods may be called concurrently.
type asked struct {
	mu   sync.Mutex
	last Asked
	next string // the id of the one that is to begin, if any
}

// Audit asks for an audit of the node that also looks for what is missing in any partition. The next audit of
// everything is it. One that was asked for before and has not begun is not carried out. It never blocks.
func (r *Reconciler) Audit(id string) {
	r.asked.mu.Lock()
	r.asked.next = id
	r.asked.mu.Unlock()
	r.Coverage.ask(reasonAsked)
}

// Asked returns the audit that was asked for last, with an empty ID if there is none.
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

// begin returns the id of the audit that is to begin now, or an empty one.
func (a *asked) begin() (id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != "" {
		fault := ""
		if a.last.ID == a.next { // it is tried again
			fault = a.last.Fault
		}
		a.last, a.next = Asked{ID: a.next, AuditProgress: schedule.AuditProgress{Fault: fault}}, ""
		return a.last.ID
	}
	return ""
}

// doing notes what the audit does.
func (a *asked) doing(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last.Doing = what
}

// postpone leaves an audit to the next one of everything, with what has failed, if anything.
func (a *asked) postpone(id string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next != "" {
		return // a newer one
	}
	a.next = id
	if err != nil {
		a.last.Fault = err.Error()
	}
}

// end notes what came of the audit.
func (a *asked) end(out schedule.AuditOutcome, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last.Done, a.last.Doing, a.last.Fault, a.last.Outcome, a.last.Took = true, "", "", out, took
}

// auditAsked makes an audit of everything that was asked for: it first puts in order what is missing in any partition.
func (a *auditor) auditAsked(ctx context.Context, id string) (schedule.Observed, error) {
	began := time.Now()
	a.asked.doing("comparing timers with their records")
	restored, failed := a.restoreAll(ctx)
	a.asked.doing("comparing keys with timers")
	seen, err := a.auditOnce(ctx, true)
	if failed = errors.Join(failed, err); failed != nil || !a.judged { // another try follows, or the first subscription
		a.asked.postpone(id, failed)
		return seen, failed
	}
	out := schedule.AuditOutcome{
		Restored: restored.Timers, WithoutPayload: restored.Bare, Dropped: restored.Dropped, Unknown: restored.Unknown,
		Adopted: int64(seen.Adopted), Rescheduled: int64(seen.Rescheduled), Cancelled: int64(seen.Cancelled), Kept: int64(seen.Kept),
		Unreadable: int64(seen.Denied),
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
