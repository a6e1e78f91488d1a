package status

import (
	"slices"
	"strings"
	"unicode"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
)

// Limits of the channels in a heartbeat, and of the bytes of each.
const (
	mostGrants   = 100
	longestGrant = 512
)

// checkRights reports the user's missing rights, and the channels that living timerds report as refused: their user may
// be another one, and only they know their namespaces.
func checkRights(f *facts, p *diag.Findings) {
	own, others := f.rights()
	*p = slices.Concat(own, others)
}

// rights returns the findings about the user of Sources on each server, and the problems of other users.
func (f *facts) rights() (own, others diag.Findings) {
	all, others := f.lacking()
	for i := range f.servers {
		s := &f.servers[i]
		one := diag.Findings{}
		if found := all[i].Finding(hears(f.members)); found != nil {
			one.Add(*found)
		} else if s.unknown != nil && s.refused == nil && s.broken == nil {
			one.Warn("run this again", "cannot read the user's rights: %v", s.unknown)
		} else if all[i].User != "" {
			one.OK("%s may do all that timerd does %s", all[i].Name(), f.touched())
		}
		for j := range one {
			if s.node.Name() != "" {
				one[j].Text = s.node.Name() + ": " + one[j].Text
			}
		}
		f.Clients.On(s.node.Name()).Address(one)
		own = append(own, one...)
	}
	return own, others
}

// touched names the keys and channels that the rights are for.
func (f *facts) touched() string {
	if len(f.Needs.Namespaces) == 0 {
		return "on its index"
	}
	return "on its index and in " + f.Needs.Namespaces.String()
}

// lacking returns the missing rights on each server, with the timerds' reports on the same user, and the problems of
// other users.
func (f *facts) lacking() (all []rights.Lacking, others diag.Findings) {
	for i := range f.servers {
		all = append(all, f.servers[i].lacking)
	}
	for _, m := range f.members {
		told := deaf(m)
		told.Channels = slices.DeleteFunc(told.Channels, func(grant string) bool {
			return slices.ContainsFunc(all, func(l rights.Lacking) bool {
				return l.User == told.User &&
					slices.Contains(l.Channels, grant)
			})
		})
		if len(told.Channels) == 0 {
			continue
		}
		if len(all) == 1 && all[0].User == told.User {
			all[0].Channels = slices.Concat(all[0].Channels, told.Channels)
		} else if found := told.Finding(true); !slices.Contains(others, *found) {
			others.Add(*found)
		}
	}
	return all, others
}

// deaf returns the channels that a living timerd reports as refused. A producer of timers can write such reports:
// impossible ones are left out.
func deaf(m query.Member) rights.Lacking {
	if !m.Alive || m.Counts == nil || len(m.Counts.Deaf) > mostGrants {
		return rights.Lacking{}
	}
	l := rights.Lacking{User: m.Counts.User}
	if l.User == "" || diag.Word(l.User) != l.User {
		l.User = rights.UnknownUser
	}
	for _, grant := range m.Counts.Deaf {
		odd := func(r rune) bool { return !unicode.IsPrint(r) }
		if strings.HasPrefix(grant, "&") && !strings.ContainsFunc(grant, odd) && len(grant) <= longestGrant {
			l.Channels = append(l.Channels, grant)
		}
	}
	return l
}
