package schedule

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// MaxRelease bounds the held timers released by one step of a resume.
const MaxRelease = 256

// MaxShift bounds the held timers set again by one step of a resume, which takes several times as long as releasing
// them.
const MaxShift = 64

// HeldAt is a position in the held timers of a partition, by due time. The zero HeldAt is the beginning.
type HeldAt struct {
	score int64
	skip  int64
}

// Released is the result of a step of a resume.
type Released struct {
	Count int    // timers that are not held any more
	Timed int    // the number of them with a time of the draw
	Next  HeldAt // where to go on
	Last  bool   // there are no more after these
	Kept  int    // timers that were skipped because another hold is in force
	Stale bool   // nothing was done: the partition's list of holds is not the caller's
}

// release runs the script of one step.
func (l *HoldList) release(ctx context.Context, h *Hold, p keys.Partition, from HeldAt, most int, first Draw) (Released,
	error) {
	s, n, r := l.schedule, h.Namespace, h.Resume
	args := []any{l.copied(), n.App, n.Module, n.Type, from.score, from.skip, most, int64(r.At)}
	step := s.step("hold_release")
	if r.Kind == ResumeShift {
		step = s.step("hold_shift")
		args = append(args, int64(max(r.At-h.Since, 0))) // it may have begun by a clock that was ahead
	} else {
		args = append(args, first.first, first.interval, r.Kind == ResumeDead)
	}
	args = append(args, l.rivals(h)...)
	reply, err := ReadReply(s.Run(ctx, step, []Call{{Partition: p, Args: args}})[0], 1, 5)
	if err != nil {
		return Released{}, fmt.Errorf("schedule: resume %s: %w", n, err)
	}
	if len(reply) == 1 {
		return Released{Stale: true}, nil
	}
	if r.Kind == ResumeShift && reply.Int(0) > 0 {
		s.noteMoved(ctx, p)
	}
	out := Released{Count: int(reply.Int(0)), Timed: int(reply.Int(1)), Last: reply.Int(4) == 1,
		Kept: int(reply.Int(5))}
	out.Next.score, _ = strconv.ParseInt(reply.Text(2), 10, 64)
	out.Next.skip, _ = strconv.ParseInt(reply.Text(3), 10, 64)
	return out, nil
}

// Draw is a series of times, at equal intervals, at which timers may fire.
type Draw struct {
	first, interval float64 // in ms
	Left            int     // unused times
}

// Last returns the last time that was used; at least one must have been.
func (d Draw) Last() Millis { return Millis(d.first - d.interval) }

// Draw reserves the next times of a resume at a rate; no other caller gets them. It returns none if they are further
// ahead than ahead, as also by a clock that was ahead: see DrawnAhead.
func (l *HoldList) Draw(ctx context.Context, h *Hold, count int, ahead time.Duration) (Draw, error) {
	s := l.schedule
	now, err := s.heldClock(ctx)
	if err != nil {
		return Draw{}, err
	}
	interval := 1000 / h.Resume.Rate
	args := []any{h.Namespace.String(), int64(now), count, interval, int64(now.Add(ahead))}
	text, err := s.Run(ctx, s.step("hold_draw"), []Call{{Partition: keys.Single, Args: args}})[0].Text()
	if err == nil && text == "" {
		return Draw{}, nil
	}
	var first float64
	if err == nil {
		first, err = strconv.ParseFloat(text, 64)
	}
	if err != nil {
		return Draw{}, fmt.Errorf("schedule: resume %s: draw times: %w", h.Namespace, err)
	}
	return Draw{first, interval, count}, nil
}

// heldClock reads the clock of the holds' times.
func (s *Schedule) heldClock(ctx context.Context) (Millis, error) {
	server, err := s.topology.server(ctx, keys.Single)
	if err != nil {
		return 0, fmt.Errorf("schedule: read the clock of the holds: %w", err)
	}
	now, err := s.readDueClock(ctx, server)
	if err != nil {
		return 0, fmt.Errorf("schedule: read the clock of the holds: %w", err)
	}
	return MillisOf(now), nil
}

// Release does one step of a resume on a partition: from a position on, it releases some of the held timers that this
// hold alone covers, by due time and in the way of the hold's resume. Timers that get times of a draw use these up.
// Nothing is done if the partition's copy of the list is not this one.
func (l *HoldList) Release(ctx context.Context, h *Hold, p keys.Partition, from HeldAt, times *Draw) (Released, error) {
	most := MaxRelease
	switch h.Resume.Kind {
	case ResumeShift:
		most = MaxShift
	case ResumeRate:
		most = min(most, times.Left)
	}
	done, err := l.release(ctx, h, p, from, most, *times)
	times.first += float64(done.Timed) * times.interval
	times.Left -= done.Timed
	return done, err
}
