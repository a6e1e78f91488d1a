package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/status"
)

// mostConsumers limits the rows of consumers.
const mostConsumers = 100

// Consumers are the programs that read events, and the events that they gave up.
type Consumers struct {
	At          time.Time         `json:"at"`
	NATS        bool              `json:"nats"`
	Consumers   []ConsumerView    `json:"consumers"`             // most waiting events first
	NoConsumers string            `json:"noconsumers,omitempty"` // why they cannot be shown now
	LeftOut     int               `json:"leftout"`               // consumers beyond a page's limit
	Unnamed     []status.Failures `json:"unnamed"`               // failures of consumers that do not name themselves
	Letters     []LettersView     `json:"letters"`               // dead letters by namespace, most first
	// LettersLeftOut is the number of further namespaces with dead letters.
	LettersLeftOut int    `json:"lettersleftout"`
	NoLetters      string `json:"noletters,omitempty"` // why they cannot be shown now
	Newest         int    `json:"newest"`              // letters whose errors were read, the newest ones
	NoErrors       string `json:"noerrors,omitempty"`  // why no more errors were read
}

// ConsumerView is a consumer.
type ConsumerView struct{ status.Consumer }

// IsFailing reports whether attempts failed lately.
func (c ConsumerView) IsFailing() bool { return valueOf(c.Failed) > 0 }

// consumersPage reads the state of the consumers.
type consumersPage struct {
	*shared
	errors *cache[*letterErrors]
}

func newConsumersPage(s *shared) *consumersPage {
	return &consumersPage{s, newCache(forecastAge, s.readErrors)}
}

func (pg *consumersPage) consumers(r *http.Request) (*page, error) {
	state := pg.state.get(r.Context())
	v := &Consumers{At: pg.realNow(r.Context()), NATS: state.NATS(), Consumers: []ConsumerView{},
		Unnamed: []status.Failures{}, Letters: []LettersView{}}
	if v.NATS {
		nats := state.Report.NATS
		for _, c := range nats.Consumers {
			v.Consumers = append(v.Consumers, ConsumerView{c})
		}
		v.NoConsumers, v.NoLetters = nats.NoConsumers, nats.NoLetters
		v.Unnamed = append(v.Unnamed, nats.Unnamed...)
		v.LettersLeftOut = nats.LettersLeftOut
		v.addLetters(nats.Letters, pg.errors.get(r.Context()))
	}
	slices.SortStableFunc(v.Consumers, func(a, b ConsumerView) int { return cmp.Compare(b.Waiting, a.Waiting) })
	if v.LeftOut = max(len(v.Consumers)-mostConsumers, 0); v.LeftOut > 0 {
		v.Consumers = v.Consumers[:mostConsumers]
	}
	return &page{Template: "consumers", Title: "Consumers", Nav: "/consumers", View: v}, nil
}

// shareText formats a share of failures.
func shareText(share float64) string {
	if share > 0 && share < 0.01 {
		return "< 1 %"
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}
