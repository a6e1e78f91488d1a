package console

import (
	"context"
	"net/url"
	"strconv"

	"github.com/timerd-io/timerd/internal/deadletters"
	"github.com/timerd-io/timerd/keys"
)

// lettersWork replays dead letters or deletes them.
type lettersWork struct {
	actions *Actions
	index   Index
	name    string
	sel     deadletters.Selection
	what    string
	from    string
}

func (c *Console) newLettersWork(do string, form url.Values) (work, error) {
	f := letterFilterOf(form)
	w := &lettersWork{actions: c.actions, index: c.sources.Index, name: do, from: "/dead?" + f.encode()}
	if form.Get("all") != "" {
		sel, err := f.selection()
		if err != nil {
			return nil, err
		}
		w.sel, w.what = sel, "all dead letters"
		if f.Query != "" {
			w.what += " of " + keys.EncodeText(clip(f.Query, 200))
		}
		if f.Text != "" {
			w.what += " that say “" + keys.EncodeText(clip(f.Text, 200)) + "”"
		}
		return w, nil
	}
	for _, text := range form["seq"] {
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil || seq == 0 {
			return nil, badRequest("“"+clip(text, 50)+"” is no number of a dead letter.", "Take what the list of dead letters gives as seq.")
		}
		w.sel.Seqs = append(w.sel.Seqs, seq)
	}
	switch n := len(w.sel.Seqs); {
	case n == 0:
		return nil, errNothingSelected
	case n > mostSelected:
		return nil, refuse("That is too many for one selection.", "Select at most 1,000, or all that match.")
	case n == 1:
		w.what = "dead letter " + strconv.FormatUint(w.sel.Seqs[0], 10)
	default:
		w.what = counted(int64(n), "selected dead letter", "selected dead letters")
	}
	return w, nil
}

func (w *lettersWork) do() string               { return w.name }
func (w *lettersWork) back() string             { return w.from }
func (w *lettersWork) title() string            { return actionName(w.name) + ": " + w.what }
func (w *lettersWork) confirm(url.Values) error { return nil }

func (w *lettersWork) count(ctx context.Context, tell func(Count)) (Count, error) {
	letters, err := deadletters.Select(ctx, w.actions.Streams, w.actions.Names, w.sel)
	if err != nil {
		return Count{Noun: "dead letters"}, err
	}
	found, err := letters.Count(ctx, func(f deadletters.Found) { tell(w.counted(f)) })
	w.sel.Last = found.Last // what comes later is not touched
	return w.counted(found), err
}

func (w *lettersWork) counted(f deadletters.Found) Count {
	c := Count{Noun: "dead letters", Touches: f.Letters, Looked: f.Looked, Total: f.Total}
	switch {
	case w.name == "purge":
		c.Warnings = append(c.Warnings, "What is purged is gone for good.")
	case f.Replayable < f.Letters:
		c.Warnings = append(c.Warnings, counted(f.Letters-f.Replayable, "of them holds no timer and stays where it is.", "of them hold no timer and stay where they are."))
	}
	if w.name == "replay" {
		c.Warnings = append(c.Warnings, "Each timer fires at once, as attempt 1.")
	}
	return c
}

func (w *lettersWork) run(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	letters, err := deadletters.Select(ctx, w.actions.Streams, w.actions.Names, w.sel)
	if err != nil {
		return nil, err
	}
	if w.name == "purge" {
		done, err := letters.Purge(ctx, func(d deadletters.Done) { tell(letterTallies(w.name, d)) })
		return letterTallies(w.name, done), err
	}
	f, err := w.index.Forecast(ctx, 1) // it has the clock of Redis
	if err != nil {
		return nil, err
	}
	done, err := letters.Replay(ctx, w.actions.Schedule, millisOf(f.Now), func(deadletters.Outcome) error { return nil })
	return letterTallies(w.name, done), err
}
