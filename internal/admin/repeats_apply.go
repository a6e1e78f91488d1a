package admin

import (
	"context"
	"errors"
	"slices"

	"github.com/timerd-io/timerd/client"
)

// Applied is the result of applying a plan.
type Applied struct {
	Added, Changed, Removed int
	// Late are the removed keys whose last occurrence was already firing, and may still arrive.
	Late []string
}

// Apply carries out a plan. If Redis refuses a change, it calls refused and goes on. It ends at the first other error,
// or when ctx does; the result is valid beside an error too. Planned and applied again, the file's remaining changes
// are made.
func (r *Repeats) Apply(ctx context.Context, plan *Plan, refused func(*Change, error)) (done Applied, err error) {
	var names []string
	for i := range plan.Changes {
		c := &plan.Changes[i]
		switch c.Kind {
		case ToRemove:
			names = append(names, c.Key)
		case ToAdd, ToChange:
			_, err := r.client.Repeat(ctx, c.Key, c.Wanted.Payload, c.Wanted.by, c.options()...)
			switch {
			case errors.Is(err, client.ErrInvalid):
				refused(c, err)
			case err != nil:
				return done, err
			case c.Kind == ToAdd:
				done.Added++
			default:
				done.Changed++
			}
		}
	}
	for some := range slices.Chunk(names, repetitionsAtOnce) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		results, err := r.client.CancelMany(context.WithoutCancel(ctx), some)
		for i, result := range results {
			if result.Err == nil {
				done.Removed++
			}
			if result.Outcome == client.Fired {
				done.Late = append(done.Late, some[i])
			}
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// options returns the options that set the repetition.
func (c *Change) options() []client.SetOption {
	w, options := c.Wanted, []client.SetOption(nil)
	if from := w.From; !from.IsZero() {
		options = append(options, client.From(from))
	} else if !c.grid.IsZero() {
		options = append(options, client.From(c.grid))
	}
	if !w.Until.IsZero() {
		options = append(options, client.Until(w.Until))
	}
	if w.Times > 0 {
		options = append(options, client.Times(int(w.Times)))
	}
	if w.CatchUp > 0 {
		options = append(options, client.CatchUp(w.CatchUp))
	}
	switch {
	case w.Late.Drop:
		options = append(options, client.DropLate(w.Late.Most))
	case w.Late.Given:
		options = append(options, client.Late(w.Late.Most))
	}
	if w.Guards.Unless != "" {
		options = append(options, client.Unless(w.Guards.Unless))
	}
	if w.Guards.If != "" {
		options = append(options, client.If(w.Guards.If))
	}
	return options
}
