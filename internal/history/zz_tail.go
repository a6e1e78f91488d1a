package history

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/keys"
)

type Tail struct{ r *Reader }
type Sample struct {
	Records []Record
	Seq     uint64
	At      time.Time
	Away    string
}

func NewTail(js jetstream.JetStream, names keys.Names) *Tail { return &Tail{New(js, names)} }
func (t *Tail) Sample(ctx context.Context) Sample {
	p, err := t.r.Search(ctx, Query{}, "", 20)
	s := Sample{At: time.Now()}
	for _, r := range p.Records {
		if r.Kind == keys.Fired {
			s.Records = append(s.Records, r)
		}
	}
	if err != nil {
		s.Away = err.Error()
	}
	return s
}
