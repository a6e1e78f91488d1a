package status

import (
	"slices"
	"strings"
	"unicode"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/schedule"
)

// What a timerd says of channels has at most so many, each of at most so many bytes.
const (
	mostGrants   = 100
	longestGrant = 512
)

// checkRights reports the rights that the user lacks, and the channels that living timerds say they may not hear: their user may be
// another one, and only they know their namespaces.
func (r *Redis) checkRights(nodes []*schedule.Node, members []query.Member, at diag.Clients, p *diag.Findings) {
	all := slices.Clone(r.Lacking)
	for _, m := range members {
		if told := deaf(m); len(told.Channels) > 0 {
			r.addDeaf(told, all)
		}
	}
	for i, node := range nodes {
		if f := all[i].Finding(hears(members)); f != nil {
			if node.Name() != "" {
				f.Text = node.Name() + ": " + f.Text
			}
			one := diag.Findings{*f}
			at.On(node.Name()).Address(one)
			*p = append(*p, one...)
		}
	}
	*p = append(*p, r.Deaf...)
}

// addDeaf adds what a timerd may not hear to what is known of its user if there is one server, and otherwise as a problem of its own.
func (r *Redis) addDeaf(told rights.Lacking, known []rights.Lacking) {
	told.Channels = slices.DeleteFunc(told.Channels, func(grant string) bool {
		return slices.ContainsFunc(known, func(l rights.Lacking) bool { return l.User == told.User && slices.Contains(l.Channels, grant) })
	})
	if len(known) == 1 && known[0].User == told.User {
		known[0].Channels = slices.Concat(known[0].Channels, told.Channels)
		return
	}
	if f := told.Finding(true); f != nil && !slices.Contains(r.Deaf, *f) {
		r.Deaf.Add(*f)
	}
}

// deaf returns the channels that a living timerd says it may not hear. A producer of timers can write where timerds say so: what no
// timerd would say is left out.
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
