package admin

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// takenWithin is how long a timerd has to take an audit on, or to show that it is at work.
	takenWithin = 10 * time.Second
	// askEvery is how often to look how far the audits are.
	askEvery = 250 * time.Millisecond
)

// Audited is how far the audit of a server is, or what came of it.
type Audited struct {
	Server string // of a cluster; empty for a single Redis
	schedule.AuditProgress
}

// ErrUnattended says that no timerd is alive which could audit.
var ErrUnattended = errors.New("no timerd is alive, and only timerds audit: start one, which audits at its start")

// Audit asks the timerds to audit every server of the schedule now, and returns once all have. It calls tell with how
// far they are. A server is missing if no timerd takes its audit on within some 10 s, or if one that did is silent or
// fails for as long: the error names it, and the results have the others. If ctx ends, the audits that have begun go
// on. An error may be ErrUnattended.
func Audit(ctx context.Context, s *schedule.Schedule, tell func([]Audited)) ([]Audited, error) {
	members, err := query.Members(ctx, s)
	if err == nil && !slices.ContainsFunc(members, func(m query.Member) bool { return m.Alive }) {
		return nil, ErrUnattended
	}
	a := audits{schedule: s, id: rand.Text(), of: map[string]*asked{}, read: time.Now()}
	defer a.forget(ctx)
	for {
		open, err := a.look(ctx)
		switch {
		case err == nil && !open:
			return a.list(), a.missing()
		case err == nil:
			a.read = time.Now()
			tell(a.list())
		case time.Since(a.read) > takenWithin, rights.Refused(err): // else it may pass, as a failover does
			return a.list(), err
		}
		if !backoff.Sleep(ctx, askEvery) {
			return a.list(), ctx.Err()
		}
	}
}

// audits are the audits of all servers that one caller has asked for.
type audits struct {
	schedule *schedule.Schedule
	id       string
	of       map[string]*asked // by the names of their nodes
	read     time.Time         // when their progress could be read last
}

// asked is the audit of one server. Another caller may have asked for one since: that is newer, and does as well.
type asked struct {
	id      string
	now     schedule.AuditProgress
	taken   bool
	beat    time.Time // when it was asked for, or the timerd showed last that it is at work
	fails   time.Time // since when its tries fail; zero if they do not
	given   bool      // given up
	renewed bool      // it was asked for once more
}

// look asks for the audit of each new server, and reports whether an audit is open.
func (a *audits) look(ctx context.Context) (open bool, err error) {
	nodes, err := a.schedule.UndatedNodes(ctx)
	if len(nodes) == 0 && err != nil {
		return false, fmt.Errorf("audit: %w", err)
	}
	seen, err := a.schedule.AskedAudits(ctx)
	if err != nil {
		return false, err
	}
	for _, node := range nodes {
		one := a.of[node.Name()]
		if one == nil {
			if err := a.schedule.AskAudit(ctx, node.Name(), a.id); err != nil {
				return false, err
			}
			one = &asked{id: a.id, beat: time.Now()}
			a.of[node.Name()] = one
		}
		if err := a.follow(ctx, node.Name(), one, seen); err != nil {
			return false, err
		}
		open = open || !one.now.Done && !one.given
	}
	return open, nil
}

// follow notes how far the audit of a node is. If its timerd is silent, another one is asked, once.
func (a *audits) follow(ctx context.Context, node string, one *asked, seen schedule.AskedAudits) error {
	if one.now.Done || one.given {
		return nil
	}
	if newer := seen.Of(node); !one.taken && newer != "" && newer != one.id {
		one.id = newer
	}
	now, taken := seen.Progress(node, one.id)
	if taken && (!one.taken || now.Beat != one.now.Beat) {
		one.beat = time.Now()
	}
	if taken {
		one.now, one.taken = now, true
	}
	switch {
	case one.now.Fault == "":
		one.fails = time.Time{}
	case one.fails.IsZero():
		one.fails = time.Now()
	case time.Since(one.fails) > takenWithin:
		one.given = true
		return nil
	}
	if time.Since(one.beat) < takenWithin {
		return nil
	}
	if !one.taken || one.renewed {
		one.given = true
		return nil
	}
	*one = asked{id: a.id + "-2", beat: time.Now(), renewed: true}
	return a.schedule.AskAudit(ctx, node, one.id)
}

// list returns the audits in the order of their servers.
func (a *audits) list() []Audited {
	list := make([]Audited, 0, len(a.of))
	for node, one := range a.of {
		list = append(list, Audited{node, one.now})
	}
	slices.SortFunc(list, func(x, y Audited) int { return strings.Compare(x.Server, y.Server) })
	return list
}

// missing returns an error that names the servers without a whole audit.
func (a *audits) missing() error {
	var wrong []error
	for _, one := range a.list() {
		name := ""
		if one.Server != "" {
			name = one.Server + ": "
		}
		switch {
		case !one.Done && one.Instance == "":
			wrong = append(wrong, fmt.Errorf("%sno timerd has taken the audit on within %s: start one, or a newer one", name, takenWithin))
		case !one.Done && one.Fault != "":
			wrong = append(wrong, fmt.Errorf("%sthe audit fails, and timerd goes on trying: %s", name, one.Fault))
		case !one.Done:
			wrong = append(wrong, fmt.Errorf("%stimerd %s has begun the audit and is silent: run this again", name, one.Instance))
		}
	}
	return errors.Join(wrong...)
}

// forget takes back this caller's requests.
func (a *audits) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for node, one := range a.of {
		if strings.HasPrefix(one.id, a.id) {
			_ = a.schedule.ForgetAudit(ctx, node, one.id) // it is forgotten by itself
		}
	}
}
