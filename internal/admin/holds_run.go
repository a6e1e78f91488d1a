package admin

import (
	"context"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/schedule"
)

// Run does a timerd's work for holds, until ctx ends.
func (s *Holds) Run(ctx context.Context) {
	releaser := s.newReleaser()
	defer releaser.leave(ctx)
	var known *schedule.HoldList
	var copied, sought time.Time
	failing := false
	for pause := time.Duration(0); backoff.Sleep(ctx, pause); {
		if pause = time.Second; s.schedule.IsVirtual() {
			pause = pollEvery // its clock may move a day in a second
		}
		list, err := s.schedule.Holds(ctx)
		if err != nil {
			if !failing && ctx.Err() == nil {
				s.Logger.Warn("cannot read the list of holds; reachable servers keep their copies", "err", err)
			}
			failing = true
			continue
		}
		failing = false
		s.OnList(list)
		s.logChanges(known, list)
		changed := known == nil || known.Generation != list.Generation
		every := copyEvery
		if list.Generation == 0 { // the list is empty or lost; copies of a lost list restore it
			every = lostEvery
		}
		if changed || time.Since(copied) > every {
			if missing := s.copy(ctx, list); len(missing) == 0 {
				copied = time.Now()
			} else {
				copied = time.Now().Add(copyAgain - every)
			}
			if list.Outdated() {
				s.Logger.Warn("the list of holds is older than its copies, as after a failover; using the list",
					"holds", len(list.Holds))
				if err := list.Renew(ctx); err == nil {
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
			releaser.leave(ctx) // another timerd may reach the silent servers
		case err == nil && progress.Waits == "":
			pause = pollEvery
		}
	}
}

// copyEvery is the interval at which all copies are compared with a list that has not changed, because a copy may be
// lost.
const copyEvery = 10 * time.Second

// lostEvery is the interval of searches for timers on hold that no hold covers. Nothing else finds such timers. They
// exist after the failover of a server that lost their release, or that lost the list but not the copies of the list.
const lostEvery = time.Minute

// logChanges logs the changes of the list of holds.
func (s *Holds) logChanges(before, now *schedule.HoldList) {
	if before == nil {
		before = &schedule.HoldList{}
	}
	for _, h := range now.Holds {
		was, name := before.Find(h.Namespace), h.Namespace.String()
		if was == nil || was.Since != h.Since || was.Until != h.Until || was.Resume != nil && h.Resume == nil {
			s.Logger.Info("namespace on hold", "namespace", name, "since", h.Since.Time(), "until", showUntil(h),
				"reason", h.Reason, "by", h.By)
		}
		if h.Resume != nil && (was == nil || was.Resume == nil || *was.Resume != *h.Resume) {
			s.Logger.Info("releasing timers on hold", "namespace", name, "how", string(h.Resume.Kind), "rate",
				h.Resume.Rate,
				"since", h.Resume.At.Time(), "by", h.Resume.By)
		}
	}
	for _, h := range before.Holds {
		if now.Find(h.Namespace) == nil {
			s.Logger.Info("timers on hold are released", "namespace", h.Namespace.String())
		}
	}
}

func showUntil(h schedule.Hold) string {
	if h.Until == 0 {
		return "resumed"
	}
	return h.Until.Time().Format(time.RFC3339)
}

// expired returns the holds whose time is over.
func expired(l *schedule.HoldList) []schedule.Hold {
	return slices.DeleteFunc(slices.Clone(l.Holds), func(h schedule.Hold) bool {
		return h.Resume != nil ||
			h.Lasts(l.Now)
	})
}
