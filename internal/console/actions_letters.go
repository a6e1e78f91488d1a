package console

import (
	"context"
	"net/url"
	"strconv"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/keys"
)

// lettersWork replays dead letters or deletes them.
type lettersWork struct {
	request
	actions *Actions
	sel     admin.LetterSelection
	what    string

	letters *admin.Letters // once they are counted
	found   admin.LetterCount
}

func newLettersWork(actions *Actions, do string, form url.Values) (work, error) {
	f := letterFilterOf(form)
	w := &lettersWork{request: request{name: do, from: f.address()}, actions: actions}
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
	seqs, err := selectedSeqs(form)
	if err != nil {
		return nil, err
	}
	w.sel.Seqs = seqs
	if n := len(seqs); n == 1 {
		w.what = "dead letter " + strconv.FormatUint(seqs[0], 10)
	} else {
		w.what = counted(int64(n), "selected dead letter", "selected dead letters")
	}
	return w, nil
}

func (w *lettersWork) title() string { return actionName(w.name) + ": " + w.what }

func (w *lettersWork) count(ctx context.Context, tell func(Count)) (Count, error) {
	letters, err := admin.SelectLetters(ctx, w.actions.Streams, w.actions.Names, w.sel)
	if err != nil {
		return Count{Noun: "dead letters"}, err
	}
	looked := Count{Noun: "dead letters"}
	w.found, err = letters.Find(ctx, func(admin.Letter, string) error {
		if looked.Touches++; looked.Touches%1000 == 0 {
			tell(looked)
		}
		return ctx.Err()
	})
	w.letters = letters
	return w.counted(), err
}

// counted returns the count of the letters found.
func (w *lettersWork) counted() Count {
	all, replayable := int64(len(w.found.All)), int64(len(w.found.Replayable))
	c := Count{Noun: "dead letters", Touches: all}
	if w.name == "purge" {
		c.Warnings = append(c.Warnings, "Purged letters cannot be brought back.")
		return c
	}
	c.Touches = replayable
	if n := all - replayable; n > 0 {
		c.Warnings = append(c.Warnings, counted(n, "other has no timer, and stays where it is.",
			"others have no timer, and stay where they are."))
	}
	c.Warnings = append(c.Warnings,
		"Each timer fires at once, as attempt 1. A newer timer of its key stays, and both fire.")
	return c
}

func (w *lettersWork) run(ctx context.Context, tell func([]Tally)) ([]Tally, error) {
	if w.name == "purge" {
		n := 0
		tallies := func() []Tally { return []Tally{{"purged", int64(n)}} }
		err := w.letters.Purge(ctx, w.found.All, func(purged int) {
			n = purged
			tell(tallies())
		})
		w.note(w.letters.Entry(event.EntryPurge, n))
		return tallies(), err
	}
	var replayed, before int64
	tallies := func() []Tally {
		return someTallies([]Tally{{"replayed", replayed}, {"replayed or sent again before", before}})
	}
	n, err := w.letters.Replay(ctx, w.actions.Schedule, w.found.Replayable, func(_ admin.Letter, fresh bool) error {
		if fresh {
			replayed++
		} else {
			before++
		}
		tell(tallies())
		return ctx.Err()
	})
	w.note(w.letters.Entry(event.EntryReplay, n))
	return tallies(), err
}
