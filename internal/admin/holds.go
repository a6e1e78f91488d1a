// Package admin has the operators' actions on timers, each written once: hold and resume namespaces, cancel, move and
// fire timers, replay and purge dead letters, make timers repeat as a file says. The command line, the console and the
// public client/admin only read the request and show the result. The package also has each timerd's own work for holds:
// copy the list of holds to all servers, end holds whose time is over, and finish interrupted resumes.
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
	// MinHold is the shortest duration of a hold that ends by itself.
	MinHold = time.Second
	// MinRate is the least rate of a resume, in timers a second.
	MinRate = 1.0 / 60
	// MaxRate is the greatest rate of a resume, in timers a second.
	MaxRate = 1e6
	// MaxReason limits the reason of a hold, in bytes: every timerd reads it each second.
	MaxReason = 1024
)

const (
	// confirmWithin limits Hold's wait for the last claim; Hold as a whole then takes some 5 s at most.
	confirmWithin = 4 * time.Second
	// leastTry is the least time for one try to copy the list to the servers.
	leastTry = time.Second
	// pollEvery is the interval of Hold's polls.
	pollEvery = 100 * time.Millisecond
	// replicaWait is the time a replica has to take over a hold.
	replicaWait = 500 * time.Millisecond
	// tries limits the tries of a change while others change the list.
	tries = 20
)

// ErrNotHeld means that no hold has exactly this namespace.
var ErrNotHeld = errors.New("not held")

// ErrHeldAnew means that somebody held the namespace again during its resume: its unreleased timers stay on hold.
var ErrHeldAnew = errors.New("held again during the resume")

// Holds holds and resumes namespaces of a schedule. Its methods may be called concurrently.
type Holds struct {
	schedule *schedule.Schedule

	// Instance identifies the caller among all that may carry out resumes. Default: a random one.
	Instance string
	// Nodes returns the nodes of the schedule. Default: the schedule's own UndatedNodes.
	Nodes func(context.Context) ([]*schedule.Node, error)
	// Logger gets each hold and resume, with its author. Default: slog.Default().
	Logger *slog.Logger
	// OnList is called by Run with each list that it has read.
	OnList func(*schedule.HoldList)
}

// NewHolds returns the holds of a schedule, for a command or a program with the Go client.
func NewHolds(s *schedule.Schedule) *Holds {
	return &Holds{
		schedule: s, Instance: "caller-" + rand.Text(), Nodes: s.UndatedNodes, Logger: slog.Default(),
		OnList: func(*schedule.HoldList) {},
	}
}

// Held is the result of a hold.
type Held struct {
	Hold schedule.Hold
	Was  bool // the namespace was on hold already, since Hold.Since
	// Resumed is the resume that this hold ended: its unreleased timers are under the new hold, whose length a shift
	// counts. Nil if there was none.
	Resumed *schedule.Resume
	// Missing names the servers from which timers of the namespace may still be claimed. The hold stands; the timerds
	// keep copying it to them.
	Missing []string
	// Unreplicated names the servers without a replica that has the hold, so that a failover may lose it. It is empty
	// while Missing is not.
	Unreplicated []string
}

// Hold holds a namespace. Once it has returned without an error and with nothing missing, no timerd claims a timer of
// the namespace. It waits 5 s at most for missing servers. A namespace already on hold keeps its time. Holding a
// namespace during its resume ends the resume: its unreleased timers are on hold from now. An error may wrap
// schedule.ErrTooManyHolds.
//
// Of asked, only Namespace, Reason and By are used; an empty By becomes the user and the host of this process. The hold
// ends by itself after lasts, at least MinHold; 0 means never.
func (s *Holds) Hold(ctx context.Context, asked schedule.Hold, lasts time.Duration) (Held, error) {
	var out Held
	deadline := time.Now().Add(confirmWithin)
	if len(asked.Reason) > MaxReason {
		return out, fmt.Errorf("hold %s: the reason has %d bytes, at most %d are allowed: shorten it", asked.Namespace,
			len(asked.Reason), MaxReason)
	}
	list, err := s.change(ctx, func(l *schedule.HoldList) error {
		h := schedule.Hold{Namespace: asked.Namespace, Since: l.Now, Reason: asked.Reason,
			By: cmp.Or(asked.By, whoami())}
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

// If a copy of the list is newer than list, bringForward adds its server to missing. It returns the list to go on with:
// a later change by somebody else, or list itself, renewed, if a failover had lost the change. The hold is not certain
// until that list is copied too.
func (s *Holds) bringForward(ctx context.Context, list *schedule.HoldList, out *Held) *schedule.HoldList {
	if !list.Outdated() {
		return list
	}
	out.Missing = append(out.Missing, "servers with a newer list of holds")
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

// change reads the list and changes it, and tries again if somebody else changes it meanwhile. It refuses to work on a
// single node of a cluster, because it would see only some of the timers and treat them as all.
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

// copy brings a list to all servers. It returns the servers without it.
func (s *Holds) copy(ctx context.Context, list *schedule.HoldList) (missing []string) {
	nodes, err := s.Nodes(ctx)
	if _, away := errors.AsType[*schedule.AwayError](err); err != nil && !away {
		// servers that are away are named below
		missing = append(missing, fmt.Sprintf("servers of the schedule: %v", err))
	}
	return append(missing, copyTo(ctx, nodes, list, passTimeout, func(*schedule.Node, error) {})...)
}

// Unreplicated names the servers without a replica that has everything written to them so far.
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

// replicated reports whether a replica of a node's server has everything written to it before. It waits replicaWait at
// most.
func replicated(ctx context.Context, node *schedule.Node) (bool, error) {
	conn := node.Server().Conn()
	defer func() { _ = conn.Close() }() // back to the pool
	// WAIT covers the writes up to the connection's last command.
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
