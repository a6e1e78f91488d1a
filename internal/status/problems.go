package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/notify"
	"github.com/timerd-io/timerd/schedule"
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
	*p = append(*p, Problem{Fail, fmt.Sprintf(format, args...), fix})
}

func (p *problems) warn(fix, format string, args ...any) {
	*p = append(*p, Problem{Warn, fmt.Sprintf(format, args...), fix})
}

// members judges who serves the schedule.
func (p *problems) members(members []schedule.Member) {
	if text := Unattended(members); text != "" {
		p.fail("start timerd", "%s", text)
	}
	p.disagreements(members)
}

// disagreements judges whether the living timerds agree.
func (p *problems) disagreements(members []schedule.Member) {
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

// owed judges how long timers have been owed.
func (p *problems) owed(r *Redis, reachesNATS bool) {
	var fix string
	switch {
	case r.Oldest == nil || r.Oldest.age(r.At) < owedTooLong:
		return
	case !reachesNATS:
		fix = "bring NATS back: they fire then, and none is lost"
	case len(r.Timerds) == 0:
		fix = "start timerd: they fire then"
	default:
		fix = "look at /readyz of each timerd, which says what does not work, and at its log"
	}
	p.fail(fix, "%d timers are owed; the oldest, %s, was due at %s", r.Owed, r.Oldest.Key, r.Oldest.Due.Format(timeLayout))
}

// node judges a node.
func (p *problems) node(n *Node, at time.Time, attended bool) {
	if n.Moving > 0 {
		p.warn("let the move of the slots end", "%s: %d slots are moving: their timers wait, and are in no number here", n.Address, n.Moving)
	}
	for _, a := range n.SetAside {
		what := "because timerd may not read their keys"
		if a.Reason == schedule.AsideRefused {
			what = "because NATS refuses their subjects"
		}
		p.warn("timerd doctor says what is missing", "%d timers are set aside %s, such as %s", a.Timers, what, a.Key)
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
func (p *problems) faults(faults []*notify.StreamFault, missing []string) {
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

// stream judges the state of a stream.
func (p *problems) stream(s *Stream) {
	if s.Full {
		p.fail("raise its limits, or purge what nobody needs: nats stream edit "+s.Name+", nats stream purge "+s.Name,
			"%s is full and takes no more: timers wait in Redis", s.Name)
	}
	switch {
	case s.Leaderless:
		p.fail("bring the NATS servers of its cluster back", "%s has no leader, so it takes nothing", s.Name)
	case s.Current < s.Replicas:
		p.warn("bring the NATS servers of its cluster back", "%s: %d of %d replicas are up to date", s.Name, s.Current, s.Replicas)
	}
}
