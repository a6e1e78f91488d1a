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
	// takenWithin is the time a timerd has to take on an audit, or to show progress.
	takenWithin = 10 * time.Second
	// askEvery is the interval of looks at the audits' progress.
	askEvery = 250 * time.Millisecond
)

// Audited is the progress of one server's audit, or its result.
type Audited struct {
	Server string // of a cluster; empty for a single Redis
	schedule.AuditProgress
}

// ErrUnattended means that no timerd is alive to audit.
var ErrUnattended = errors.New("no timerd is alive, and only timerds audit: start one, which audits at its start")

// Audit asks the timerds to audit every server of the schedule now, and returns once all audits have ended. It calls
// tell with their progress. A server is missing if no timerd takes on its audit within some 10 s, or if the auditing
// timerd is silent or fails for as long: the error names the server, and the results have the others. If ctx ends,
// audits already begun go on. An error may be ErrUnattended.
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
		case time.Since(a.read) > takenWithin, rights.Refused(err): // any other error may pass, as a failover does
			return a.list(), err
		}
		if !backoff.Sleep(ctx, askEvery) {
			return a.list(), ctx.Err()
		}
	}
}

// audits are the audits of all servers that one caller has requested.
type audits struct {
	schedule *schedule.Schedule
	id       string
	of       map[string]*asked // by the names of their nodes
	read     time.Time         // time of the last successful read of their progress
}

// asked is the audit of one server. Another caller's later request replaces it, and serves as well.
type asked struct {
	id      string
	now     schedule.AuditProgress
	taken   bool
	beat    time.Time // time of the request, or of the timerd's last sign of work
	fails   time.Time // since when its tries have been failing; zero if they do not
	given   bool      // given up
	renewed bool      // a second request was made
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

// follow notes the progress of a node's audit. If the auditing timerd is silent, follow asks another timerd, once.
func (a *audits) follow(ctx context.Context, node string, one *asked, seen schedule.AskedAudits) error {
	if one.now.Done || one.given {
		return nil
	}
	now, taken := seen.Progress(node, one.id)
	if newer := seen.Of(node); !now.Done && newer != "" && newer != one.id {
		// A timerd reports on the newest request that it received, also with an audit begun for an older one.
		if progress, told := seen.Progress(node, newer); told || !one.taken {
			one.id, now, taken = newer, progress, told
		}
	}
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
			wrong = append(wrong, fmt.Errorf("%sno timerd has begun the audit within %s: start one, or a newer one",
				name, takenWithin))
		case !one.Done && one.Fault != "":
			wrong = append(wrong, fmt.Errorf("%sthe audit fails, and timerd keeps trying: %s", name, one.Fault))
		case !one.Done:
			wrong = append(wrong,
				fmt.Errorf("%stimerd %s has begun the audit and gives no sign of work: run this again", name,
					one.Instance))
		}
	}
	return errors.Join(wrong...)
}

// forget withdraws this caller's requests.
func (a *audits) forget(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for node, one := range a.of {
		if strings.HasPrefix(one.id, a.id) {
			_ = a.schedule.ForgetAudit(ctx, node, one.id) // an unanswered request expires by itself
		}
	}
}
