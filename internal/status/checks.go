package status

import (
	"fmt"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/schedule"
)

// facts has the answers of Redis and NATS. The checks judge them, and ask nothing.
type facts struct {
	Sources

	redis *Redis // nil if no server answers
	nats  *NATS  // nil if NATS does not answer

	servers    []server // of Redis, as far as they answered
	serversErr error    // why the servers, or some of them, are unknown
	elsewhere  *diag.Finding
	database   int              // of a single Redis
	unserved   []query.Database // with timers and no timerd, by number
	members    []query.Member
	membersErr error
	holdsErr   error
	audits     []schedule.AuditReport
	auditsErr  error
	account    *schedule.Account // nil if it is unknown
	overdue    *Overdue          // nil for none
	overdueErr error

	natsSilent  *diag.Finding  // JetStream does not answer, or refuses
	full        *streams.Fault // the account stores no more
	streamsErr  error          // why the state of the streams is unknown
	missing     []string       // streams
	faults      []*streams.Fault
	lost        []streams.Loss // not acknowledged yet
	deliverers  []streams.Deliverer
	ledger      ledger.Seen      // the account beside the stream of firings
	uncounted   *streams.Fault   // nobody counts the timers
	stateErr    error            // why these four are unknown
	unwritten   []*streams.Fault // streams that the server cannot write to disk; asked only if timers may wait
	webhooks    *Webhooks
	webhooksErr error
}

// check is a row of the table.
type check = diag.Check[*facts]

// Checks returns the names of the checks of an installation, in the order of the table.
func Checks() []string { return diag.Names(checks()) }

// serving are the checks whose failure keeps timerds from Redis.
func serving() []string { return []string{diag.CheckRedis, diag.CheckRights, diag.CheckCluster} }

// checks returns the table of checks behind status, doctor, /readyz, the console and timerd_problem: a check of the
// state of an installation is a row here and a row in docs/runbook.md. Its input is gathered into facts before.
func checks() []check {
	redis := slices.Clip(serving())
	both := slices.Concat(redis, []string{diag.CheckNATS, diag.CheckStreams})
	return []check{
		{Name: diag.CheckOverdue, Causes: causesOfOverdue(), Run: checkOverdue,
			Fix: "fix the cause that is named; without one, look at the log of each timerd, and at the timers: " +
				"timerd ls --state owed"},
		{Name: diag.CheckRedis, Ready: ReadyRedis, Run: checkRedis,
			Fix: "bring that server back: its timers wait there, and none is lost"},
		{Name: diag.CheckRights, Ready: ReadyRedis, Run: checkRights},
		{Name: diag.CheckCluster, Ready: ReadyRedis, Run: checkCluster},
		{Name: diag.CheckTimerds, Run: checkMembers},
		{Name: diag.CheckUnattended, Needs: append(redis, diag.CheckTimerds), Run: checkAttended},
		{Name: diag.CheckSilent, Needs: append(redis, diag.CheckTimerds, diag.CheckUnattended), Run: checkSilent},
		{Name: diag.CheckDatabases, Needs: redis, Run: checkDatabases},
		{Name: diag.CheckNATS, Ready: ReadyJetStream, Run: checkNATS},
		{Name: diag.CheckStreams, Ready: ReadyJetStream, Needs: []string{diag.CheckNATS}, Run: checkStreams},
		{Name: "claims", Ready: "claims", Needs: redis, Run: ofTimerds(diag.Fail, ReadyRedis, "claims"),
			Fix: lookAtTimerd},
		{Name: ReadyJetStream, Ready: ReadyJetStream, Needs: both, Run: ofTimerds(diag.Fail, ReadyJetStream),
			Fix: lookAtTimerd},
		{Name: "installation", Ready: "installation", Needs: both, Run: ofTimerds(diag.Fail, "installation"),
			Fix: lookAtTimerd},
		{Name: "retry consumer", Ready: "retry consumer", Needs: both, Run: ofTimerds(diag.Fail, "retry consumer"),
			Fix: lookAtTimerd},
		{Name: "keyspace events", Ready: "keyspace events", Needs: redis, Run: ofTimerds(diag.Fail, "keyspace events"),
			Fix: lookAtTimerd},
		{Name: diag.CheckLosses, Run: checkLosses},
		{Name: diag.CheckRestored, Needs: redis, Run: checkRestored},
		{Name: diag.CheckCounting, Needs: slices.Concat(both, []string{ReadyJetStream}), Run: checkCounting},
		{Name: diag.CheckGuards, Ready: diag.CheckGuards, Needs: both, Run: ofTimerds(diag.Warn, diag.CheckGuards),
			Fix: lookAtTimerd},
		{Name: diag.CheckAccount, Needs: redis, Run: checkAccount},
		{Name: diag.CheckClock, Run: checkClocks},
		{Name: diag.CheckHolds, Needs: redis, Run: checkHolds},
		{Name: diag.CheckAudits, Needs: redis, Run: checkAudits},
		{Name: diag.CheckAside, Run: checkAside},
		{Name: diag.CheckWebhooks, Run: checkWebhooks},
		{Name: diag.CheckHosts, Run: checkCircuits},
		{Name: diag.CheckConsumers, Run: checkOthers},
		{Name: diag.CheckLetters, Run: checkLetters},
	}
}

// The names of a timerd's own readiness checks that other code refers to.
const (
	ReadyRedis     = "redis"
	ReadyJetStream = "jetstream"
)

// ReadyChecks returns, by the name of a check, the check of a timerd's own readiness that fails with it.
func ReadyChecks() map[string]string {
	of := map[string]string{}
	for _, c := range checks() {
		of[c.Name] = c.Ready
	}
	return of
}

// auditTooOld is the age at which the last audit is a problem: there is one every ten minutes.
const auditTooOld = 30 * time.Minute

// waits reports whether timers may wait for NATS: some are claimed or due, or their number is unknown.
func (f *facts) waits() bool {
	r := f.redis
	return r != nil && (f.Brief || r.Firing+r.Owed > 0)
}

// count formats a number with its noun.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}
