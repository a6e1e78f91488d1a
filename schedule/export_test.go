package schedule

import (
	"context"
	"strings"
	"time"
)

// ClaimInFull is Claim by the full look.
func (n *Node) ClaimInFull(ctx context.Context, r ClaimRequest, lease time.Duration) ClaimResult {
	r.full = true
	return n.claimAll(ctx, []ClaimRequest{r}, lease)[0]
}

// ClaimUsually is Claim without planning, and reports whether all was as usual.
func (n *Node) ClaimUsually(ctx context.Context, r ClaimRequest, lease time.Duration) (c ClaimResult, usual bool) {
	c = n.claimAll(ctx, []ClaimRequest{r}, lease)[0]
	return c, !c.full
}

// MoveTwice is Move by a call that a client repeats, because it has lost the first reply.
func (s *Schedule) MoveTwice(ctx context.Context, m Move) (results []MoveResult) {
	call := Call{Partition: s.Partition(m.Key.String()), Args: m.args()}
	for range 2 {
		results = append(results, moveResult(ReadReply(s.Run(ctx, s.step("set_time"), []Call{call})[0], 1, 1)))
	}
	return results
}

// HearSince sets the time since which every event was heard; StartHearing sets it to now.
func (n *Node) HearSince(since Millis) { n.hearSince(since) }

// Unchanged makes the known masters of a cluster count as unchanged for long. asked reports whether all slots were
// asked for since.
func (ix *Index) Unchanged() (asked func() bool) {
	c := ix.topology.(*passing).topology.(*cluster)
	l := *c.last.Load()
	l.changed = time.Time{}
	c.last.Store(&l)
	return func() bool { return c.last.Load() != &l }
}

// UnusedSince makes unused libraries of steps count as unused for so much longer.
func (n *Node) UnusedSince(longer time.Duration) {
	for name := range n.unusedSince {
		n.unusedSince[name] = n.unusedSince[name].Add(-longer)
	}
}

// ForgetRefusal has the node give the library of steps to a server that refused it.
func (n *Node) ForgetRefusal() { n.stepsRefused = time.Time{} }

// StepsName returns the name of the library of steps.
func (ix *Index) StepsName() string { return ix.scripts.Load().steps().name }

// ReplaceInLua replaces a text in the libraries of the schedule, which must have it.
func (ix *Index) ReplaceInLua(text, with string) {
	old := ix.scripts.Load()
	s := newScripts(old.maxPayload, ix.cluster, ix.db)
	library, steps := s.library(), s.steps()
	if !strings.Contains(library+steps.text, text) {
		panic("there is no " + text)
	}
	name := steps.name[:len(steps.name)-1] + "z"
	changed := stepLibrary{name, strings.ReplaceAll(strings.ReplaceAll(steps.text, text, with), steps.name, name)}
	s.library = func() string { return strings.ReplaceAll(library, text, with) }
	s.steps = func() stepLibrary { return changed }
	ix.scripts.Store(s)
}
