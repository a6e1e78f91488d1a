package console

import (
	"net/http"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// Holds is the page of what is held.
type Holds struct {
	At    time.Time  `json:"at"`
	Holds []HoldView `json:"holds"` // in the order of their namespaces
}

// HoldView is a namespace that is held, or whose timers are still being released.
type HoldView struct {
	Namespace string      `json:"namespace"`
	Since     time.Time   `json:"since"`
	Until     *time.Time  `json:"until"` // null: until it is resumed
	Reason    string      `json:"reason"`
	By        string      `json:"by"`
	Held      *int64      `json:"held"`   // timers that are due and wait; null: so many that it is not known
	Resume    *ResumeView `json:"resume"` // null while it lasts
}

// ResumeView is how a hold is being resumed.
type ResumeView struct {
	Kind  schedule.ResumeKind `json:"kind"`
	Rate  float64             `json:"rate,omitempty"` // timers a second
	Since time.Time           `json:"since"`
	By    string              `json:"by"`
}

func newHoldView(v admin.HoldView) HoldView {
	h := HoldView{
		Namespace: v.Namespace.String(), Since: v.Since.Time().UTC(), Reason: keys.EncodeText(v.Reason), By: keys.EncodeText(v.By), Held: v.Held,
	}
	if v.Until > 0 {
		until := v.Until.Time().UTC()
		h.Until = &until
	}
	if r := v.Resume; r != nil {
		h.Resume = &ResumeView{r.Kind, r.Rate, r.At.Time().UTC(), keys.EncodeText(r.By)}
	}
	return h
}

// holdsPage reads what is held.
func (c *Console) holdsPage(r *http.Request) (*page, error) {
	v := &Holds{At: c.now(r.Context()), Holds: []HoldView{}}
	p := &page{Template: "holds", Title: "Holds", Nav: "/holds", View: v}
	views, err := c.sources.Holds(r.Context())
	if err != nil {
		p.Trouble = asFault(err)
		return p, nil
	}
	for _, one := range views {
		v.Holds = append(v.Holds, newHoldView(one))
	}
	return p, nil
}
