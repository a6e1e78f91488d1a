package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// journalWithin bounds a Journal's wait for NATS, after the action.
const journalWithin = time.Second

var errNoNATS = errors.New("NATS does not answer")

// Journal writes operators' actions to the history of the installation, if NATS takes them in time: nothing depends on
// it. Its methods may be called concurrently.
type Journal struct {
	streams streams.Config
	via     string
	failed  func(error)
	opened  chan struct{} // closed once js or err is set
	js      jetstream.JetStream
	err     error
}

// NewJournal returns a Journal of the actions that come from via: event.ViaCommand or event.ViaConsole. open connects
// to NATS, in the background, so that the action need not wait for it; the caller closes its connection. failed gets
// the reason why an action is not in the history.
func NewJournal(open func() (jetstream.JetStream, error), s streams.Config, via string, failed func(error)) *Journal {
	j := &Journal{streams: s, via: via, failed: failed, opened: make(chan struct{})}
	go func() {
		defer close(j.opened)
		j.js, j.err = open()
	}()
	return j
}

// Note writes an action that has changed something. It sets the entry's Time and Via, and an empty By to the user and
// the host of this process. It waits a second at most, also after the end of ctx.
func (j *Journal) Note(ctx context.Context, e event.Entry) {
	if j == nil {
		return
	}
	e.Time, e.Via, e.By = time.Now(), j.via, cmp.Or(e.By, whoami())
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), journalWithin)
	defer cancel()
	if err := j.write(within, e); err != nil {
		j.failed(err)
	}
}

func (j *Journal) write(ctx context.Context, e event.Entry) error {
	select {
	case <-j.opened:
	case <-ctx.Done():
		return errNoNATS
	}
	if j.err != nil {
		return j.err
	}
	if !j.js.Conn().IsConnected() {
		return errNoNATS
	}
	return streams.WriteHistory(ctx, j.js, j.streams, e)
}

// TimersEntry returns the entry of an action that has changed n of some timers.
func TimersEntry(kind event.EntryKind, n int64, names ...string) event.Entry {
	e := event.Entry{Kind: kind, Count: n}
	for _, name := range names {
		e.Subjects = append(e.Subjects, keys.EncodeText(name))
	}
	return e
}

// HoldEntry returns the entry of a hold.
func HoldEntry(h schedule.Hold) event.Entry {
	e := event.Entry{Kind: event.EntryHold, Namespace: h.Namespace.String(), By: h.By}
	var words []string
	if h.Until > 0 {
		words = append(words, "until "+entryTime(h.Until.Time()))
	}
	if h.Reason != "" {
		words = append(words, "reason: "+h.Reason)
	}
	e.Detail = strings.Join(words, ", ")
	return e
}

// ResumeEntry returns the entry of a resume that released so many timers itself; the timerds release others.
func ResumeEntry(n keys.Namespace, how schedule.Resume, released int64) event.Entry {
	e := event.Entry{Kind: event.EntryResume, Namespace: n.String(), By: how.By, Count: released,
		Detail: string(how.Kind)}
	if how.Kind == schedule.ResumeRate {
		e.Detail = fmt.Sprintf("%s %g/s", how.Kind, how.Rate)
	}
	return e
}

// Entry returns the entry of an action that has changed n of the letters.
func (s *Letters) Entry(kind event.EntryKind, n int) event.Entry {
	e := event.Entry{Kind: kind, Count: int64(n)}
	var words []string
	switch c := s.chosen; {
	case c.ID != "":
		words = append(words, "id "+c.ID)
	case len(c.Seqs) > 0:
		for _, seq := range c.Seqs {
			words = append(words, "letter "+strconv.FormatUint(seq, 10))
		}
	default:
		e.Namespace = c.Namespace.String()
	}
	if s.chosen.Text != "" {
		words = append(words, "with the text "+s.chosen.Text)
	}
	if !s.chosen.Before.IsZero() {
		words = append(words, "stored by "+entryTime(s.chosen.Before))
	}
	e.Detail = strings.Join(words, ", ")
	return e
}

// entryTime formats a time in a detail.
func entryTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
