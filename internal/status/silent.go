package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// toldFor is the time for which a silent timerd is reported after another one was started in its place.
	toldFor = 10 * time.Minute
	// mostTold limits the reported stops, or clock steps, of one timerd.
	mostTold = 5
)

// checkSilent reports timerds that fell silent without ending in order, and recent stops of living ones.
func checkSilent(f *facts, p *diag.Findings) {
	if f.redis == nil {
		return
	}
	silent := stillMissed(f.members, f.redis.RealAt())
	if len(silent) > 0 {
		var said, ids []string
		for _, m := range silent[:min(len(silent), mostTold)] {
			said = append(said, fmt.Sprintf("%s since %s", clean(m.Instance), m.Seen.UTC().Format(timeLayout)))
			if diag.Word(m.Instance) == m.Instance {
				ids = append(ids, m.Instance)
			}
		}
		if more := len(silent) - len(said); more > 0 {
			said = append(said, fmt.Sprintf("%d more", more))
		}
		fix := "look at its host and its log, and start it again"
		if len(ids) > 0 {
			fix += "; a timerd that is not to come back is forgotten by: redis-cli ZREM " +
				diag.Word(keys.Single.Silent()) + " " + strings.Join(ids, " ")
		}
		p.Warn(fix, "%s silent and did not end in order, so it died, is frozen, or does not reach Redis: %s",
			count(int64(len(silent)), "timerd is", "timerds are"), strings.Join(said, ", "))
	}
	for _, m := range f.members {
		for _, stop := range lately(m, func(c *schedule.Counts) []schedule.Stop { return c.Stops }) {
			length, until := diag.Duration(time.Duration(stop.For)*time.Millisecond),
				stop.At.Time().UTC().Format(timeLayout)
			if stop.Frozen {
				p.Warn("look at its host for what stopped the process: a suspended machine, memory, a limit of CPU, "+
					"a debugger",
					"%s did not run for %s until %s: the process was frozen, or its machine", clean(m.Instance), length,
					until)
			} else {
				p.Warn("look at the network between the two",
					"%s did not reach Redis for %s until %s, while other timerds did", clean(m.Instance), length, until)
			}
		}
	}
}

// stillMissed returns the silent timerds, latest first, until ten minutes after the start of another timerd.
func stillMissed(members []query.Member, now time.Time) []query.Member {
	var missed []query.Member
	for _, m := range members {
		replaced := func(other query.Member) bool {
			return other.Alive && other.Since.After(m.Seen) && now.Sub(other.Since) >= toldFor
		}
		if m.Silent && !slices.ContainsFunc(members, replaced) {
			missed = append(missed, m)
		}
	}
	slices.SortFunc(missed, func(a, b query.Member) int { return b.Seen.Compare(a.Seen) })
	return missed
}

// lately returns a living timerd's reports of the last minutes. It returns none if there are more than a timerd writes:
// a producer of timers can write there too.
func lately[T any](m query.Member, of func(*schedule.Counts) []T) []T {
	if !m.Alive || m.Counts == nil || len(of(m.Counts)) > mostTold {
		return nil
	}
	return of(m.Counts)
}

// StepText describes a clock step: "back by 59s to 2026-11-20T09:00:00.003Z".
func StepText(step schedule.Step) string {
	direction := "forward"
	if step.By < 0 {
		direction = "back"
	}
	return fmt.Sprintf("%s by %s to %s", direction,
		diag.Duration((time.Duration(step.By) * time.Millisecond).Abs()), step.At.Time().UTC().Format(timeLayout))
}

// steps describes, by server, the steps of its clock that a living timerd has seen lately. If several timerds have seen
// steps, it uses the report of the timerd with the most.
func (f *facts) steps() map[string]string {
	said, most := map[string]string{}, map[string]int{}
	for _, m := range f.members {
		own := map[string][]string{}
		for _, step := range lately(m, func(c *schedule.Counts) []schedule.Step { return c.Steps }) {
			own[step.Server] = append(own[step.Server], StepText(step))
		}
		for server, steps := range own {
			if len(steps) > most[server] {
				said[server], most[server] = strings.Join(steps, ", "), len(steps)
			}
		}
	}
	return said
}
