package schedule

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// redrawPage bounds the firings of a partition in one call: some 0.2 ms.
const redrawPage = 256

// DrawnAhead reports whether times of a resume at a rate were drawn while the clock was ahead: at the reading of the
// list they were further off than possible for draws at most ahead in advance, each covering at most atOnce.
func (l *HoldList) DrawnAhead(h *Hold, ahead, atOnce time.Duration) bool {
	return h.Resume != nil && h.Resume.Kind == ResumeRate && h.next > float64(l.Now.Add(farthest(h, ahead, atOnce)))
}

// farthest is the longest time to the next draw by a correct clock.
func farthest(h *Hold, ahead, atOnce time.Duration) time.Duration {
	interval := time.Duration(float64(time.Second) / h.Resume.Rate)
	return ahead + max(atOnce, interval) + AheadBy
}

// Redraw puts timers of a node that got times too far ahead on hold again, so that they get new ones. It returns their
// number. See DrawnAhead. Call Undraw once it has succeeded on all nodes.
func (l *HoldList) Redraw(ctx context.Context, n *Node, h *Hold, ahead time.Duration) (held int, err error) {
	ns := h.Namespace
	err = n.Master().eachChunk(Chunk, func(hashTags []any) error {
		for skip := 0; ; {
			args := append([]any{l.copied(), ns.App, ns.Module, ns.Type, int64(h.Resume.At),
				(ahead + AheadBy).Milliseconds(), skip, redrawPage}, hashTags...)
			reply, err := l.schedule.step("hold_redraw").Run(ctx, n.server, nil, args...).Int64Slice()
			switch {
			case err != nil:
				return err
			case len(reply) != 3:
				return fmt.Errorf("unexpected reply of %d elements", len(reply))
			case reply[2] > 0:
				return errors.New("slots are moving, or the list of holds has changed")
			}
			held += int(reply[0])
			switch {
			case reply[0] > 0: // the others of the page have moved up
			case reply[1] < redrawPage:
				return nil
			default:
				skip += redrawPage
			}
		}
	})
	if err != nil {
		return held, fmt.Errorf("schedule: resume %s: hold again what got times by a clock that was ahead: %w", ns, err)
	}
	return held, nil
}

// Undraw begins the times of a resume at a rate anew, once no timer has one from a clock that was ahead. Nothing
// happens if somebody has drawn times since the list was read.
func (l *HoldList) Undraw(ctx context.Context, h *Hold) error {
	args := []any{h.Namespace.String(), strconv.FormatFloat(h.next, 'f', 3, 64)}
	if err := l.schedule.Run(ctx, l.schedule.step("hold_undraw"),
		[]Call{{Partition: keys.Single, Args: args}})[0].Err(); err != nil {
		return fmt.Errorf("schedule: resume %s: draw times anew: %w", h.Namespace, err)
	}
	return nil
}
