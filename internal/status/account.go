package status

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// accountAge is the time for which a [RecentAccount] reuses an answer. It is longer than the interval at which the
// timerds store one, and with the pause between two reports and the time of a look it is under a minute.
const accountAge = 55 * time.Second

// mostDiffering limits the partitions that a text names.
const mostDiffering = 3

// RecentAccount has the last account, for callers that make repeated reports. The zero value is ready. Its methods may
// be called concurrently; nil keeps nothing.
type RecentAccount struct {
	mu     sync.Mutex
	at     time.Time
	last   *schedule.Account
	looked time.Time // of the last take
}

// get returns a recent account, or nil if Redis does not tell: other checks say why.
func (r *RecentAccount) get(ctx context.Context, s *schedule.Schedule) *schedule.Account {
	if r == nil {
		r = &RecentAccount{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last != nil && time.Since(r.at) < accountAge {
		return r.last
	}
	if a, err := s.Account(ctx); err == nil {
		r.last, r.at = &a, time.Now()
		return r.last
	}
	return nil
}

// take has the next report use the account that the timerds stored last: a cluster takes half a second for a reading.
// If they stored none, as it differs or is not whole, the next report reads it by itself. now is by the clock of NATS.
func (r *RecentAccount) take(seen ledger.Seen, now time.Time) {
	if r == nil || seen.Looked.IsZero() || now.IsZero() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if seen.Looked.Equal(r.looked) {
		return
	}
	r.looked = seen.Looked
	if at := time.Now().Add(-max(now.Sub(seen.Looked), 0)); seen.Account == nil || at.After(r.at) {
		r.last, r.at = seen.Account, at
	}
}

// AccountFix returns what to do about a difference of an account.
func AccountFix(a schedule.Account) string {
	causes := "somebody wrote to timerd's keys, or a user may not run ZADD on them, which counts, or a command of an " +
		"older timerd ran"
	if len(a.Differences) == 0 {
		return causes
	}
	return fmt.Sprintf("%s; run: timerd audit; once you know why, this begins a new account: redis-cli ZREM %s o",
		causes, diag.Word(a.Differences[0].Partition.Account()))
}

// DescribeDifferences describes the differences of an account.
func DescribeDifferences(a schedule.Account) string {
	var said []string
	for _, d := range a.Differences[:min(len(a.Differences), mostDiffering)] {
		what := count(d.Difference, "timer is", "timers are") + " missing"
		if d.Difference < 0 {
			what = count(-d.Difference, "timer is", "timers are") + " there too many"
		}
		said = append(said, what+" in "+d.Partition.Prefix())
	}
	if more := len(a.Differences) - len(said); more > 0 {
		said = append(said, fmt.Sprintf("%d more partitions", more))
	}
	return strings.Join(said, ", ")
}

// Unexplained describes how the stream of firings differs from the account, with the fix.
func Unexplained(c ledger.Comparison, names keys.Names) (text, fix string) {
	const then = "; once you know why: timerd status --acknowledge"
	since := c.Since.UTC().Format(time.RFC3339)
	if c.Most < 0 {
		return fmt.Sprintf("%s lacks the events of %s fired since %s, or of more", names.FiredStream(),
				count(-c.Most, "timer", "timers"), since),
			"the stream has lost events, or took some for duplicates: look into the log of nats-server, and make up " +
				"for them from your own records" + then
	}
	return fmt.Sprintf("%s has %s since %s, or more, that the account does not know", names.FiredStream(),
			count(c.Least, "event", "events"), since),
		"Redis has forgotten timers that it fired (a failover that lost writes, an older copy), events were stored " +
			"again beyond the duplicate window, or somebody else publishes to " + names.SubjectAll(keys.Fired) + then
}

// checkAccount reports timers that have entered the schedule and are neither there nor counted as gone, and events that
// differ from the timers counted as fired.
func checkAccount(f *facts, p *diag.Findings) {
	if f.account != nil && len(f.account.Differences) > 0 {
		p.Warn(AccountFix(*f.account), "the account differs: %s", DescribeDifferences(*f.account))
	}
	if f.ledger.Differs() {
		text, fix := Unexplained(f.ledger.Comparison, f.Streams.Names)
		p.Warn(fix, "%s", text)
	}
	if f.isStale() {
		p.Warn("the log of each timerd says why; until that is fixed, timerd account compares",
			"no timerd has compared the account with %s since %s", f.Streams.FiredStream(),
			f.ledger.Looked.UTC().Format(time.RFC3339))
	}
}

// isStale reports whether living timerds have stopped comparing the account with the events.
func (f *facts) isStale() bool {
	if f.nats == nil || f.ledger.Looked.IsZero() || f.redis == nil || len(f.redis.Timerds) == 0 {
		return false // never, or other checks say why
	}
	return f.natsNow().Sub(f.ledger.Looked) > ledger.Stale
}

// natsNow returns the time by the clock of NATS, or the zero Time.
func (f *facts) natsNow() time.Time {
	for i := 0; f.nats != nil && i < len(f.nats.Streams); i++ {
		if s := &f.nats.Streams[i]; s.Name == f.Streams.FiredStream() && s.info != nil {
			return s.info.TimeStamp
		}
	}
	return time.Time{}
}
