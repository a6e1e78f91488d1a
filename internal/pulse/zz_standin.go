// Package pulse stands in.
package pulse

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/schedule"
)

type View struct {
	Since, At                  time.Time
	Err                        error
	FiredPerSecond             float64
	P50, P99                   time.Duration
	Known                      bool
	Points                     []Point
	Namespaces                 []Namespace
	Gaps, Retries, DeadLetters int64
	Timerds, Silent            int
}
type Point struct {
	At       time.Time
	Fired    int64
	P50, P99 time.Duration
	Known    bool
}
type Namespace struct {
	Name           string
	FiredPerSecond float64
	Fired          int64
	P50, P99       time.Duration
}
type Pulse struct{}

func New(func(context.Context) ([]schedule.Member, error)) *Pulse { return &Pulse{} }
func (p *Pulse) Run(ctx context.Context)                            { <-ctx.Done() }
func (p *Pulse) View() View                                         { return View{} }
