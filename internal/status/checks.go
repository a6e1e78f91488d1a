package status

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// owedTooLong is how long a timer may be owed before that is a problem: a claim takes milliseconds.
	owedTooLong = 5 * time.Second
	// auditTooOld is the age at which the last audit is a problem: there is one every ten minutes.
	auditTooOld = 30 * time.Minute
)

// checkMembers judges who serves the schedule, and whether they agree.
func checkMembers(members []query.Member, p *diag.Findings) {
	for _, d := range Differences(members) {
		p.Warn(diag.CheckTimerds, "give all timerds of this Redis the same "+d.Setting+", and restart those with another value", "%s", d)
	}
	if versions := Versions(members); len(versions) > 1 {
		var who []string
		for _, v := range versions {
			who = append(who, v.Value+" on "+names(v.Instances))
		}
		p.Warn(diag.CheckTimerds, "finish the update: run the same version everywhere",
			"timerds of different versions serve this Redis, as in a rolling update: %s", strings.Join(who, "; "))
	}
}

// checkAttended reports that no timerd serves the schedule. Before the first timer and the first timerd that is no failure.
func checkAttended(members []query.Member, r *Redis, p *diag.Findings) {
	text := Unattended(members)
	if text == "" {
		return
	}
	if r.Owed > 0 {
		text += "; " + count(r.Owed, "timer is", "timers are") + " owed"
	}
	f := diag.Finding{Level: diag.Fail, Check: diag.CheckUnattended, Text: text, Fix: "start timerd; if Redis has just come back, the timerds need some seconds to notice"}
	if r.Held != nil && r.Pending+r.Owed+r.Firing+*r.Held == 0 && len(members) == 0 {
		f.Level = diag.Warn
	}
	*p = append(*p, f)
}

// checkOwedTimers judges how long timers have been owed, if no other problem explains it.
func checkOwedTimers(r *Redis, p *diag.Findings) {
	if ExplainsOwed(*p) || r.Oldest == nil || r.Oldest.age(r.At) < owedTooLong {
		return
	}
	p.Fail(diag.CheckOwed, "look at /readyz of each timerd, which says what does not work, and at its log",
		"%s owed; the oldest, %s, was due at %s", count(r.Owed, "timer is", "timers are"), r.Oldest.Key, r.Oldest.Due.Format(timeLayout))
}

// ExplainsOwed reports whether timers are owed because of one of some problems.
func ExplainsOwed(p diag.Findings) bool {
	return p.Has(diag.Fail, diag.CheckRedis, diag.CheckRights, diag.CheckCluster, diag.CheckNATS, diag.CheckStreams, diag.CheckUnattended)
}

// count writes a number with its noun.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// checkNode judges a node.
func checkNode(n *Node, at time.Time, attended bool, p *diag.Findings) {
	if n.Moving > 0 {
		p.Warn(diag.CheckCluster, "wait until the slots have moved", "%s: %s moving: the timers there wait, and are not counted here",
			n.Address, count(int64(n.Moving), "slot is", "slots are"))
	}
	if n.LastAudit != nil && attended && at.Sub(n.LastAudit.At) > auditTooOld {
		p.Warn(diag.CheckAudits, "look for \"audit failed\" in the timerds' logs", "%s: no audit has ended since %s",
			n.Address, n.LastAudit.At.Format(timeLayout))
	}
}

// NoJetStream returns the problem when JetStream does not report the account's usage.
func NoJetStream(err error) diag.Finding {
	if fault, ok := errors.AsType[*streams.Fault](err); ok {
		return fault.Finding(diag.CheckNATS)
	}
	return diag.Of(diag.CheckNATS, fmt.Errorf("JetStream does not answer: %w", err), streams.SilentFix)
}

// unreached reports that NATS is away, or has no JetStream.
func unreached(why diag.Finding, p *diag.Findings) {
	p.Fail(diag.CheckNATS, why.Fix, "the state of the streams is unknown, and timers wait in Redis if the timerds do not reach NATS either: %s", why.Text)
}

// unanswered reports that JetStream does not answer.
func unanswered(err error, p *diag.Findings) {
	p.Fail(diag.CheckStreams, "look at the NATS server, and let the user call $JS.API.STREAM.INFO.*", "cannot tell the state of the streams: %v", err)
}

// checkStream judges the state of a stream. which names its purpose; all its consumers have acknowledged the messages up to
// floor.
func checkStream(s *Stream, which keys.Names, floor uint64, p *diag.Findings) {
	if s.full != nil {
		f := s.full.Finding(diag.CheckStreams)
		switch s.Name {
		case which.FiredStream():
			f.Text += ": timers wait in Redis"
			if floor > 0 {
				f.Fix += fmt.Sprintf("; or, to delete the events that every consumer has acknowledged: nats stream purge %s --seq=%d --force", s.Name, floor+1)
			}
		case which.DeadStream():
			f.Text += ": retry requests that become dead letters wait"
			f.Fix += "; or, to set the timers again: timerd dead replay"
		case which.DeliveryStream():
			f.Text += ": deliveries wait for it, and are not logged"
			f.Fix = "let it drop the oldest, as a log may: nats stream edit " + s.Name + " --discard=old --force"
		default:
			f.Text += ": consumers cannot ask for retries"
		}
		*p = append(*p, f)
	}
}

// checkLeaders judges whether the servers of a NATS cluster that keep streams are there. It reports whether all streams have leaders.
func checkLeaders(all []Stream, p *diag.Findings) bool {
	var leaderless, behind []string
	for _, s := range all {
		switch {
		case s.Leaderless:
			leaderless = append(leaderless, s.Name)
		case s.Current < s.Replicas:
			behind = append(behind, fmt.Sprintf("%s: %d of %d", s.Name, s.Current, s.Replicas))
		}
	}
	switch {
	case len(leaderless) > 0:
		p.Fail(diag.CheckStreams, streams.NoLeaderFix, "%s: no leader, so nothing is taken", strings.Join(leaderless, ", "))
	case len(behind) > 0:
		p.Warn(diag.CheckStreams, streams.NoLeaderFix, "replicas that are up to date: %s", strings.Join(behind, "; "))
	}
	return len(leaderless) == 0
}
