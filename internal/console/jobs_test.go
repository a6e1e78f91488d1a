package console

import (
	"context"
	"log/slog"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/event"
)

// noWork is work that notes whether it was done.
type noWork struct{ done bool }

func (*noWork) do() string    { return "cancel" }
func (*noWork) title() string { return "Cancel" }
func (*noWork) back() string  { return "/" }

func (*noWork) count(context.Context, func(Count)) (Count, error) { return Count{Touches: 1}, nil }

func (*noWork) confirm(url.Values) error { return nil }
func (*noWork) changes() *event.Entry    { return nil }

func (w *noWork) run(context.Context, func([]Tally)) ([]Tally, error) {
	w.done = true
	return nil, nil
}

// A job counted long ago does not run, forgotten or not.
func TestConfirmedTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := newJobs(slog.New(slog.DiscardHandler), nil)
		for _, late := range []bool{false, true} {
			w := &noWork{}
			j, err := all.begin(w, "somebody")
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(askedFor)
			if late {
				time.Sleep(time.Second)
			}
			err = all.confirm(j, nil)
			synctest.Wait()
			if (err != nil) != late || w.done == late {
				t.Errorf("late %v: %v, done %v", late, err, w.done)
			}
		}
		if err := all.close(); err != nil {
			t.Fatal(err)
		}
	})
}
