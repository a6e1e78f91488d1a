// Package holds keeps the timers of namespaces from being claimed, and releases them. It is what the command line and the Go
// client do, and what every timerd does for them: bring the list of holds to all servers, end holds whose time is over, and carry on resumes
// that were interrupted.
package holds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// MinFor is how long a hold lasts at least that ends by itself.
	MinFor = time.Second
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
	// liveFor is after what silence a timerd does not count as live.
	liveFor = 5 * time.Second
	// pollEvery is how often it is looked again at what has not happened yet.
	pollEvery = 100 * time.Millisecond
	// copyTimeout bounds one try to bring the list to the servers.
	copyTimeout = 2 * time.Second
	// replicaWait is how long a replica has to take a hold over.
	replicaWait = 500 * time.Millisecond
	// tries is how often a change is tried while others change the list.
	tries = 20
)

// ErrNotHeld says that there is no hold of just the namespace.
var ErrNotHeld = errors.New("not held")

// Holds holds and resumes namespaces of a schedule. Its methods may be called concurrently.
type Holds struct {
	schedule *schedule.Schedule
	instance string

	// Nodes returns the nodes of the schedule. Default: the schedule's own Nodes, which must have one caller at a time.
	Nodes func(context.Context) ([]*schedule.Node, error)
	// Logger gets who held and resumed what. Default: slog.Default().
	Logger *slog.Logger
	// OnList is called by Run with each list that it has read.
	OnList func(*schedule.HoldList)
}

// New returns the holds of a schedule. instance tells the caller from all others who may carry resumes on.
func New(s *schedule.Schedule, instance string) *Holds {
	return &Holds{schedule: s, instance: instance, Nodes: s.Nodes, Logger: slog.Default(), OnList: func(*schedule.HoldList) {}}
}

// Request says what to hold or to resume.
type Request struct {
	Namespace keys.Namespace
	By        string        // who asks, for others to read; empty: the user and the host of this process
	Reason    string        // of a hold; MaxReason bytes at most
	For       time.Duration // of a hold: when it ends by itself, MinFor at least; 0: not
	Kind      schedule.ResumeKind
	Rate      float64 // timers a second, for schedule.ResumeRate: MinRate to MaxRate
}

// Held is what came of a hold.
type Held struct {
	Hold schedule.Hold
	Was  bool // the namespace was held before, since when Hold says
	// Resumed is how the namespace was being resumed, which has ended: what was not released yet is held by the new hold, whose
	// length a shift counts; nil if it was not.
	Resumed *schedule.Resume
	// Missing names the timerds and servers that may still claim timers of the namespace. The hold stands; each timerd goes on
	// to bring it to those servers.
	Missing []string
	// Unreplicated names the servers of which no replica has the hold, so that a failover may lose it; it is not asked while
	// something is missing.
	Unreplicated []string
}

// Hold holds a namespace. When it returns without an error and with nothing missing, no timerd claims a timer of it any more.
// It waits 5 s at most for what is missing. A namespace that is held already stays so, since the same time. One that is being
// resumed is held anew, since now: the resume ends there, and what it has not released is held on. An error may wrap
// schedule.ErrTooManyHolds.
func (s *Holds) Hold(ctx context.Context, r Request) (Held, error) {
	var out Held
	deadline := time.Now().Add(confirmWithin)
	if len(r.Reason) > MaxReason {
		return out, fmt.Errorf("hold %s: the reason has %d bytes, at most %d are allowed: shorten it", r.Namespace, len(r.Reason), MaxReason)
	}
	list, err := s.change(ctx, func(l *schedule.HoldList) error {
		h := schedule.Hold{Namespace: r.Namespace, Since: l.Now, Reason: r.Reason, By: cmp.Or(r.By, whoami())}
		out.Was, out.Resumed = false, nil
		if was := l.Find(r.Namespace); was != nil && was.Lasts(l.Now) {
			h.Since, out.Was = was.Since, true
		} else if was != nil {
			out.Resumed = was.Resume
		}
		if r.For > 0 {
			h.Until = l.Now.Add(r.For)
		}
		out.Hold = h
		return s.schedule.PutHold(ctx, l, h)
	})
	if err != nil {
		return out, err
	}
	within, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	for {
		out.Missing = append(s.copy(within, list), s.whoCannot(within, list)...)
		list = s.bringForward(within, list, &out)
		if len(out.Missing) == 0 || time.Until(deadline) < leastTry || !sleep(ctx, pollEvery) {
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
		err = s.schedule.Renew(ctx, list)
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
	return append(missing, copyTo(ctx, nodes, list, copyTimeout, func(*schedule.Node, error) {})...)
}

// whoCannot names the living timerds that know no holds.
func (s *Holds) whoCannot(ctx context.Context, list *schedule.HoldList) (missing []string) {
	members, err := query.Members(ctx, s.schedule)
	if err != nil {
		return []string{fmt.Sprintf("timerds of which it is not known who they are: %v", err)}
	}
	for _, m := range members {
		if m.Alive && !m.Holds && list.Now.Time().Sub(m.Seen) < liveFor {
			missing = append(missing, fmt.Sprintf("timerd %s, whose version %s knows no holds", m.Instance, m.Version))
		}
	}
	return missing
}

// Unreplicated names the servers of which no replica has what was written to them by now.
func (s *Holds) Unreplicated(ctx context.Context) (without []string) {
	nodes, err := s.Nodes(ctx)
	if len(nodes) == 0 && err != nil {
		return []string{err.Error()}
	}
	var mu sync.Mutex
	err = schedule.AskNodes(ctx, nodes, 2*replicaWait, func(ctx context.Context, node *schedule.Node) error {
		ok, err := node.Replicated(ctx, replicaWait)
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

// View is a hold, and how many timers it holds.
type View struct {
	schedule.Hold
	// Held is how many are held that are due, those included that no claim has looked at yet; one under several holds counts
	// for each. It is nil if so many are owed or firing that not all of these were looked at.
	Held *int64
}

// List returns the holds, those included that are being resumed, in the order of their namespaces. It reads the names of all
// that is due.
func (s *Holds) List(ctx context.Context) ([]View, error) {
	if err := s.schedule.CheckMode(ctx); err != nil {
		return nil, err
	}
	list, err := s.schedule.Holds(ctx)
	if err != nil || len(list.Holds) == 0 {
		return nil, err
	}
	counts, cut := make([]int64, len(list.Holds)), false
	err = query.Names(ctx, s.schedule, query.Query{States: []query.State{query.StateHeld}}, func(p query.Page) bool {
		for _, timer := range p.Timers {
			for i, h := range list.Holds {
				if timer.State == query.StateHeld && h.Namespace.Match(timer.Key) {
					counts[i]++
				}
			}
		}
		cut = p.Cut
		return !p.Until.After(p.Now)
	})
	if err != nil {
		return nil, fmt.Errorf("count the held timers: %w", err)
	}
	views := make([]View, len(list.Holds))
	for i, h := range list.Holds {
		views[i].Hold = h
		if !cut {
			views[i].Held = &counts[i]
		}
	}
	return views, nil
}

// Progress is how far a resume is.
type Progress struct {
	Released int // by this caller, timers
	Held     int64
	Waits    string // for what, if for anything
	// Kept is how many timers stay held by other holds, KeptBy, once all others are released: the resume is kept, and applies when
	// these end. Of several resumes of a timer the narrowest namespace decides.
	Kept   int64
	KeptBy []keys.Namespace
}

// Resume ends the hold of a namespace and returns once all of its timers are released, unless other holds cover them. It tells
// of its progress, and at last of those that other holds keep. If it is interrupted, the timerds finish it. An error may wrap
// ErrNotHeld or ErrHeldAnew.
func (s *Holds) Resume(ctx context.Context, r Request, tell func(Progress)) error {
	var since schedule.Millis
	list, err := s.change(ctx, func(l *schedule.HoldList) error {
		was := l.Find(r.Namespace)
		if was == nil {
			return fmt.Errorf("%s is %w; timerd holds lists what is", r.Namespace, ErrNotHeld)
		}
		since = was.Since
		if was.Resume != nil && was.Resume.Kind == r.Kind && was.Resume.Rate == r.Rate {
			return nil // the times that were drawn stay
		}
		if r.Kind == schedule.ResumeDead { // others would publish the events
			if missing := s.whoCannot(ctx, l); len(missing) > 0 {
				return fmt.Errorf("resume %s: no dead letters come of it beside %s: update that first, or resume in another way",
					r.Namespace, strings.Join(missing, ", "))
			}
		}
		h := *was
		h.Resume = &schedule.Resume{Kind: r.Kind, Rate: r.Rate, At: l.Now, By: cmp.Or(r.By, whoami())}
		if was.Resume != nil {
			h.Resume.At = was.Resume.At
		}
		return s.schedule.PutHold(ctx, l, h)
	})
	if err != nil {
		return err
	}
	releaser := s.newReleaser()
	defer releaser.leave(ctx)
	var last Progress
	var stuck time.Time // since when nothing is left but what servers have that do not answer
	for {
		h := list.Find(r.Namespace)
		if h == nil {
			return nil
		}
		if h.Resume == nil || h.Since != since {
			return heldAnew(h, releaser.sum)
		}
		progress, err := releaser.advance(ctx, list)
		if err != nil {
			progress.Released, progress.Waits = releaser.sum, err.Error()
		}
		if err != nil && ctx.Err() != nil { // cut short: what it waited for is what it did before
			progress.Held, progress.Waits = last.Held, last.Waits
		}
		last = progress
		if progress.Kept, progress.KeptBy = releaser.kept(list, h); progress.Kept > 0 {
			progress.Released = releaser.sum
			tell(progress)
			return nil
		}
		tell(progress)
		if len(releaser.stuck[r.Namespace]) == 0 {
			stuck = time.Time{}
		} else {
			releaser.leave(ctx) // somebody else may reach them
			if stuck.IsZero() {
				stuck = time.Now()
			}
			if time.Since(stuck) > awayPatience {
				return releaser.stuckError(r.Namespace)
			}
		}
		if !sleep(ctx, pollEvery) {
			return ctx.Err()
		}
		if next, err := s.schedule.Holds(ctx); err == nil {
			list = next
		}
	}
}

// Run does what a timerd does for holds, until ctx ends.
func (s *Holds) Run(ctx context.Context) {
	releaser := s.newReleaser()
	defer releaser.leave(ctx)
	var known *schedule.HoldList
	var copied, sought time.Time
	failing := false
	for pause := time.Duration(0); sleep(ctx, pause); {
		pause = time.Second
		list, err := s.schedule.Holds(ctx)
		if err != nil {
			if !failing && ctx.Err() == nil {
				s.Logger.Warn("cannot read the holds; timers of the servers that can be reached go on as they were", "err", err)
			}
			failing = true
			continue
		}
		failing = false
		s.OnList(list)
		s.tell(known, list)
		changed := known == nil || known.Generation != list.Generation
		every := copyEvery
		if list.Generation == 0 { // copies may be left of a list that was lost as a whole
			every = lostEvery
		}
		if changed || time.Since(copied) > every {
			if missing := s.copy(ctx, list); len(missing) == 0 {
				copied = time.Now()
			} else {
				copied = time.Now().Add(copyAgain - every)
			}
			if list.Outdated() {
				s.Logger.Warn("the list of holds is older than what timers are claimed by, as after a failover that lost it: what it says holds", "holds", len(list.Holds))
				if err := s.schedule.Renew(ctx, list); err == nil {
					copied = time.Time{}
				}
			}
			if changed || len(list.Holds) == 0 || time.Since(sought) > lostEvery {
				releaser.orphans, sought = true, time.Now()
			}
		}
		known = list
		if releaser.idle(list) {
			releaser.leave(ctx)
			continue
		}
		progress, err := releaser.advance(ctx, list)
		switch {
		case releaser.isStuck(list):
			releaser.leave(ctx) // somebody else may reach them
		case err == nil && progress.Waits == "":
			pause = pollEvery
		}
	}
}

// copyEvery is how often all copies of the list are compared with it although it has not changed: one may be lost.
const copyEvery = 10 * time.Second

// lostEvery is how often timers are looked for that are held though no hold covers them, where nothing else tells of them: a
// failover of one of several servers may have lost their release, or the list but not its copies.
const lostEvery = time.Minute

// tell logs what has changed in the list of holds.
func (s *Holds) tell(before, now *schedule.HoldList) {
	if before == nil {
		before = &schedule.HoldList{}
	}
	for _, h := range now.Holds {
		was, name := before.Find(h.Namespace), h.Namespace.String()
		if was == nil || was.Since != h.Since || was.Until != h.Until || was.Resume != nil && h.Resume == nil {
			s.Logger.Info("timers are held", "namespace", name, "since", h.Since.Time(), "until", showUntil(h), "reason", h.Reason, "by", h.By)
		}
		if h.Resume != nil && (was == nil || was.Resume == nil || *was.Resume != *h.Resume) {
			s.Logger.Info("held timers are being released", "namespace", name, "how", string(h.Resume.Kind), "rate", h.Resume.Rate,
				"since", h.Resume.At.Time(), "by", h.Resume.By)
		}
	}
	for _, h := range before.Holds {
		if now.Find(h.Namespace) == nil {
			s.Logger.Info("held timers are released", "namespace", h.Namespace.String())
		}
	}
}

func showUntil(h schedule.Hold) string {
	if h.Until == 0 {
		return "resumed"
	}
	return h.Until.Time().Format(time.RFC3339)
}

// sleep waits, and tells whether ctx goes on.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return ctx.Err() == nil
	}
}

// expired returns the holds whose time is over.
func expired(l *schedule.HoldList) []schedule.Hold {
	return slices.DeleteFunc(slices.Clone(l.Holds), func(h schedule.Hold) bool { return h.Resume != nil || h.Lasts(l.Now) })
}

// ParseRate reads a number of timers a second, minute or hour, such as 200/s, and returns it by the second.
func ParseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	per, known := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if !known || err != nil || !(n/per >= MinRate && n/per <= MaxRate) {
		return 0, errors.New("want a number of timers and a unit, s, m or h, such as 200/s; from 1/m to 1000000/s")
	}
	return n / per, nil
}
