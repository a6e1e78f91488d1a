package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
)

const (
	// owedTooLong is for how long a timer is owed before that is a problem: claiming takes milliseconds.
	owedTooLong = 5 * time.Second
	// auditTooOld is the age of the last audit that is a problem: there is one every ten minutes.
	auditTooOld = 30 * time.Minute
)

// problems collects what is wrong.
type problems []Problem

func (p *problems) fail(fix, format string, args ...any) {
	*p = append(*p, Problem{Level: Fail, Text: fmt.Sprintf(format, args...), Fix: fix})
}

func (p *problems) warn(fix, format string, args ...any) {
	*p = append(*p, Problem{Level: Warn, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// members judges who serves the schedule.
func (p *problems) members(members []query.Member) {
	if text := Unattended(members); text != "" {
		p.fail("start timerd; if Redis has just come back, the timerds need some seconds to notice", "%s", text)
	}
	p.disagreements(members)
}

// ignoreHolds tells of living timerds that claim what is held. hold names them; but one that was stopped then may be back.
func (p *problems) ignoreHolds(members []query.Member) {
	for _, m := range members {
		if m.Alive && !m.Holds {
			p.fail("stop it, or put this version there", "%s, of %s, knows no holds and claims timers that are held", clean(m.Instance), versionOf(m))
		}
	}
}

// disagreements judges whether the living timerds agree.
func (p *problems) disagreements(members []query.Member) {
	for _, d := range Differences(members) {
		p.warn("give all timerds of this Redis the same "+d.Setting+", and start those anew that had another", "%s", d)
	}
	if versions := Versions(members); len(versions) > 1 {
		var who []string
		for _, v := range versions {
			who = append(who, v.Value+" on "+names(v.Instances))
		}
		p.warn("end the update: put the same version everywhere",
			"timerds of different versions serve this Redis, as in a rolling update: %s", strings.Join(who, "; "))
	}
}

// owed judges how long timers have been owed, after everything else that may be why.
func (p *problems) owed(r *Redis) {
	if r.Oldest == nil || r.Oldest.age(r.At) < owedTooLong {
		return
	}
	fix := "look at /readyz of each timerd, which says what does not work, and at its log"
	if slices.ContainsFunc(*p, func(other Problem) bool { return other.Level == Fail }) {
		fix = "mend what is said above; none is lost, and if they stay owed, look at /readyz of each timerd"
	}
	p.fail(fix, "%s owed; the oldest, %s, was due at %s", count(r.Owed, "timer is", "timers are"), r.Oldest.Key, r.Oldest.Due.Format(timeLayout))
}

// count writes how many there are of something.
func count(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// node judges a node.
func (p *problems) node(n *Node, at time.Time, attended bool) {
	if n.Moving > 0 {
		p.warn("let the move of the slots end", "%s: %s moving: the timers there wait, and are in no number here",
			n.Address, count(int64(n.Moving), "slot is", "slots are"))
	}
	for _, a := range n.SetAside {
		what := "because timerd may not read their keys"
		if a.Reason == query.AsideRefused {
			what = "because NATS refuses their subjects"
		}
		p.warn("timerd doctor says what is missing", "%s set aside %s, such as %s", count(a.Timers, "timer is", "timers are"), what, a.Key)
	}
	if n.LastAudit != nil && attended && at.Sub(n.LastAudit.At) > auditTooOld {
		p.warn("look for \"audit failed\" in the timerds' logs", "%s: no audit has come to its end since %s",
			n.Address, n.LastAudit.At.Format(timeLayout))
	}
}

// unanswered says that JetStream does not answer.
func (p *problems) unanswered(err error) {
	p.fail("look at the NATS server, and let the user call $JS.API.STREAM.INFO.*", "cannot tell the state of the streams: %v", err)
}

// faults judges the streams' configurations.
func (p *problems) faults(faults []*streams.Fault, missing []string) {
	for _, name := range missing {
		p.fail("start timerd, which makes it", "there is no stream %s", name)
	}
	for _, f := range faults {
		text := f.Problem
		if f.Stream != "" {
			text = f.Stream + ": " + text
		}
		if f.Warning {
			p.warn(f.Fix, "%s", text)
		} else {
			p.fail(f.Fix, "%s", text)
		}
	}
}

// stream judges the state of a stream. which says what it is for.
func (p *problems) stream(s *Stream, which keys.Names) {
	switch {
	case !s.Full:
	case s.Name == which.FiredStream():
		p.fail("raise its limits with nats stream edit "+s.Name+", or purge events that every consumer has: nats stream purge "+s.Name,
			"%s is full and takes no more: timers wait in Redis", s.Name)
	case s.Name == which.DeadStream():
		p.fail("raise its limits with nats stream edit "+s.Name+", or timerd dead ls, then timerd dead replay or timerd dead purge",
			"%s is full and takes no more: retry requests that become dead letters wait", s.Name)
	case s.Name == which.DeliveryStream():
		p.fail("raise its limits with nats stream edit "+s.Name+", or let it drop the oldest: --discard=old",
			"%s is full and takes no more: deliveries wait for it, and are not logged", s.Name)
	default:
		p.fail("raise its limits with nats stream edit "+s.Name, "%s is full and takes no more: consumers cannot ask for retries", s.Name)
	}
	switch {
	case s.Leaderless:
		p.fail("bring the NATS servers of its cluster back", "%s has no leader, so it takes nothing", s.Name)
	case s.Current < s.Replicas:
		p.warn("bring the NATS servers of its cluster back", "%s: %d of %d replicas are up to date", s.Name, s.Current, s.Replicas)
	}
}
