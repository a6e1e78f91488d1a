package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
)

const (
	// owedTooLong is for how long a timer is owed before that is a problem: claiming takes milliseconds.
	owedTooLong = 5 * time.Second
	// auditTooOld is the age of the last audit that is a problem: there is one every ten minutes.
	auditTooOld = 30 * time.Minute
)

// The names of checks that only this package makes.
const (
	checkAudits = "audits"
	checkHolds  = "holds"
	checkOwed   = "owed"
)

// CheckLetters finds that there are dead letters: for who counts them in another place.
const CheckLetters = "dead letters"

// CheckMembers judges who serves the schedule, and whether they agree.
func CheckMembers(members []query.Member) (p diag.Findings) {
	if text := Unattended(members); text != "" {
		p.Fail(diag.CheckUnattended, "start timerd; if Redis has just come back, the timerds need some seconds to notice", "%s", text)
	}
	for _, d := range Differences(members) {
		p.Warn(diag.CheckTimerds, "give all timerds of this Redis the same "+d.Setting+", and start those anew that had another", "%s", d)
	}
	if versions := Versions(members); len(versions) > 1 {
		var who []string
		for _, v := range versions {
			who = append(who, v.Value+" on "+names(v.Instances))
		}
		p.Warn(diag.CheckTimerds, "end the update: put the same version everywhere",
			"timerds of different versions serve this Redis, as in a rolling update: %s", strings.Join(who, "; "))
	}
	return p
}

// checkOwedTimers judges how long timers have been owed, after everything else that may be why.
func checkOwedTimers(r *Redis, p *diag.Findings) {
	if r.Oldest == nil || r.Oldest.age(r.At) < owedTooLong {
		return
	}
	fix := "look at /readyz of each timerd, which says what does not work, and at its log"
	if p.Failed() {
		fix = "mend what is said above; none is lost, and if they stay owed, look at /readyz of each timerd"
	}
	p.Fail(checkOwed, fix, "%s owed; the oldest, %s, was due at %s", count(r.Owed, "timer is", "timers are"), r.Oldest.Key, r.Oldest.Due.Format(timeLayout))
}

// count writes how many there are of something.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// checkNode judges a node.
func checkNode(n *Node, at time.Time, attended bool, p *diag.Findings) {
	if n.Moving > 0 {
		p.Warn(diag.CheckCluster, "let the move of the slots end", "%s: %s moving: the timers there wait, and are in no number here",
			n.Address, count(int64(n.Moving), "slot is", "slots are"))
	}
	for _, a := range n.SetAside {
		what := "because timerd may not read their keys"
		if a.Reason == query.AsideRefused {
			what = "because NATS refuses their subjects"
		}
		p.Warn(diag.CheckAside, "timerd doctor says what is missing", "%s set aside %s, such as %s", count(a.Timers, "timer is", "timers are"), what, a.Key)
	}
	if n.LastAudit != nil && attended && at.Sub(n.LastAudit.At) > auditTooOld {
		p.Warn(checkAudits, "look for \"audit failed\" in the timerds' logs", "%s: no audit has come to its end since %s",
			n.Address, n.LastAudit.At.Format(timeLayout))
	}
}

// unanswered says that JetStream does not answer.
func unanswered(err error, p *diag.Findings) {
	p.Fail(diag.CheckStreams, "look at the NATS server, and let the user call $JS.API.STREAM.INFO.*", "cannot tell the state of the streams: %v", err)
}

// checkStream judges the state of a stream. which says what it is for.
func checkStream(s *Stream, which keys.Names, p *diag.Findings) {
	switch {
	case !s.Full:
	case s.Name == which.FiredStream():
		p.Fail(diag.CheckStreams, "raise its limits with nats stream edit "+s.Name+", or purge events that every consumer has: nats stream purge "+s.Name,
			"%s is full and takes no more: timers wait in Redis", s.Name)
	case s.Name == which.DeadStream():
		p.Fail(diag.CheckStreams, "raise its limits with nats stream edit "+s.Name+", or timerd dead ls, then timerd dead replay or timerd dead purge",
			"%s is full and takes no more: retry requests that become dead letters wait", s.Name)
	case s.Name == which.DeliveryStream():
		p.Fail(diag.CheckStreams, "raise its limits with nats stream edit "+s.Name+", or let it drop the oldest: --discard=old",
			"%s is full and takes no more: deliveries wait for it, and are not logged", s.Name)
	default:
		p.Fail(diag.CheckStreams, "raise its limits with nats stream edit "+s.Name, "%s is full and takes no more: consumers cannot ask for retries", s.Name)
	}
	switch {
	case s.Leaderless:
		p.Fail(diag.CheckStreams, "bring the NATS servers of its cluster back", "%s has no leader, so it takes nothing", s.Name)
	case s.Current < s.Replicas:
		p.Warn(diag.CheckStreams, "bring the NATS servers of its cluster back", "%s: %d of %d replicas are up to date", s.Name, s.Current, s.Replicas)
	}
}
