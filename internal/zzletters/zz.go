// Package deadletters stands in.
package deadletters

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	old "github.com/timerd-io/timerd/internal/deadletters"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

var ErrNone = errors.New("none")

type Letter struct{ history.Record }

func (l Letter) Timer(due schedule.Millis) (r schedule.Retry, why string) {
	return old.Letter{Event: l.Event, Fault: l.Fault}.Timer(due)
}

type Selection struct {
	Namespace keys.Namespace
	Text, ID  string
	Seqs      []uint64
	Last      uint64
	Before    time.Time
}
type Page struct {
	Letters []Letter
	Place   string
	Looked  int64
	Total   uint64
	Seq     uint64
	Since   time.Time
}
type Found struct {
	Letters, Replayable, Looked, Total int64
	Last                               uint64
}
type Done struct{ Replayed, Skipped, Purged, Gone int64 }
type Outcome struct{}
type Letters struct{}

func of(l old.Letter) Letter {
	return Letter{history.Record{Kind: keys.Dead, Stream: "TIMERS_DEAD", Seq: l.Seq, Stored: l.Stored, Subject: l.Subject, MsgID: l.MsgID, Data: l.Data, Event: l.Event, Fault: l.Fault}}
}

func List(ctx context.Context, js jetstream.JetStream, names keys.Names, sel Selection, place string, limit int) (Page, error) {
	l, err := old.Select(ctx, js, names, old.Selection{Namespace: sel.Namespace})
	p := Page{}
	if err != nil {
		return p, err
	}
	err = l.Each(ctx, func(l old.Letter) (bool, error) {
		p.Letters = append([]Letter{of(l)}, p.Letters...)
		p.Total++
		return true, nil
	})
	return p, err
}

func Get(ctx context.Context, js jetstream.JetStream, names keys.Names, seq uint64) (out Letter, err error) {
	l, err := old.Select(ctx, js, names, old.Selection{Seq: seq})
	if err != nil {
		return out, ErrNone
	}
	err = l.Each(ctx, func(l old.Letter) (bool, error) { out = of(l); return false, nil })
	return out, err
}
func Select(ctx context.Context, js jetstream.JetStream, names keys.Names, sel Selection) (*Letters, error) {
	return nil, errors.New("not built yet")
}
func (l *Letters) Count(ctx context.Context, progress func(Found)) (Found, error) {
	return Found{}, errors.New("not built yet")
}
func (l *Letters) Replay(ctx context.Context, sched *schedule.Schedule, now schedule.Millis, tell func(Outcome) error) (Done, error) {
	return Done{}, errors.New("not built yet")
}
func (l *Letters) Purge(ctx context.Context, progress func(Done)) (Done, error) {
	return Done{}, errors.New("not built yet")
}
