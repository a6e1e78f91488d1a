package admin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// roundFor limits one round of releases.
	roundFor = 400 * time.Millisecond
	// releaseLead is the lead with which a resume at a rate releases timers before their drawn times. It is longer than
	// other timerds need to notice that the releasing one is gone.
	releaseLead = 5 * time.Second
	// drawFor is the span of times drawn at once. They are lost if the timerd that drew them ends.
	drawFor = 250 * time.Millisecond
)

// releaser carries out resumes. Its state only saves work; nothing else depends on it.
type releaser struct {
	servers
	orphans bool // timers may be on hold without a hold that covers them
	taken   bool
	had     time.Time // when the last turn was had, or this releaser was made
	passes  map[keys.Namespace]*pass
	sum     int
	stuck   map[keys.Namespace][]string // the servers that a resume still waits for, without an answer
}

// pass goes through the held timers of all partitions once.
type pass struct {
	generation int64
	resume     schedule.Resume // the resume of its times
	at         map[keys.Partition]schedule.HeldAt
	ended      map[keys.Partition]bool
	released   int
	unsure     bool  // a finished partition may have new timers on hold
	kept       int64 // timers that other holds cover
	waits      bool  // nothing to release until the list of holds changes
	times      schedule.Draw
	lastTime   schedule.Millis // the latest time drawn
}

func newPass(generation int64, resume schedule.Resume) *pass {
	return &pass{generation: generation, resume: resume, at: map[keys.Partition]schedule.HeldAt{},
		ended: map[keys.Partition]bool{}}
}

func (s *Holds) newReleaser() *releaser {
	return &releaser{servers: servers{Holds: s, silent: map[*schedule.Node]time.Time{}}, had: time.Now(),
		passes: map[keys.Namespace]*pass{}, stuck: map[keys.Namespace][]string{}}
}

// idle reports whether there is nothing to release.
func (r *releaser) idle(l *schedule.HoldList) bool {
	return !r.seeks(l) && !r.releases(l) && len(expired(l)) == 0 && len(l.MadeAhead()) == 0
}

// seeks reports whether timers on hold without a hold are to be looked for. A hold of all namespaces leaves none, and
// its pass has the name of theirs.
func (r *releaser) seeks(l *schedule.HoldList) bool {
	return r.orphans && l.Find(keys.Namespace{}) == nil
}

// releases reports whether a resume has work to do, beyond waiting for other holds to end.
func (r *releaser) releases(l *schedule.HoldList) bool {
	return slices.ContainsFunc(l.Holds, func(h schedule.Hold) bool {
		return h.Resume != nil &&
			!r.waits(l, h.Namespace)
	})
}

// A resume whose timers are all under other holds stays in the list of holds: it applies once these end. Until the list
// changes, there is nothing to do for it.

// waits reports whether other holds cover all timers that a resume still has to release.
func (r *releaser) waits(l *schedule.HoldList, n keys.Namespace) bool {
	p := r.passes[n]
	return p != nil && p.waits && p.generation == l.Generation
}

// kept returns the number of a resume's timers that other holds keep, and names these holds. It returns none unless the
// resume only waits for other holds.
func (r *releaser) kept(l *schedule.HoldList, h *schedule.Hold) (timers int64, by []keys.Namespace) {
	if !r.waits(l, h.Namespace) {
		return 0, nil
	}
	for _, o := range l.Keeping(h) {
		by = append(by, o.Namespace)
	}
	return r.passes[h.Namespace].kept, by
}

// leave ends this caller's turn, so that another can carry on at once.
func (r *releaser) leave(ctx context.Context) {
	if r.taken {
		r.turn().leave(ctx, r.Logger)
		r.taken = false
	}
}

// turn returns this caller's turn at the resumes.
func (r *releaser) turn() turn { return turn{r.schedule, keys.Single.Resuming(), r.Instance} }

// aloneAfter is the time without a turn after which a command carries out its own resume: another one may be busy for
// hours with one at a rate.
const aloneAfter = 2 * turnFor

// errReleasedElsewhere means that another caller is carrying out the resumes.
var errReleasedElsewhere = errors.New("another timerd is carrying out the resume")

// advance does a round of all resumes, ends holds whose time is over, and bounds holds made by a clock that was ahead.
func (r *releaser) advance(ctx context.Context, l *schedule.HoldList) (ResumeProgress, error) {
	var err error
	if r.taken, err = r.turn().take(ctx); err != nil {
		return ResumeProgress{Released: r.sum}, err
	}
	if !r.taken {
		return ResumeProgress{Released: r.sum, Waits: errReleasedElsewhere.Error()}, nil
	}
	r.had = time.Now()
	for _, h := range expired(l) {
		h.Resume = &schedule.Resume{Kind: schedule.ResumeNow, At: l.Now, By: "its time was over"}
		return ResumeProgress{Released: r.sum}, l.Put(ctx, h)
	}
	for _, h := range l.MadeAhead() {
		r.Logger.Warn("the clock of Redis was ahead and is back: the hold begins now", "namespace",
			h.Namespace.String(), "until", showUntil(h))
		return ResumeProgress{Released: r.sum}, l.Put(ctx, h)
	}
	all := ResumeProgress{}
	for _, h := range l.Holds {
		if h.Resume == nil || r.waits(l, h.Namespace) {
			continue
		}
		progress, changed, err := r.carryOut(ctx, l, h)
		if changed {
			return ResumeProgress{Released: r.sum}, err
		}
		all.Held += progress.Held
		all.Waits = progress.Waits
		if err != nil {
			return all, err
		}
	}
	if r.seeks(l) {
		lost := &schedule.Hold{Resume: &schedule.Resume{Kind: schedule.ResumeNow}}
		_, done, err := r.round(ctx, l, lost)
		r.orphans = !done
		if err != nil {
			return all, err
		}
	}
	all.Released = r.sum
	return all, nil
}

// carryOut does a round of one resume, and ends its hold if the resume is done. It reports whether the list of holds
// has changed.
func (r *releaser) carryOut(ctx context.Context, l *schedule.HoldList,
	h schedule.Hold) (out ResumeProgress, changed bool, err error) {
	changed, wait := r.setBack(ctx, l, h)
	if changed {
		return out, true, wait
	}
	if wait != nil {
		return ResumeProgress{Waits: wait.Error()}, false, nil //nolint:nilerr // other resumes go on
	}
	out, done, err := r.round(ctx, l, &h)
	if err != nil || !done {
		return out, false, err
	}
	delete(r.passes, h.Namespace)
	if err := l.Remove(ctx, h.Namespace); err != nil {
		return out, true, err
	}
	if missing := r.bring(ctx, l); len(missing) > 0 {
		r.Logger.Warn("some servers do not know yet that a hold has ended", "namespace", h.Namespace.String(),
			"err", missing[0])
	}
	return ResumeProgress{}, true, nil
}

// round goes on with one resume for a while. It reports whether the resume is done.
func (r *releaser) round(ctx context.Context, l *schedule.HoldList,
	h *schedule.Hold) (out ResumeProgress, done bool, err error) {
	p := r.passOf(ctx, l, h, &out)
	delete(r.stuck, h.Namespace)
	nodes, err := r.Nodes(ctx)
	if _, some := errors.AsType[*schedule.AwayError](err); err != nil && !some {
		return out, false, err
	}
	r.forget(nodes)
	cutoff := h.Resume.At
	if h.Resume.Kind == schedule.ResumeNow && !l.Nested(h) {
		cutoff = 0 // timers that no claim has reached are free
	}
	parts, away, err := r.look(ctx, nodes, cutoff, h.Namespace)
	if err != nil {
		return out, false, err
	}
	if len(away) > 0 {
		out.Waits = strings.Join(away, ", ") + " does not answer"
	}
	until, whole := time.Now().Add(roundFor), true
	for _, node := range nodes {
		for _, part := range parts[node] {
			switch {
			case part.Moving:
				whole, p.unsure, out.Waits = false, true, "a slot is moving"
				continue
			case part.Unseen && cutoff > 0:
				whole, p.unsure, out.Waits = false, true, "no timerd has looked at all due timers yet"
			}
			out.Held += part.Held
			if part.Held == 0 || p.ended[part.Partition] {
				continue
			}
			ended, err := r.releaseFrom(ctx, l, h, p, part.Partition, until)
			if r.passOver(ctx, node, err) {
				whole, p.unsure, out.Waits = false, true, err.Error()
				break
			}
			if err != nil {
				return out, false, err
			}
			if p.ended[part.Partition] = ended; !ended {
				whole = false
			}
			if time.Now().After(until) || h.Resume.Kind == schedule.ResumeRate && p.times.Left == 0 {
				return out, false, nil
			}
		}
	}
	if !whole {
		return out, false, nil
	}
	return out, r.endPass(l, h, p, away), nil
}

// passOf returns the pass of a resume. If the list of holds has changed, it is a new pass, and every server must have
// the new list first.
func (r *releaser) passOf(ctx context.Context, l *schedule.HoldList, h *schedule.Hold, out *ResumeProgress) *pass {
	was := r.passes[h.Namespace]
	if was != nil && was.generation == l.Generation {
		return was
	}
	if missing := r.bring(ctx, l); len(missing) > 0 {
		out.Waits = missing[0]
	}
	p := newPass(l.Generation, *h.Resume)
	if was != nil && was.resume == *h.Resume {
		p.times, p.lastTime = was.times, was.lastTime
	}
	r.passes[h.Namespace] = p
	return p
}

// endPass ends a pass through all partitions of the answering servers, and begins another. It reports whether the
// resume is done: a whole pass has found nothing to release.
func (r *releaser) endPass(l *schedule.HoldList, h *schedule.Hold, p *pass, away []string) (done bool) {
	again, kept := p.released > 0 || p.unsure, p.kept
	next := newPass(p.generation, p.resume)
	next.times, next.lastTime = p.times, p.lastTime
	*p = *next
	free := l.Now >= p.lastTime
	switch {
	case again:
	case len(away) > 0:
		if free {
			r.stuck[h.Namespace] = away
		}
	case kept > 0:
		p.kept, p.waits = kept, true
	default:
		return free
	}
	return false
}

// releaseFrom releases timers of a partition until a time, and reports whether it has reached the end.
func (r *releaser) releaseFrom(ctx context.Context, l *schedule.HoldList, h *schedule.Hold, p *pass,
	part keys.Partition, until time.Time) (ended bool, err error) {
	for time.Now().Before(until) && ctx.Err() == nil {
		if h.Resume.Kind == schedule.ResumeRate && p.times.Left == 0 {
			count := min(max(int(h.Resume.Rate*drawFor.Seconds()), 1), schedule.MaxRelease)
			if p.times, err = l.Draw(ctx, h, count, releaseLead); err != nil || p.times.Left == 0 {
				return false, err
			}
		}
		within, cancel := context.WithTimeout(ctx, schedule.HoldAnswer)
		done, err := l.Release(within, h, part, p.at[part], &p.times)
		cancel()
		if err != nil {
			return false, err
		}
		if done.Stale {
			r.bring(ctx, l)
			return false, nil
		}
		p.at[part] = done.Next
		p.kept += int64(done.Kept)
		p.released += done.Count
		r.sum += done.Count
		if done.Timed > 0 {
			p.lastTime = p.times.Last()
		}
		if done.Last {
			return true, nil
		}
	}
	return false, ctx.Err()
}
