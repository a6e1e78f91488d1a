package console

import (
	"net/http"
	"time"

	"github.com/timerd-io/timerd/internal/admin"
)

// Holds is the page of holds.
type Holds struct {
	At    time.Time        `json:"at"`
	Holds []admin.HoldView `json:"holds"` // in the order of their namespaces
	// Missing are the silent masters of a cluster; their timers are left out.
	Missing []string `json:"missing,omitempty"`
}

// holdsPage reads the holds.
type holdsPage struct{ *shared }

func (pg *holdsPage) holds(r *http.Request) (*page, error) {
	v := &Holds{At: pg.now(r.Context()), Holds: []admin.HoldView{}, Missing: pg.missing()}
	p := &page{Template: "holds", Title: "Holds", Nav: "/holds", View: v}
	views, err := pg.sources.Holds(r.Context())
	if err != nil {
		p.Trouble = asFault(err)
		return p, nil
	}
	v.Holds = append(v.Holds, views...)
	return p, nil
}
