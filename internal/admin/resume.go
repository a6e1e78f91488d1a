package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// ResumeProgress is the progress of a resume.
type ResumeProgress struct {
	Released int // by this caller, timers
	Held     int64
	Waits    string // the obstacle, if any
	// Kept is the number of timers that stay on hold under KeptBy, after all others are released. The resume stays, and
	// applies when those holds end. If several resumes cover a timer, the narrowest namespace decides.
	Kept   int64
	KeptBy []keys.Namespace
}

// Resume ends the hold of a namespace, and returns once all of its timers are released, unless other holds cover them.
// It calls tell with its progress, and at the end with the timers that other holds keep. If it is interrupted, the
// timerds finish it. An error may wrap ErrNotHeld or ErrHeldAnew.
//
// Of how, Kind, Rate (MinRate to MaxRate) and By count; an empty By becomes the user and the host of this process.
func (s *Holds) Resume(ctx context.Context, n keys.Namespace, how schedule.Resume, tell func(ResumeProgress)) error {
	list, since, err := s.beginResume(ctx, n, how)
	if err != nil {
		return err
	}
	releaser := s.newReleaser()
	defer releaser.leave(ctx)
	var last ResumeProgress
	for {
		h := list.Find(n)
		if h == nil {
			return nil
		}
		if h.Resume == nil || h.Since != since {
			return heldAnew(h, releaser.sum)
		}
		progress, err := releaser.advance(ctx, list)
		if err == nil && !releaser.taken && h.Resume.Kind != schedule.ResumeRate && // whose times the owner has drawn
			time.Since(releaser.had) > aloneAfter {
			progress, _, err = releaser.carryOut(ctx, list, *h)
			progress.Released = releaser.sum
		}
		if err != nil {
			progress.Released, progress.Waits = releaser.sum, err.Error()
		}
		if err != nil && ctx.Err() != nil { // interrupted: the last round's obstacle still holds
			progress.Held, progress.Waits = last.Held, last.Waits
		}
		last = progress
		if progress.Kept, progress.KeptBy = releaser.kept(list, h); progress.Kept > 0 {
			progress.Released = releaser.sum
			tell(progress)
			return nil
		}
		tell(progress)
		if len(releaser.stuck[n]) > 0 {
			releaser.leave(ctx) // another timerd may reach the silent servers
			if time.Since(releaser.away) > awayPatience {
				return releaser.stuckError(n)
			}
		}
		if !backoff.Sleep(ctx, pollEvery) {
			return ctx.Err()
		}
		if next, err := s.schedule.Holds(ctx); err == nil {
			list = next
		}
	}
}

// beginResume enters a resume in the list of holds. It returns the list, and the time since which the namespace has
// been on hold.
func (s *Holds) beginResume(ctx context.Context, n keys.Namespace,
	how schedule.Resume) (list *schedule.HoldList, since schedule.Millis, err error) {
	list, err = s.change(ctx, func(l *schedule.HoldList) error {
		was := l.Find(n)
		if was == nil {
			return fmt.Errorf("%s is %w; to list the namespaces on hold, run: timerd holds", n, ErrNotHeld)
		}
		since = was.Since
		if was.Resume != nil && was.Resume.Kind == how.Kind && was.Resume.Rate == how.Rate {
			return nil // the drawn times stay
		}
		h := *was
		h.Resume = &schedule.Resume{Kind: how.Kind, Rate: how.Rate, At: l.Now, By: cmp.Or(how.By, whoami())}
		if was.Resume != nil {
			h.Resume.At = was.Resume.At
		}
		return l.Put(ctx, h)
	})
	return list, since, err
}

// heldAnew returns the error of a resume that a new hold has ended.
func heldAnew(h *schedule.Hold, released int) error {
	return fmt.Errorf("%s was %w, by %s at %s: this command has released %d of its timers, the rest stays held",
		h.Namespace, ErrHeldAnew, h.By, h.Since.Time().Format("2006-01-02 15:04:05Z"), released)
}

// ParseRate reads a number of timers a second, minute or hour, such as 200/s, and returns the number a second.
func ParseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, "/")
	per, known := map[string]float64{"s": 1, "m": 60, "h": 3600}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if !known || err != nil || !(n/per >= MinRate && n/per <= MaxRate) {
		return 0, errors.New("want a number of timers and a unit, s, m or h, such as 200/s; from 1/m to 1000000/s")
	}
	return n / per, nil
}
