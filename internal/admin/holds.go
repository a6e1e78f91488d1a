// Package admin is what operators do to timers, each action once: hold and resume namespaces, cancel, move and fire timers, replay and
// purge dead letters, make timers repeat as a file says. The command line, the console and the public client/admin read what is asked
// for, and show what came of it. It is also what every timerd does for holds: bring the list of holds to all servers, end holds whose
// time is over, and carry on resumes that were interrupted.
package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// MinHold is how long a hold lasts at least that ends by itself.
	MinHold = time.Second
	// MinRate is how many timers a second a resume at a rate releases at least.
	MinRate = 1.0 / 60
	// MaxRate is how many it releases at most.
	MaxRate = 1e6
	// MaxReason is how many bytes the reason of a hold may have: every timerd reads it each second.
	MaxReason = 1024
)

const (
	// confirmWithin is how long Hold waits until nobody claims any more: with what it takes besides some 5 s.
	confirmWithin = 4 * time.Second
	// leastTry is how long a try to bring the list to the servers has at least.
	leastTry = time.Second
	// pollEvery is how often it is looked again at what has not happened yet.
	pollEvery = 100 * time.Millisecond
	// replicaWait is how long a replica has to take a hold over.
	replicaWait = 500 * time.Millisecond
	// tries is how often a change is tried while others change the list.
	tries = 20
)

// ErrNotHeld says that there is no hold of just the namespace.
var ErrNotHeld = errors.New("not held")

// ErrHeldAnew says that somebody has held the namespace anew while it was being resumed: what was not released by then stays held.
var ErrHeldAnew = errors.New("held again meanwhile")

// Holds holds and resumes namespaces of a schedule. Its methods may be called concurrently.
type Holds struct {
	schedule *schedule.Schedule

	// Instance tells the caller from all others who may carry resumes on. Default: one of its own.
	Instance string
	// Nodes returns the nodes of the schedule. Default: the schedule's own UndatedNodes.
	Nodes func(context.Context) ([]*schedule.Node, error)
	// Logger gets who held and resumed what. Default: slog.Default().
	Logger *slog.Logger
	// OnList is called by Run with each list that it has read.
	OnList func(*schedule.HoldList)
}

// NewHolds returns the holds of a schedule, as a command has them, or a program with the Go client.
func NewHolds(s *schedule.Schedule) *Holds {
	return &Holds{
		schedule: s, Instance: "caller-" + rand.Text(), Nodes: s.UndatedNodes, Logger: slog.Default(), OnList: func(*schedule.HoldList) {},
	}
}

// Held is what came of a hold.
type Held struct {
	Hold schedule.Hold
	Was  bool // the namespace was held before, since when Hold says
	// Resumed is how the namespace was being resumed, which has ended: what was not released yet is held by the new hold, whose
	// length a shift counts; nil if it was not.
	Resumed *schedule.Resume
	// Missing names the servers from which timers of the namespace may still be claimed. The hold stands; each timerd goes on
	// to bring it to them.
	Missing []string
	// Unreplicated names the servers of which no replica has the hold, so that a failover may lose it; it is not asked while
	// something is missing.
	Unreplicated []string
}

// Hold holds a namespace. When it returns without an error and with nothing missing, no timerd claims a timer of it any more.
// It waits 5 s at most for what is missing. A namespace that is held already stays so, since the same time. One that is being
// resumed is held anew, since now: the resume ends there, and what it has not released is held on. An error may wrap
// schedule.ErrTooManyHolds.
//
// Of asked, Namespace, Reason and By count; without a By it is the user and the host of this process. The hold ends by itself after
// lasts, MinHold at least; 0: it does not.
func (s *Holds) Hold(ctx context.Context, asked schedule.Hold, lasts time.Duration) (Held, error) {
	var out Held
	deadline := time.Now().Add(confirmWithin)
	if len(asked.Reason) > MaxReason {
		return out, fmt.Errorf("hold %s: the reason has %d bytes, at most %d are allowed: shorten it", asked.Namespace, len(asked.Reason), MaxReason)
	}
	list, err := s.change(ctx, func(l *schedule.HoldList) error {
		h := schedule.Hold{Namespace: asked.Namespace, Since: l.Now, Reason: asked.Reason, By: cmp.Or(asked.By, whoami())}
		out.Was, out.Resumed = false, nil
		if was := l.Find(asked.Namespace); was != nil && was.Lasts(l.Now) {
			h.Since, out.Was = was.Since, true
		} else if was != nil {
			out.Resumed = was.Resume
		}
		if lasts > 0 {
			h.Until, h.For = l.Now.Add(lasts), lasts.Milliseconds()
		}
		out.Hold = h
		return l.Put(ctx, h)
	})
	if err != nil {
		return out, err
	}
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for {
		out.Missing = s.copy(within, list)
		list = s.bringForward(within, list, &out)
		if len(out.Missing) == 0 || time.Until(deadline) < leastTry || !backoff.Sleep(ctx, pollEvery) {
			break
		}
	}
	if len(out.Missing) == 0 {
		out.Unreplicated = s.Unreplicated(ctx)
	}
	return out, ctx.Err()
}

// bringForward returns the list to go on with where a copy of it is newer: what somebody else has made of it since, or, if it
// was lost in a failover, the same one made newer. Until that is copied too the hold is not certain.
func (s *Holds) bringForward(ctx context.Context, list *schedule.HoldList, out *Held) *schedule.HoldList {
	if !list.Outdated() {
		return list
	}
	out.Missing = append(out.Missing, "servers that have a newer list of holds")
	next, err := s.schedule.Holds(ctx)
	if err == nil && next.Generation > list.Generation {
		return next
	}
	if err == nil {
		err = list.Renew(ctx)
	}
	if err != nil {
		out.Missing = append(out.Missing, err.Error())
	}
	return list
}

// change reads the list and changes it, again if somebody else has changed it meanwhile. In a node of a cluster that is taken
// for a single server it changes nothing: there it would see some of the timers, and take them for all.
func (s *Holds) change(ctx context.Context, change func(*schedule.HoldList) error) (*schedule.HoldList, error) {
	if err := s.schedule.CheckMode(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	for n := 1; ; n++ {
		list, err := s.schedule.Holds(ctx)
		if err != nil {
			return nil, fmt.Errorf("nothing is changed: %w", err)
		}
		err = change(list)
		if err == nil || !errors.Is(err, schedule.ErrHoldsChanged) || n == tries || ctx.Err() != nil {
			return list, err
		}
	}
}

// copy brings a list to all servers. It returns what has not got it.
func (s *Holds) copy(ctx context.Context, list *schedule.HoldList) (missing []string) {
	nodes, err := s.Nodes(ctx)
	if _, away := errors.AsType[*schedule.AwayError](err); err != nil && !away { // else they are named below
		missing = append(missing, fmt.Sprintf("servers of the schedule: %v", err))
	}
	return append(missing, copyTo(ctx, nodes, list, passTimeout, func(*schedule.Node, error) {})...)
}

// Unreplicated names the servers of which no replica has what was written to them by now.
func (s *Holds) Unreplicated(ctx context.Context) (without []string) {
	nodes, err := s.Nodes(ctx)
	if len(nodes) == 0 && err != nil {
		return []string{err.Error()}
	}
	var mu sync.Mutex
	err = schedule.AskNodes(ctx, nodes, 2*replicaWait, func(ctx context.Context, node *schedule.Node) error {
		ok, err := replicated(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		if err == nil && !ok {
			without = append(without, node.Server().Options().Addr)
		}
		return err
	})
	if err != nil {
		without = append(without, err.Error())
	}
	slices.Sort(without)
	return without
}

// replicated tells whether a replica of a node's server has everything that was written to it before. It waits replicaWait at most.
func replicated(ctx context.Context, node *schedule.Node) (bool, error) {
	conn := node.Server().Conn()
	defer func() { _ = conn.Close() }() // back to the pool
	// The server waits for what it had written when the connection's last command was run.
	if err := conn.Ping(ctx).Err(); err != nil {
		return false, fmt.Errorf("ask %s for its replicas: %w", node.Server().Options().Addr, err)
	}
	replicas, err := conn.Wait(ctx, 1, replicaWait).Result()
	if err != nil {
		return false, fmt.Errorf("wait for a replica of %s: %w", node.Server().Options().Addr, err)
	}
	return replicas > 0, nil
}

// whoami returns user@host, for others to read.
func whoami() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
